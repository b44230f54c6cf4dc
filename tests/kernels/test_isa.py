"""Instruction sets: which one is chosen, and that none can leak into another's path."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

kernels = pytest.importorskip("octavo._kernels", reason="the kernels are not built")

REPOSITORY = Path(__file__).resolve().parents[2]
ISAS: list[str] = kernels.ops.isas()
X86 = platform.machine() in ("x86_64", "AMD64")
FLAGS = {
    "scalar": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-mavx512vnni",
    ],
}


def with_limit(limit: str) -> subprocess.CompletedProcess[str]:
    code = "from octavo import _kernels; print(_kernels.isa())"
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"OCTAVO_ISA": limit},
    )


def test_the_best_set_is_chosen_and_the_variable_lowers_it() -> None:
    assert with_limit("").stdout.split() == [ISAS[-1]]
    for isa in ISAS:
        assert with_limit(isa).stdout.split() == [isa]


@pytest.mark.skipif(not X86, reason="elsewhere there is only scalar")
def test_a_limit_above_the_processor_is_no_error() -> None:
    assert with_limit("avx512").stdout.split() == [ISAS[-1]]


def test_an_unknown_limit_is_a_clear_error() -> None:
    done = with_limit("sse9")
    assert done.returncode != 0
    assert "instruction set 'sse9' (OCTAVO_ISA): must be one of scalar" in done.stderr


@pytest.mark.skipif(not X86 or not shutil.which("objdump"), reason="needs objdump, and x86")
def test_the_library_multiplies_with_vnni() -> None:
    """What a processor with AVX-512 VNNI is chosen for is really there, and only there."""
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", kernels.__file__], check=True, capture_output=True, text=True
    ).stdout
    assert len(re.findall(r"\tvpdpbusd .*%zmm", text)) > 100
    assert not re.findall(r"\tvpdpbusd .*%ymm", text), (
        "VNNI in the AVX2 path: many processors with AVX2 lack it"
    )


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++") or not shutil.which("nm"), reason="needs g++ and nm")
@pytest.mark.parametrize("isa", list(FLAGS) if X86 else ["scalar"])
def test_an_instruction_sets_object_defines_its_table_and_nothing_else(isa: str, tmp_path: Path) -> None:
    """A weak symbol could be chosen for another set's path: an illegal instruction on a lesser processor.

    Unoptimised, so that what optimisation would hide by inlining is seen too.
    """
    source, compiled = REPOSITORY / "kernels" / f"isa_{isa}.cpp", tmp_path / "isa.o"
    options = ["-std=c++17", "-O0", "-fno-exceptions", "-w", *FLAGS[isa]]
    subprocess.run(["g++", *options, "-c", "-o", compiled, source], check=True)
    symbols = subprocess.run(
        ["nm", "-C", "--defined-only", "--extern-only", compiled], check=True, capture_output=True, text=True
    ).stdout
    assert [line.split(maxsplit=1)[1] for line in symbols.splitlines()] == [f"T octavo::kernels_{isa}()"]
