"""Settings that are read again: requests that run go on, what stands still waits, and one line tells what changed."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from octavo.errors import SettingsError
from octavo.server.access import Access, Limits, digest_of, keys_of
from octavo.server.admission import Admission
from octavo.server.key_file import KeyEntry, add_entry, remove_entry
from octavo.server.keys import Keys
from octavo.server.reload import Reload
from tests.server.conftest import Server


def entry(key: str, **fields: Any) -> KeyEntry:
    return KeyEntry(hash=f"sha256:{digest_of(key.encode()).hex()}", **fields)


class Settings:
    """What is in force, and what would be read."""

    def __init__(self, access: Access) -> None:
        self.keys = Keys()
        self.now: Callable[[], Access] = lambda: access
        admission = cast(Admission, type("Gate", (), {"change": lambda self, access: None})())
        self.reload = Reload(self.keys, admission, access, keys_of(access), self._read)

    def _read(self) -> Access:
        return self.now()

    async def read(self, access: Access) -> None:
        self.now = lambda: access
        self.reload.begin()
        await self.settled()

    async def settled(self) -> None:
        assert self.reload._task is not None
        await self.reload._task


async def test_one_line_tells_what_changed_by_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys.toml"
    for key in ("ann", "bob", "cat"):
        add_entry(file, key, entry(key))
    access = Access(key_file=str(file), max_queued_requests=4)
    settings = Settings(access)
    remove_entry(file, "bob")
    remove_entry(file, "cat")
    add_entry(file, "dan", entry("dan"))
    add_entry(file, "eve", entry("cat", max_requests=2, profile="batch"))
    with caplog.at_level(logging.WARNING):
        await settings.read(msgspec.structs.replace(access, max_queued_tokens=9, metrics_without_key=True))
    [record] = caplog.records
    assert record.getMessage() == (
        "settings read again: keys added: dan; removed: bob; key cat: name cat → eve, profile none → batch, "
        "max-requests none → 2; max-queued-tokens none → 9; metrics-without-key False → True"
    )
    caplog.clear()
    await settings.read(msgspec.structs.replace(access, max_queued_tokens=9, metrics_without_key=True))
    assert caplog.messages == ["settings read again: nothing has changed"]
    assert settings.keys.metrics_without_key


async def test_what_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(Access(api_keys=("one", "two")))
    before = dict(settings.keys.identities)

    def refuse(error: Exception) -> Callable[[], Access]:
        def raising() -> Access:
            raise error

        return raising

    for now in (
        refuse(SettingsError("nonsense is no option.")),
        refuse(PermissionError(13, "Permission denied", "/a/file")),
        refuse(LookupError("a fault of ours")),
        lambda: Access(api_keys=("",)),
        lambda: Access(key_file="/no/such/file"),
        Access,
    ):
        caplog.clear()
        settings.now = now
        settings.reload.begin()
        await settings.settled()
        [record] = caplog.records
        assert record.levelno == logging.ERROR and "the settings stay as they are" in record.getMessage()
        assert settings.keys.identities == before and settings.keys.keyed


async def test_who_asks_while_it_reads_gets_the_newest(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(Access(api_keys=("one",)))
    go_on, reading = threading.Event(), threading.Event()

    def slow() -> Access:
        reading.set()
        go_on.wait(60)
        return Access(api_keys=("two",))

    settings.now = slow
    with caplog.at_level(logging.WARNING):
        settings.reload.begin()
        await asyncio.to_thread(reading.wait, 60)
        settings.now = lambda: Access(api_keys=("three",))
        for _ in range(3):
            settings.reload.begin()
        go_on.set()
        await settings.settled()
    assert settings.keys.identity_of(b"three") and not settings.keys.identity_of(b"two")
    assert len(caplog.messages) == 2


async def test_an_open_server_may_get_keys(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(Access())
    await settings.read(Access(api_keys=("one",), each_key=Limits(max_requests=1)))
    assert settings.keys.keyed and settings.keys.identity_of(b"one")


@pytest.mark.slow
def test_a_removed_keys_requests_finish_and_its_batch_waits_for_it(
    tiny_engine: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "keys.toml"
    for key in ("leaver", "stayer"):
        add_entry(file, key, entry(key))
    engine = {**tiny_engine, "max_running": 2}
    server = Server(engine, access={"key_file": str(file)})
    counts = {"leaver": 0, "stayer": 0}

    def hang_up(wanted: dict[str, int]) -> None:
        server.process.send_signal(signal.SIGHUP)
        server.until(lambda: statuses() == wanted)

    def statuses() -> dict[str, int]:
        return {
            key: server.client.get("/v1/models", headers={"x-api-key": key}).status_code for key in counts
        }

    body = {"prompt": "Once", "max_tokens": 100, "ignore_eos": True, "stream": True}
    lines = [
        msgspec.json.encode(
            {
                "custom_id": str(i),
                "method": "POST",
                "url": "/v1/completions",
                "body": body | {"stream": False},
            }
        )
        for i in range(30)
    ]
    with server.openai(api_key="leaver") as leaver, server.openai(api_key="stayer") as stayer:
        uploaded = leaver.files.create(file=("a.jsonl", b"\n".join(lines)), purpose="batch")
        batch = leaver.batches.create(
            input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h"
        )
        with server.client.stream(
            "POST", "/v1/completions", json=body, headers={"x-api-key": "leaver"}
        ) as reply:
            remove_entry(file, "leaver")
            hang_up({"leaver": 401, "stayer": 200})
            assert reply.read().endswith(b"data: [DONE]\n\n")
        # The lines of the leaver wait without a place: one of the other runs at once.
        own = stayer.files.create(file=("b.jsonl", lines[0]), purpose="batch")
        other = stayer.batches.create(
            input_file_id=own.id, endpoint="/v1/completions", completion_window="24h"
        )
        server.until(lambda: stayer.batches.retrieve(other.id).status == "completed")
        add_entry(file, "leaver", entry("leaver"))
        hang_up({"leaver": 200, "stayer": 200})
        left = leaver.batches.retrieve(batch.id)
        assert left.status == "in_progress" and left.request_counts is not None
        assert left.request_counts.failed == 0 and left.request_counts.completed < 30
        assert leaver.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    assert server.stop() == 0
