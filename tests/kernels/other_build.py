"""Runs pytest on another build of the kernels than the installed one. Knows no kernel.

python tests/kernels/other_build.py LIBRARY INSTRUCTION_SETS [pytest's arguments]
"""

from __future__ import annotations

import importlib.util
import sys


def use(library: str, isas: str) -> None:
    """`library` stands for the installed module from now on; it must run `isas` ("scalar,avx2"), no more, no less."""
    spec = importlib.util.spec_from_file_location("octavo._kernels", library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["octavo._kernels"] = module
    spec.loader.exec_module(module)
    import octavo

    setattr(octavo, "_kernels", module)  # noqa: B010  mypy knows no such attribute before the package is installed
    assert module.ops.isas() == isas.split(","), module.ops.isas()


if __name__ == "__main__":
    import pytest

    use(*sys.argv[1:3])
    sys.exit(pytest.main(sys.argv[3:]))
