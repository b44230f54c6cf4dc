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
ARM = platform.machine() in ("aarch64", "arm64")
ARM_TOOLS = "" if ARM else "aarch64-linux-gnu-"
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
FLAGS = {
    "scalar": [],
    "avx2": AVX2,
    "avxvnni": [*AVX2, "-mavxvnni"],
    "avx512": [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"],
    "neon": ["-march=armv8.2-a+dotprod"],
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


@pytest.mark.skipif(not (X86 or ARM), reason="elsewhere there is only scalar")
@pytest.mark.parametrize("limit", ["avx2", "avxvnni", "avx512"] if X86 else ["neon"])
def test_a_limit_above_the_processor_is_no_error(limit: str) -> None:
    order = ["scalar", "avx2", "avxvnni", "avx512", "neon"]
    least_first = [isa for isa in ISAS if order.index(isa) <= order.index(limit)]
    assert with_limit(limit).stdout.split() == [least_first[-1]]


def test_an_unknown_limit_is_a_clear_error() -> None:
    done = with_limit("sse9")
    assert done.returncode != 0
    assert "instruction set 'sse9' (OCTAVO_ISA): must be one of scalar" in done.stderr


def disassembly(binary: str | Path, tools: str = "") -> str:
    command = [f"{tools}objdump", "-d", "--no-show-raw-insn", binary]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compiled(isa: str, level: str, folder: Path) -> tuple[Path, str]:
    """One instruction set's object file, and the prefix of the tools that read it."""
    tools = ARM_TOOLS if isa == "neon" else ""
    if not all(shutil.which(tools + tool) for tool in ("g++", "nm", "objdump")):
        pytest.skip(f"needs {tools}g++, nm and objdump")
    if isa in ("avx2", "avxvnni", "avx512") and not X86:
        pytest.skip("needs x86")
    options = ["-std=c++17", level, "-fno-exceptions", "-w", *FLAGS[isa]]
    source, out = REPOSITORY / "kernels" / f"isa_{isa}.cpp", folder / "isa.o"
    done = subprocess.run(
        [f"{tools}g++", *options, "-c", "-o", out, source], check=False, capture_output=True, text=True
    )
    if isa == "avxvnni" and "-mavxvnni" in done.stderr:
        pytest.skip("this compiler knows no AVX-VNNI")
    assert done.returncode == 0, done.stderr
    return out, tools


@pytest.mark.skipif(not X86 or not shutil.which("objdump"), reason="needs objdump, and x86")
def test_the_library_multiplies_with_vnni() -> None:
    """What a processor with VNNI is chosen for is really there; the form for ymm is AVX-VNNI's, not AVX-512VL's."""
    text = disassembly(kernels.__file__)
    assert len(re.findall(r"\tvpdpbusd .*%zmm", text)) > 100
    assert not re.findall(r"\tvpdpbusd .*%ymm", text), (
        "a processor with AVX-VNNI alone has no such instruction"
    )


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "avxvnni", "neon"])
def test_an_instruction_sets_object_multiplies_with_what_it_may(isa: str, tmp_path: Path) -> None:
    text = disassembly(*compiled(isa, "-O3", tmp_path))
    if isa == "neon":
        assert len(re.findall(r"\tsdot\tv", text)) > 1000
        assert not re.findall(r"\t(usdot|sudot|smmla|fmlal)\t", text), "many processors with SDOT lack these"
        return
    vnni = re.findall(r"\t(?:\{vex\} )?vpdp", text)
    assert (len(vnni) > 1000) == (isa == "avxvnni")
    assert set(vnni) <= {"\t{vex} vpdp"}, "a processor with AVX-VNNI alone has no EVEX form"
    assert isa == "avxvnni" or not vnni, "many processors with AVX2 lack VNNI"
    assert not re.findall(r"%zmm|%[xy]mm(?:1[6-9]|[23]\d)\b|%k\d", text)


@pytest.mark.slow
@pytest.mark.parametrize("isa", FLAGS)
def test_an_instruction_sets_object_defines_its_table_and_nothing_else(isa: str, tmp_path: Path) -> None:
    """A weak symbol could be chosen for another set's path: an illegal instruction on a lesser processor.

    Unoptimised, so that what optimisation would hide by inlining is seen too.
    """
    binary, tools = compiled(isa, "-O0", tmp_path)
    symbols = subprocess.run(
        [f"{tools}nm", "-C", "--defined-only", "--extern-only", binary],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert [line.split(maxsplit=1)[1] for line in symbols.splitlines()] == [f"T octavo::kernels_{isa}()"]
