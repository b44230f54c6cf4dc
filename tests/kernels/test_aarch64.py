"""The NEON kernels, on an emulated ARM processor: the kernels' own tests, and the same bits as x86."""

from __future__ import annotations

import json
import platform
import subprocess

import pytest

from tests.kernels.aarch64 import REPOSITORY, TESTED, Machine, missing, prepare
from tests.kernels.answers import digests

kernels = pytest.importorskip("octavo._kernels", reason="the kernels are not built")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere the kernels are tested directly"),
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    pytest.importorskip("nanobind", reason="the build tools are not in this environment")
    return prepare(tmp_path_factory.mktemp("aarch64"))


def outcome(machine: Machine, command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPOSITORY,
        env=machine.environment(),
    )


def test_every_kernel_test_passes_on_neon(machine: Machine) -> None:
    halves = (("sampling", "pool"), ("attention", "elementwise", "linear", "pack"))  # of the time
    assert sorted([*halves[0], *halves[1]]) == sorted(TESTED)
    runs = [outcome(machine, machine.tests(*nouns, isas="scalar,neon")) for nouns in halves]
    told = [run.communicate()[0] for run in runs]
    for run, text in zip(runs, told, strict=True):
        assert run.returncode == 0, text


def test_every_answer_has_the_bits_that_it_has_on_x86(machine: Machine) -> None:
    command = machine.command("-m", "tests.kernels.answers", machine.library, "scalar,neon")
    run = outcome(machine, command)
    text = run.communicate()[0]
    assert run.returncode == 0, text
    here = digests(kernels)
    there = json.loads(text)
    for answers in (*here.values(), *there.values()):
        assert answers == here["scalar"]


def test_a_processor_without_sdot_runs_scalar(machine: Machine) -> None:
    code = f"""
from tests.kernels.other_build import use
use({str(machine.library)!r}, "scalar")
from octavo import _kernels
print(_kernels.isa())
"""
    run = outcome(machine, machine.command("-c", code, cpu="cortex-a53"))
    text = run.communicate()[0]
    assert (run.returncode, text.split()) == (0, ["scalar"]), text
