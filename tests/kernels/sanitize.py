"""The kernels' tests on builds that watch memory, undefined behaviour and races. By hand: it takes some minutes.

make sanitize    or    python -m tests.kernels.sanitize [address,undefined] [thread]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from octavo.backends.native import load_kernels
from tests.kernels.aarch64 import REPOSITORY
from tests.kernels.test_emulated import build

NATIVE = [f"tests/backends/test_{noun}.py" for noun in ("native", "counters", "bitwise")]
TESTS = {"address,undefined": ["tests/kernels", *NATIVE], "thread": ["tests/kernels/test_pool.py", *NATIVE]}
RUNTIMES = {"address,undefined": ("asan", "ubsan"), "thread": ("tsan",)}
DISASSEMBLY = "tests/kernels/test_isa.py::test_the_library_multiplies_with_vnni"
"""Looks at the instructions of the library, of which a watched one has others."""
OPTIONS = {
    # Python itself never frees some of its memory.
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:check_initialization_order=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


def runtime(name: str) -> str:
    """The path of GCC's library. It must be loaded before Python, which was built without it."""
    found = subprocess.run(
        ["g++", f"-print-file-name=lib{name}.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        sys.exit(f"error: g++ has no lib{name}.so; install lib{name} of its version")
    return str(Path(found).resolve())


def run(kind: str) -> int:
    """pytest's exit code on a build with the sanitizers `kind`."""
    with tempfile.TemporaryDirectory(prefix="octavo-sanitize-") as folder:
        print(f"{kind}: compiling …", flush=True)
        library = build(Path(folder), f"-DOCTAVO_SANITIZE={kind}")
        # Where the system spreads addresses wide, the thread sanitizer finds its own place taken.
        fixed = ["setarch", "-R"] if shutil.which("setarch") else []
        command = [*fixed, sys.executable, "tests/kernels/other_build.py", str(library)]
        command += [",".join(load_kernels().ops.isas()), "-q", "-m", "not slow", "-p", "no:cacheprovider"]
        command += ["-o", "faulthandler_timeout=0", "--deselect", DISASSEMBLY, *TESTS[kind]]
        preload = " ".join(runtime(name) for name in RUNTIMES[kind])
        environment = os.environ | OPTIONS | {"LD_PRELOAD": preload, "PYTHONMALLOC": "malloc"}
        return subprocess.run(command, check=False, cwd=REPOSITORY, env=environment).returncode


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", help=f"default: {' '.join(TESTS)}")
    kinds = parser.parse_args().kinds or list(TESTS)
    if unknown := set(kinds) - set(TESTS):
        parser.error(f"unknown sanitizers {', '.join(unknown)}: known are {', '.join(TESTS)}")
    failed = [kind for kind in kinds if run(kind)]
    print(f"failed: {', '.join(failed)}" if failed else "clean")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
