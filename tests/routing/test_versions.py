"""A folder of policies: another version, the way back, and a gateway that takes it while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest

from octavo.cli.main import run
from octavo.errors import RoutingError
from octavo.routing.classifier import Classifier, Experts, Linear, Scale
from octavo.routing.forest import Forest
from octavo.routing.grams import BUCKETS, MET_BYTES
from octavo.routing.outcomes import OutcomeFile
from octavo.routing.policy import Header, Policy
from octavo.routing.signs import SIGNS
from octavo.routing.versioned_decider import VersionedDecider
from octavo.routing.versions import add, load, read_book, roll_back
from tests.routing.gateways import Stage, asked, played, tiers_of, whole
from tests.routing.test_recalibration import world

URLS = {"small": "http://127.0.0.1:1", "large": "http://127.0.0.1:2"}
RULES = '[decider]\npolicy = "policies"\n'


@pytest.fixture(scope="module")
def policy() -> Policy:
    """It thinks alike of all prompts: each tier is right with 0.5."""
    signs, zeros = len(SIGNS), np.zeros(1, np.int32)
    two = np.zeros(2, np.float32)
    experts = Experts(
        Scale(np.zeros(signs, np.float32), np.ones(signs, np.float32)),
        Linear(
            np.zeros(BUCKETS, np.float32), np.zeros((BUCKETS, 2), np.float32),
            np.zeros((signs, 2), np.float32), two, np.zeros(MET_BYTES, np.uint8),
        ),
        Forest(zeros, zeros.astype(np.int16), zeros.astype(np.float32), zeros, zeros,
               np.full((1, 2), 0.5, np.float32), 0),
        0, None, None,
    )  # fmt: skip
    header = Header(
        tiers=("small", "large"), prices=(0.0, 1.0), threshold=0.1, target="a test", rows=200, seed=0,
        least_known=0.0, depth=0, forest_directions=0, scores=tuple(np.linspace(-0.5, 0.5, 200).tolist()),
    )  # fmt: skip
    return Policy(header, Classifier(experts, np.ones((2, 2), np.float32), two, 0.0), np.zeros(0, np.uint64))


def test_versions_are_numbered_and_there_is_a_way_back(tmp_path: Path, policy: Policy) -> None:
    with pytest.raises(RoutingError, match="has no versions of a policy"):
        read_book(tmp_path)
    assert add(tmp_path, policy).number == 1
    assert add(tmp_path, policy.with_threshold(0.2, "more"), root=1).number == 2
    version, loaded = load(tmp_path)
    assert (version.number, version.root, loaded.header.threshold) == (2, 1, 0.2)
    assert roll_back(tmp_path).number == 1
    assert load(tmp_path)[1].header.threshold == 0.1
    with pytest.raises(RoutingError, match="no way back"):
        roll_back(tmp_path)
    with pytest.raises(RoutingError, match="no version 7; there are 1, 2"):
        roll_back(tmp_path, 7)
    assert roll_back(tmp_path, 2).number == 2
    assert add(tmp_path, policy).number == 3  # none is overwritten


def test_a_running_gateway_takes_a_new_version_and_says_which_decided(tmp_path: Path, policy: Policy) -> None:
    folder = tmp_path / "policies"
    add(folder, policy.with_threshold(2.0, "never the large one"))
    decider = VersionedDecider(tiers_of(tmp_path, URLS, rules=RULES), folder)
    assert len(decider.scores()) == 200 and decider.names() == ("small", "large")

    async def use(stage: Stage) -> None:
        prompt = "What is the integral of a tensor?"

        async def said() -> tuple[str, str]:
            headers = (await stage.ask(asked(prompt)))[1].headers()
            return headers["x-octavo-policy"], headers["x-octavo-tier"]

        assert await said() == ("1", "small")
        add(folder, policy.with_threshold(-2.0, "always the large one"), root=1)
        assert list(await asyncio.gather(said(), said())) == [("2", "large")] * 2
        roll_back(folder)
        assert await said() == ("1", "small")
        (folder / "0002.npz").write_bytes(b"damaged")
        (folder / "versions.json").write_bytes(
            msgspec.json.encode(msgspec.structs.replace(read_book(folder), current=2))
        )
        assert await said() == ("1", "small")

    played({"small": whole(), "large": whole()}, use, tmp_path, decider=decider)


def test_the_commands(tmp_path: Path, policy: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file, made = str(tmp_path / "policies"), tmp_path / "outcomes.jsonl", tmp_path / "policy.npz"
    policy.save(made)
    decided, outcomes, _, _ = world(4000, 0.2)
    lines = OutcomeFile(file)
    for one in decided.values():
        lines.add(one)
    for other in outcomes:
        lines.add(other)
    lines.close()
    assert run(["route", "versions", folder, "--add", str(made)]) == 0
    assert run(["route", "recalibrate", folder, "--outcomes", str(file), "--quality", "0.9", "--dry"]) == 0
    assert "Nothing was written" in capsys.readouterr().out
    assert run(["route", "recalibrate", folder, "--outcomes", str(file), "--quality", "0.9"]) == 0
    assert "Version 2 decides from now on" in " ".join(capsys.readouterr().out.split())
    assert run(["route", "rollback", folder]) == 0
    assert "Version 1 decides" in capsys.readouterr().out
    assert run(["route", "rollback", folder]) == 2
    assert "no way back" in capsys.readouterr().err
    assert run(["route", "recalibrate", folder, "--outcomes", str(file), "--source", "stars"]) == 2
    assert "'stars'" in capsys.readouterr().err
    assert run(["route", "check", "reask", "--json"]) == 0
    assert run(["route", "check", "drift"]) == 0
    assert run(["route", "check", "judge"]) == 2
