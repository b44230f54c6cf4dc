"""Kernels for instructions that this processor lacks, and the pool where a race would be seen: other builds."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.aarch64 import REPOSITORY, TESTED

kernels = pytest.importorskip("octavo._kernels", reason="the kernels are not built")

SIMDE = Path("/usr/include/simde/x86/avx512.h")

EMULATED = [noun for noun in TESTED if noun != "pool"]
X86_ISAS = ["scalar", "avx2", "avxvnni", "avx512"]


def build(folder: Path, *options: str) -> Path:
    """Configures and compiles the extension module into `folder`."""
    pytest.importorskip("nanobind", reason="the build tools are not in this environment")
    nanobind = subprocess.run(
        [sys.executable, "-m", "nanobind", "--cmake_dir"], check=True, capture_output=True, text=True
    ).stdout.strip()
    places = [f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind}"]
    for command in (
        ["cmake", "-S", REPOSITORY, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", *places, *options],
        ["cmake", "--build", folder, "--target", "_kernels", "--parallel", "2"],
    ):
        done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("_kernels*.so"))


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX is x86")
@pytest.mark.skipif(kernels.ops.isas() == X86_ISAS, reason="the real kernels are tested directly")
@pytest.mark.skipif(not SIMDE.exists() or not shutil.which("cmake"), reason="needs cmake and libsimde-dev")
def test_every_kernel_test_passes_on_emulated_avxvnni_and_avx512(tmp_path: Path) -> None:
    library = build(tmp_path, "-DOCTAVO_EMULATE=ON")
    tests = [REPOSITORY / "tests" / "kernels" / f"test_{noun}.py" for noun in EMULATED]
    command = [
        sys.executable,
        REPOSITORY / "tests" / "kernels" / "other_build.py",
        library,
        ",".join(X86_ISAS),
    ]
    command += ["-q", "-m", "not slow", "-p", "no:cacheprovider", *tests]
    environment = {name: value for name, value in os.environ.items() if name != "OCTAVO_ISA"}
    done = subprocess.run(
        [*map(str, command)], check=False, capture_output=True, text=True, cwd=REPOSITORY, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_the_pool_has_no_race_that_the_thread_sanitizer_sees(tmp_path: Path) -> None:
    program = tmp_path / "race"
    sources = [REPOSITORY / "kernels" / "pool.cpp", Path(__file__).with_name("race.cpp")]
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{REPOSITORY / 'kernels'}"]
    built = subprocess.run(
        ["g++", *flags, "-o", program, *sources], check=False, capture_output=True, text=True
    )
    if "tsan" in built.stderr:
        pytest.skip("the thread sanitizer is not installed")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program], check=False, capture_output=True, text=True)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    assert done.returncode == 0, done.stderr
