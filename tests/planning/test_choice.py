"""What a plan says is to be started is what was simulated, in words that `octavo serve` knows."""

from __future__ import annotations

import re

import pytest

from octavo.cli.main import run
from octavo.planning.choice import Choice
from octavo.simulation.deployment import Deployment
from tests.planning.test_here import MEMORIES, here


def test_the_server_knows_every_option_and_none_that_matters_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["serve", "--help"]) == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    space = here(prefix_caches=(False,), speculations=("0.7",))
    own = space.start(space.calibrations[1], MEMORIES[0]).serve_command()
    rented = Choice(
        deployment=Deployment(
            model="llama-3-8b", hardware="l4", weight_bits=8, prefix_cache=False, speculation="0.7",
            draft_model="llama-7b", max_model_len=4096,
        )
    ).serve_command()  # fmt: skip
    for line in (own, rented):
        assert set(re.findall(r"--[a-z-]+", line)) <= known
        assert "--no-prefix-cache" in line and "--speculation " in line
    assert own.startswith(
        "octavo serve paper --threads 2 --kv-memory 8MiB --policy stall-free --max-step-tokens 512 "
    )
    assert "--speculation auto" in own and "--max-model-len 256" in own
    assert "--speculation draft:llama-7b" in rented and "--max-model-len 4096" in rented
    plain = Choice(deployment=Deployment(model="llama-3-8b", hardware="l4", weight_bits=8))
    assert plain.serve_command().endswith("--speculation off") and "no speculation" in plain.knobs
