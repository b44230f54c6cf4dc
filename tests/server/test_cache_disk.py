"""`--cache-disk` seen from outside: a second server finds what the first computed, and a bad folder is a warning."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.server.conftest import Server
from tests.server.test_prefix_cache import cached

PROMPT = list(range(3, 60))


def test_a_server_finds_what_the_one_before_computed(tiny_engine: dict[str, Any], tmp_path: Path) -> None:
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 3}
    answers, metrics = [], {}
    for _ in range(2):
        server = Server({**tiny_engine, "cache_disk": str(tmp_path)})
        try:
            answers.append(server.complete(**body))
            metrics = server.metrics()
        finally:
            assert server.stop() == 0
    assert [cached(answer) for answer in answers] == [0, 48]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert metrics["octavo_cache_disk_hit_tokens_total"] == 48
    assert metrics["octavo_cache_disk_bytes"] > 0


def test_a_key_finds_its_own_on_disk_whatever_place_it_has_among_the_keys(
    tiny_engine: dict[str, Any], tmp_path: Path
) -> None:
    def ask(keys: list[str], asking: str) -> int:
        server = Server({**tiny_engine, "cache_disk": str(tmp_path)}, access={"api_keys": keys})
        try:
            response = server.client.post(
                "/v1/completions",
                json={"prompt": PROMPT, "max_tokens": 1},
                headers={"Authorization": f"Bearer {asking}"},
            )
            assert response.status_code == 200, response.text
            return cached(response.json())
        finally:
            assert server.stop() == 0

    assert ask(["leaver", "stayer"], "leaver") == 0
    assert ask(["newcomer", "stayer"], "newcomer") == 0
    assert ask(["stayer", "newcomer", "leaver"], "leaver") == 48


def test_the_options_reach_the_engine_and_a_bad_folder_is_a_warning(
    tiny_model_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for folder, size, told in (
        ("file/cache", "8GiB", "cannot be used"),
        ("cache", "1k", "cache_disk_size is 1000 bytes, and one block takes"),
    ):
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "octavo", "serve", str(tiny_model_path), "--port", "0"),
                *("--backend", "reference", "--cache-disk", folder, "--cache-disk-size", size),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        assert server.stdout is not None
        serves = re.search(r"http://\S+", server.stdout.readline()) is not None
        assert serves == (told == "cannot be used")
        server.send_signal(signal.SIGTERM)
        _, log = server.communicate(timeout=60)
        assert told in log
