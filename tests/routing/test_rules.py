"""Who may answer, and which tier a rule names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.errors import InvalidParameter
from octavo.protocol.errors import RequestRefused
from octavo.routing.rules import Choice, choose
from octavo.routing.tiers import Tiers
from tests.routing.gateways import asked, tiers_of

URLS = {"small": "http://127.0.0.1:1", "large": "http://127.0.0.1:2", "hosted": "https://api.example.com"}
MORE = {
    "small": "context = 1000",
    "large": 'abilities = ["tools"]\ncontext = 10000',
    "hosted": 'abilities = ["tools", "json", "images"]',
}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]


def chosen(tmp_path: Path, rules: str = "", general: str = "", **request: Any) -> Choice:
    tiers: Tiers = tiers_of(tmp_path, URLS, more=MORE, rules=rules, general=general)
    return choose(asked(**request), tiers)


def able(choice: Choice) -> list[str]:
    return [tier.name for tier in choice.able]


def test_nothing_is_settled_of_a_plain_request(tmp_path: Path) -> None:
    choice = chosen(tmp_path)
    assert able(choice) == ["small", "large", "hosted"]
    assert choice.tier is None


@pytest.mark.parametrize(
    ("request_", "who"),
    [
        ({"tools": TOOLS}, ["large", "hosted"]),
        ({"tools": []}, ["small", "large", "hosted"]),
        ({"response_format": {"type": "json_object"}}, ["hosted"]),
        ({"response_format": {"type": "text"}}, ["small", "large", "hosted"]),
        ({"messages": IMAGE}, ["hosted"]),
        ({"said": "word " * 2000}, ["large", "hosted"]),
        ({"max_tokens": 5000}, ["large", "hosted"]),
        ({"headers": {"x-octavo-local-only": "true"}}, ["small", "large"]),
        ({"headers": {"x-octavo-local-only": "no"}}, ["small", "large", "hosted"]),
        ({"headers": {"x-octavo-local-only": "true"}, "tools": TOOLS}, ["large"]),
    ],
)
def test_who_is_able(tmp_path: Path, request_: dict[str, Any], who: list[str]) -> None:
    assert able(chosen(tmp_path, **request_)) == who


def test_the_last_that_is_able_is_chosen(tmp_path: Path) -> None:
    choice = chosen(tmp_path, messages=IMAGE)
    assert choice.tier is not None and (choice.tier.name, choice.reason) == ("hosted", "only able tier")


def test_a_header_or_the_model_names_a_tier(tmp_path: Path) -> None:
    requests: tuple[dict[str, Any], ...] = ({"headers": {"x-octavo-tier": "large"}}, {"model": "large"})
    for request in requests:
        choice = chosen(tmp_path, **request)
        assert choice.tier is not None and choice.tier.name == "large"
    with pytest.raises(InvalidParameter, match=r"'larg', which is no tier; did you mean large\?"):
        chosen(tmp_path, headers={"x-octavo-tier": "larg"})
    with pytest.raises(RequestRefused, match=r"'hostd' is not served here; did you mean hosted\?") as caught:
        chosen(tmp_path, model="hostd")
    assert caught.value.status == 404
    with pytest.raises(InvalidParameter, match="The tier small cannot take this request: it has no tools"):
        chosen(tmp_path, model="small", tools=TOOLS)
    assert chosen(tmp_path, model="gpt-4", general='names = ["auto", "gpt-4"]').tier is None


def test_a_private_request_that_no_tier_of_ours_can_take_stays_here(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidParameter, match=r"No tier can take this request: small .*; hosted is not local"
    ):
        chosen(tmp_path, messages=IMAGE, headers={"x-octavo-local-only": "1"})
    with pytest.raises(InvalidParameter, match="hosted cannot take this request: it is not local"):
        chosen(tmp_path, model="hosted", general="local_only = true")


@pytest.mark.parametrize(
    ("condition", "request_"),
    [
        ('headers = { "x-team" = "law" }', {"headers": {"x-team": "law"}}),
        ('headers = { "x-team" = "*" }', {"headers": {"x-team": "any"}}),
        ("longer_than = 100", {"said": "word " * 100}),
        ("shorter_than = 100\ntools = false", {"said": "word"}),
        ("tools = true", {"tools": TOOLS}),
        (
            'languages = ["de"]',
            {"said": "Was ist die Hauptstadt von Frankreich, und wie viele leben dort?"},
        ),
    ],
)
def test_a_rule_names_a_tier_where_all_of_it_holds(
    tmp_path: Path, condition: str, request_: dict[str, Any]
) -> None:
    rules = f'[[rules]]\n{condition}\ntier = "large"\n'
    choice = chosen(tmp_path, rules, **request_)
    assert choice.tier is not None and (choice.tier.name, choice.reason) == ("large", "rule 1")
    other: dict[str, Any] = {"said": "word " * 100, "tools": TOOLS} if "shorter" in condition else {}
    assert chosen(tmp_path, rules, **other).tier is None


def test_the_first_rule_that_holds_and_can_be_kept_wins(tmp_path: Path) -> None:
    rules = """
[[rules]]
tools = true
tier = "small"
[[rules]]
tools = true
local_only = true
[[rules]]
tools = true
tier = "hosted"
[[rules]]
shorter_than = 500
tier = "large"
"""
    choice = chosen(tmp_path, rules, tools=TOOLS)
    assert able(choice) == ["large"]
    assert choice.tier is not None and (choice.tier.name, choice.reason) == ("large", "rule 4")


def test_a_rule_for_a_key(tmp_path: Path) -> None:
    from octavo.routing.rules import Rule

    rule = Rule(keys=("law",), tier="large")
    assert rule.holds(asked(key="law"))
    assert not rule.holds(asked(key="other"))
    assert not rule.holds(asked())
