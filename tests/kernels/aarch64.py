"""An ARM machine in a folder, on an x86 one: QEMU's user mode, Debian's Python, and the kernels cross-compiled.

Nothing is installed: packages of the same release as this system's are unpacked into the folder. By hand:

    python -m tests.kernels.aarch64 FOLDER [--cpu cortex-a53] [pytest's arguments]

makes what the folder lacks (a few minutes the first time; 300 MB) and runs the kernels' tests there. Needs qemu-user,
g++-aarch64-linux-gnu, cmake, and a system with apt.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TESTED = ("attention", "elementwise", "linear", "pack", "sampling", "pool")
CHILDREN = "not has_no_processor and not affinity_mask"
"""Tests that start Python again by itself, which the system's kernel cannot run."""
NEEDED = ("numpy", "msgspec", "gguf", "hypothesis", "pytest", "pytest-asyncio")


def missing() -> list[str]:
    """Tools that this system lacks."""
    tools = ("qemu-aarch64", "aarch64-linux-gnu-g++", "cmake", "apt-get", "dpkg-deb")
    return [tool for tool in tools if not shutil.which(tool)]


def call(*command: str | Path, folder: Path | None = None) -> str:
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


@dataclass(frozen=True)
class Machine:
    """What `prepare` made."""

    root: Path
    site: Path
    library: Path

    def command(self, *arguments: str | Path, cpu: str = "max") -> list[str]:
        """To run its Python; QEMU's `max` has every instruction, cortex-a53 has no SDOT."""
        interpreter = ["qemu-aarch64", "-cpu", cpu, "-L", self.root, self.root / "usr/bin/python3"]
        return [*map(str, [*interpreter, *arguments])]

    def environment(self) -> dict[str, str]:
        path = [self.site, REPOSITORY / "src", REPOSITORY]
        kept = {name: value for name, value in os.environ.items() if name != "OCTAVO_ISA"}
        return kept | {"PYTHONPATH": ":".join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"}

    def tests(self, *nouns: str, isas: str, cpu: str = "max", more: tuple[str, ...] = ()) -> list[str]:
        """The command that runs tests of this folder there."""
        here = Path(__file__).parent
        files = [here / f"test_{noun}.py" for noun in nouns]
        options = ["-q", "-m", "not slow", "-k", CHILDREN, "-p", "no:cacheprovider", *more]
        return self.command(here / "other_build.py", self.library, isas, *options, *files, cpu=cpu)


def unpack_python(folder: Path) -> Path:
    """Debian's Python for ARM and its headers. A state of its own keeps apt from the system's."""
    root, state = folder / "root", folder / "apt"
    (state / "lists/partial").mkdir(parents=True)
    (state / "archives/partial").mkdir(parents=True)
    (state / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State::status": state / "status",
        "Dir::State::lists": state / "lists",
        "Dir::Cache": state,
        "Dir::Cache::archives": state / "archives",
        "Debug::NoLocking": "1",
    }
    apt = [
        "apt-get",
        "-qq",
        *(word for name, value in settings.items() for word in ("-o", f"{name}={value}")),
    ]
    call(*apt, "update")
    call(*apt, "install", "-y", "--no-install-recommends", "--download-only", "python3", "libstdc++6")
    for package in (state / "archives").glob("*.deb"):
        call("dpkg-deb", "-x", package, root)
    version = (root / "usr/bin/python3").readlink().name
    call(*apt, "download", f"lib{version}-dev", folder=state)
    call("dpkg-deb", "-x", next(state.glob("lib*-dev_*.deb")), root)
    return root


def prepare(folder: Path) -> Machine:
    root, site, build = folder / "root", folder / "site", folder / "build"
    if not root.exists():
        unpack_python(folder)
    version = (root / "usr/bin/python3").readlink().name  # python3.11
    if not site.exists():
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
        known = [
            *project["dependencies"],
            *(r for rs in project["optional-dependencies"].values() for r in rs),
        ]
        wanted = [r for r in known if re.split(r"[^\w-]", r)[0] in NEEDED]
        kinds = ["manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 29))]
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        pip += [
            "--target",
            str(site),
            "--only-binary=:all:",
            "--python-version",
            version.removeprefix("python"),
        ]
        call(*pip, *(word for kind in kinds for word in ("--platform", kind)), *wanted)
    nanobind = call(sys.executable, "-m", "nanobind", "--cmake_dir").strip()
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": "aarch64-linux-gnu-g++",
        "CMAKE_CXX_FLAGS": f'-idirafter "{root}/usr/include"',
        "Python_EXECUTABLE": sys.executable,
        "Python_INCLUDE_DIR": root / "usr/include" / version,
        "nanobind_DIR": nanobind,
    }
    call("cmake", "-S", REPOSITORY, "-B", build, *(f"-D{name}={value}" for name, value in options.items()))
    call("cmake", "--build", build, "--target", "_kernels", "--parallel", "2")
    return Machine(root, site, next(build.glob("_kernels*.so")))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the kernels' tests on an emulated ARM processor.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cpu", default="max", help="as QEMU names it; cortex-a53 has no SDOT")
    arguments, more = parser.parse_known_args()
    if lacking := missing():
        sys.exit(f"error: {', '.join(lacking)} must be installed first")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    machine = prepare(arguments.folder.resolve())
    isas = "scalar" if arguments.cpu == "cortex-a53" else "scalar,neon"
    command = machine.tests(*TESTED, isas=isas, cpu=arguments.cpu, more=tuple(more))
    return subprocess.run(command, check=False, cwd=REPOSITORY, env=machine.environment()).returncode


if __name__ == "__main__":
    sys.exit(main())
