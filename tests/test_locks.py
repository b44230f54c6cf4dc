"""The lists of packages in locks/ fit pyproject.toml, and name everything by hash and nothing by address."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import REPOSITORY

LOCKS = REPOSITORY / "locks"
LINE = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+?))? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


class Locked(dict[str, list[Requirement]]):
    """By name, its pinned versions: several where they differ between Pythons."""

    def has(self, wanted: Requirement) -> bool:
        """Every version that is locked is in the range."""
        found = self.get(canonicalize_name(wanted.name), [])
        return bool(found) and all(
            wanted.specifier.contains(next(iter(one.specifier)).version, prereleases=True) for one in found
        )


def locked(name: str) -> Locked:
    found = Locked()
    for line in (LOCKS / f"{name}.txt").read_text().splitlines():
        if match := LINE.fullmatch(line):
            marker = f" ; {match['marker']}" if match["marker"] else ""
            one = Requirement(f"{match['name']}=={match['version']}{marker}")
            found.setdefault(one.name, []).append(one)
    return found


def project() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def listed(*extras: str) -> list[Requirement]:
    """What pyproject.toml asks for, with these extras and those that they name."""
    known = project()["project"]
    found = []
    for text in (
        *known["dependencies"],
        *(one for name in extras for one in known["optional-dependencies"][name]),
    ):
        one = Requirement(text)
        found += listed(*one.extras) if one.name == known["name"] else [one]
    return found


def asked() -> dict[str, list[Requirement]]:
    """By list, what must be in it."""
    build = list(map(Requirement, project()["build-system"]["requires"]))
    extras = project()["project"]["optional-dependencies"].keys()

    def lines(path: Path) -> list[Requirement]:
        return [Requirement(line) for line in path.read_text().splitlines() if line and line[0] != "#"]

    return {
        "base": listed(),
        "extras": listed(*(extras - {"dev"})),
        "dev": [*listed(*extras), *build, *lines(LOCKS / "cmake.in")],
        "build": build,
        "cmake": lines(LOCKS / "cmake.in"),
        "tools": lines(LOCKS / "tools.in"),
        "clients": lines(REPOSITORY / "tests" / "clients" / "requirements.txt"),
    }


def test_there_is_a_list_for_each_use_and_no_other() -> None:
    assert {path.stem for path in LOCKS.glob("*.txt")} == asked().keys()


@pytest.mark.parametrize("name", asked())
def test_what_is_asked_for_is_locked_within_its_range(name: str) -> None:
    found = locked(name)
    assert [str(one) for one in asked()[name] if not found.has(one)] == [], "run make lock"


@pytest.mark.parametrize("name", asked())
def test_every_line_has_hashes_and_none_an_address(name: str) -> None:
    text = (LOCKS / f"{name}.txt").read_text()
    assert "://" not in text
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.lstrip().startswith("#"):
            continue
        assert LINE.fullmatch(line) or HASH.fullmatch(line), line
        if line.endswith("\\"):
            assert HASH.fullmatch(lines[number + 1]), line
    assert sum(map(len, locked(name).values())) == sum(bool(LINE.fullmatch(line)) for line in lines)


@pytest.mark.parametrize("name", ["base", "extras", "build", "cmake"])
def test_a_smaller_list_has_the_versions_of_the_whole(name: str) -> None:
    whole, part = locked("dev"), locked(name)
    assert part
    assert {one: part[one] for one in part} == {one: whole[one] for one in part}


@pytest.mark.parametrize("name", ["base", "dev"])
def test_what_the_packages_need_is_in_the_list_and_nothing_else(name: str) -> None:
    """By what the installed ones say of themselves; those of other systems and Pythons are not there to be asked."""
    lock = locked(name)
    seen = set[tuple[str, frozenset[str]]]()
    todo = list(asked()[name])
    while todo:
        one = todo.pop()
        key = canonicalize_name(one.name)
        if (key, frozenset(one.extras)) in seen:
            continue
        seen.add((key, frozenset(one.extras)))
        assert lock.has(one), f"{one} is not locked within its range: run make lock"
        try:
            further = list(map(Requirement, requires(key) or []))
        except PackageNotFoundError:
            assert key == "cmake"  # the system has one
            continue
        extras = one.extras or {""}
        todo += [
            each
            for each in further
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    needed = {key for key, _ in seen}
    here = {
        key for key, ones in lock.items() if any(one.marker is None or one.marker.evaluate() for one in ones)
    }
    assert here <= needed, "run make lock"
