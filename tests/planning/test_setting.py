"""What differs from a server by one option, and that each of them is one that the server takes."""

from __future__ import annotations

import msgspec

from octavo.planning.setting import knobs, setting_of
from tests.planning.watching import SETTING, server


def options(**changed: object) -> dict[str, str]:
    one = server(SETTING, **changed)
    return {knob.option: knob.name for knob in knobs(one, 0.02, guessed=True)}


def test_each_option_differs_in_one_thing_and_makes_a_scheduler() -> None:
    here = setting_of(server(SETTING))
    for knob in knobs(server(SETTING), 0.02, guessed=True):
        fields = [
            name for name in here.__struct_fields__ if getattr(here, name) != getattr(knob.setting, name)
        ]
        assert len(fields) == 1, knob
        assert knob.setting.config().limits.max_slots == knob.setting.max_running


def test_only_what_the_server_would_take() -> None:
    found = options()
    assert "--max-step-tokens 64" in found and "--max-running 128" in found and "--tbt-target 30ms" in found
    assert "--speculation off" not in found and "--allocator paged" not in found
    assert "--max-step-tokens 8" not in options(
        max_step_tokens=32
    )  # fewer than a block has, and than may run
    assert "--max-running 512" not in options(max_running=128)
    assert options(policy="prefill-first")["--policy stall-free"] == "policy"
    assert not any(name == "TBT target" for name in options(policy="continuous").values())
    assert {"--speculation off", "--prefix-cache"} <= set(options(speculation="auto", prefix_cache=False))


def test_memory_grows_as_far_as_there_is_some() -> None:
    def memory(**changed: object) -> list[str]:
        few = msgspec.structs.replace(SETTING, num_blocks=64, block_size=16)
        one = server(few, block_bytes=1 << 20, **changed)
        return [knob.option for knob in knobs(one, 0.02, guessed=False) if knob.name.startswith("K and V")]

    assert memory() == ["--kv-memory 128MiB", "--kv-memory 256MiB", "--kv-memory 512MiB"]
    assert memory(free_memory_bytes=100 << 20) == ["--kv-memory 128MiB"]
    assert memory(memory_utilization=0.4) == ["--memory-utilization 0.8"]
    assert memory(max_running=1) == []  # it has all that it can use
