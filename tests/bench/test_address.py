"""URLs with all that people put at their ends, and those that are none."""

from __future__ import annotations

import pytest

from octavo.bench.address import Address
from octavo.errors import BenchError


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://a", "http://a"),
        ("http://a/", "http://a"),
        ("a:8000", "http://a:8000"),
        ("http://a:8000/v1", "http://a:8000"),
        ("http://a:8000/v1/", "http://a:8000"),
        ("http://a:8000/v1/chat/completions", "http://a:8000"),
        ("https://a:443/proxy/x/v1", "https://a/proxy/x"),
        ("http://[::1]:80/v1", "http://[::1]"),
    ],
)
def test_addresses_with_and_without_v1(url: str, found: str) -> None:
    assert Address.parse(url).url == found


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://a", "begins with ftp://; only http"),
        ("http://", "is no server's URL"),
        ("http://a:99999", "is no URL"),
        ("http://a?x=1", "is no server's URL"),
        ("http://user:secret@a", "has a user or a password in it"),
    ],
)
def test_bad_addresses(url: str, message: str) -> None:
    with pytest.raises(BenchError, match=message) as found:
        Address.parse(url)
    assert "secret" not in str(found.value)
