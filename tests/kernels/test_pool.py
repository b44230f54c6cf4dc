"""The thread pool's contract, and how many threads there may be."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

kernels = pytest.importorskip("octavo._kernels", reason="the kernels are not built")


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_item_is_claimed_once_and_a_barrier_shows_it_to_all(threads: int) -> None:
    phases, items, runs = 4, 100, 25
    claimed, seen, complete, joined, _ = kernels.ops.drill(threads, phases, items, runs)
    assert claimed == [phases * runs] * items
    assert (
        phases * runs <= seen <= threads * phases * runs
    )  # worker 0 sees all, the others what they wake for
    assert complete == seen
    assert runs <= joined <= threads * runs


def test_runs_without_work_or_phases_end() -> None:
    assert kernels.ops.drill(3, 0, 0, 1000)[0] == []
    assert kernels.ops.drill(3, 10, 0, 10)[1] >= 100


@pytest.mark.skipif(sys.platform != "linux", reason="needs sched_setaffinity")
def test_a_run_does_not_wait_for_a_worker_that_has_no_processor() -> None:
    """All workers on one processor: whoever runs does the work, and nobody's part is left undone."""
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from octavo._kernels import ops; claimed, seen, complete, joined, exact = ops.drill(8, 20, 10, 50);"
        "print(claimed == [1000] * 10, seen == complete, joined == exact)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "True True True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="fesetround by its number")
def test_workers_round_to_nearest_whatever_the_caller_does_and_the_caller_keeps_its_mode() -> None:
    libm = ctypes.CDLL("libm.so.6")
    nearest, downward = 0, 0x400 if os.uname().machine == "x86_64" else 0x800000
    assert libm.fesetround(downward) == 0
    try:
        joined, exact = kernels.ops.drill(2, 1, 4, 50)[3:]
        kept = libm.fegetround()
    finally:
        libm.fesetround(nearest)
    assert joined >= 50
    assert (exact, kept) == (joined, downward)


Files = dict[str, str]


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "nonsense\n"}, None),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "900000 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "5:memory:/m\n4:cpu,cpuacct:/docker/x\n0::/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/cgroup": "no colons\n:\n"}, None),
    ],
)
def test_the_quota_of_control_groups_limits_the_threads(
    tmp_path: Path, files: Files, quota: int | None
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    bound = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    assert kernels.default_threads(f"{tmp_path}/") == (quota or bound)


@pytest.mark.skipif(sys.platform != "linux", reason="needs sched_setaffinity")
def test_the_affinity_mask_limits_the_threads() -> None:
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from octavo import _kernels; print(_kernels.default_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "1\n"
