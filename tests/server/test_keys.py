"""Which keys are known, and what they are called: the same whatever other keys there are and however one was given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.server.access import Access, Limits, digest_of, keys_of
from octavo.server.auth import owner_of, reads_of
from octavo.server.key_file import KeyEntry, add_entry
from octavo.server.keys import ALLOWANCE, CACHE_SCOPE, OWNER, READS, TENANT, Keys

NAMES = (TENANT, OWNER, CACHE_SCOPE)


def known(access: Access) -> Keys:
    return Keys(access, keys_of(access))


def given(*keys: str) -> Keys:
    return known(Access(api_keys=keys))


def identity(keys: Keys, key: str) -> dict[str, Any]:
    found = keys.identity_of(key.encode())
    assert found is not None
    return found


def write(path: Path, *keys: str) -> str:
    path.unlink(missing_ok=True)
    for key in keys:
        add_entry(path, key, KeyEntry(hash=f"sha256:{digest_of(key.encode()).hex()}"))
    return str(path)


def test_a_key_has_the_same_names_however_it_was_given(tmp_path: Path) -> None:
    file = write(tmp_path / "keys.toml", "three", "two")
    ways = [
        given("two"),
        given("one", "two"),
        given("two", "one"),
        known(Access(key_file=file)),
        known(Access(api_keys=("one", "two"), key_file=file)),
    ]
    [names] = {tuple(identity(keys, "two")[name] for name in NAMES) for keys in ways}
    other = identity(given("one", "two"), "one")
    assert not {other[name] for name in NAMES} & set(names)
    assert len({*names}) == 3 and not any("two" in name for name in names)


def test_unknown_keys_have_none() -> None:
    keys = given("one", "two")
    for wrong in (b"", b"on", b"One", b"one ", b"three", b"\xff"):
        assert keys.identity_of(wrong) is None
    assert Keys().identity_of(b"one") is None


def test_whose_stored_things_a_request_may_see(tmp_path: Path) -> None:
    assert (owner_of({}), reads_of({})) == ("", "")  # a server without keys: what nobody owns
    alone = identity(given("one"), "one")
    assert owner_of(alone) and reads_of(alone) is None  # the only key there is: everything
    one = identity(given("one", "two"), "one")
    assert owner_of(one) == owner_of(alone) == reads_of(one)
    filed = identity(known(Access(key_file=write(tmp_path / "keys.toml", "one"))), "one")
    assert reads_of(filed) == owner_of(
        one
    )  # the last one of a file does not inherit from those that are gone


def test_a_cache_may_be_shared() -> None:
    assert CACHE_SCOPE not in identity(known(Access(api_keys=("one", "two"), cache_per_key=False)), "one")


def test_other_keys_come_and_go_and_one_that_stays_keeps_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"

    def access(keys: Sequence[str], most: int) -> Access:
        return Access(key_file=write(path, *keys), each_key=Limits(max_requests=most))

    first = access(["one", "two"], 1)
    keys = known(first)
    identities, before = keys.identities, identity(keys, "two")
    gone = identity(keys, "one")
    before[ALLOWANCE].open = 7
    second = access(["two", "three"], 2)
    keys.change(second, keys_of(second))
    after = identity(keys, "two")
    assert {name: after[name] for name in (*NAMES, READS)} == {name: before[name] for name in (*NAMES, READS)}
    assert after[ALLOWANCE] is before[ALLOWANCE] and after[ALLOWANCE].open == 7
    assert after[ALLOWANCE].key.limits.max_requests == 2
    assert [keys.identity_of(key) is None for key in (b"one", b"three")] == [True, False]
    assert keys.identities is identities and gone[OWNER] not in identities and after[OWNER] in identities


def test_a_server_without_keys_knows_nobody() -> None:
    keys = Keys()
    assert (keys.keyed, keys.identities) == (False, {"": {}})
    access = Access(api_keys=("one",))
    keys.change(access, keys_of(access))
    assert keys.keyed and "" not in keys.identities


def test_a_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.touch()
    keys = known(Access(key_file=str(path)))
    assert keys.keyed and not keys.identities


def test_what_the_file_says_of_a_key_holds(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    add_entry(path, "ann", KeyEntry(hash=f"sha256:{digest_of(b'one').hex()}", max_requests=3, profile="rag"))
    [key] = keys_of(Access(api_keys=("one",), key_profiles={0: "chat"}, key_file=str(path)))
    assert (key.name, key.profile, key.limits) == ("ann", "rag", Limits(max_requests=3))
    [key] = keys_of(Access(key_file=str(path), each_key=Limits(max_requests=9, tokens_per_minute=5)))
    assert key.limits == Limits(max_requests=3, tokens_per_minute=5)


def test_limits_of_keys_want_keys() -> None:
    with pytest.raises(Exception, match="the server has none"):
        keys_of(Access(each_key=Limits(max_requests=1)))


def test_no_settings_show_a_key() -> None:
    assert "secret" not in repr(Access(api_keys=("secret",))) + repr(keys_of(Access(api_keys=("secret",))))
