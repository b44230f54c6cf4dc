"""Requests made from the OpenAPI document, right and wrong ones: no 500, and no answer that the document does not have.

Of all checks these are off: positive_data_acceptance in the first run (a body may fit its schema and not this model or
its own other fields: a token id outside the vocabulary, a prompt that is too long, two constraints; 400 is right then;
the second run has it on), ignored_auth (this server has no key) and missing_required_header (no header is required).
`timeout` is left out: one that is short enough is answered with 504, which is right, and a server error to the tool.
Headers and query parameters that nobody knows are not made: a server passes them over, as HTTP wants it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Server

EXAMPLES = 2000
"""In both runs together, at least."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "use_after_free",
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    """Short answers: a request that names no max_tokens gets the rest of the context."""
    server = Server(tiny_engine | {"max_model_len": 48, "max_running": 8})
    yield server
    server.stop()


def schemathesis(server: Server, document: dict[str, Any], folder: Path, *options: str) -> int:
    """Run it over `document`; how many requests it made. Fails with its report where it found something."""
    (folder / "schemathesis.toml").write_text("[generation]\nallow-extra-parameters = false\n")
    path = folder / "openapi.json"
    path.write_text(json.dumps(document))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", str(path), "--url", server.url),
            *(
                "--workers",
                "2",
                "--seed",
                "6",
                "--request-timeout",
                "30",
                "--no-color",
                "--continue-on-failure",
                *options,
            ),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr
    [line] = [line for line in done.stdout.splitlines() if " generated, " in line]
    return int(line.split()[0])


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """The two routes that generate, with fields that mean something by themselves, in bounds that the tiny model has:
    every body that fits this is served."""
    schemas = document["components"]["schemas"]
    integers = {"type": "integer", "minimum": 0, "maximum": 6}
    ids = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 286},
        "minItems": 1,
        "maxItems": 20,
    }
    text = {"type": "string", "minLength": 1, "maxLength": 6}
    turn = {
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "user", "assistant"]},
            "content": {"type": "string", "maxLength": 4},
        },
        "required": ["role", "content"],
        "additionalProperties": False,
    }
    fields = (
        "model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "stop", "seed",
        "presence_penalty", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "cache_salt", "user",
        "priority", "profile", "return_tokens_as_token_ids", "add_special_tokens", "truncate_prompt_tokens",
    )  # fmt: skip
    narrowed = {"max_tokens": integers, "n": integers | {"minimum": 1, "maximum": 2}, "stop_token_ids": ids}
    narrowed["logit_bias"] = {
        "type": "object",
        "propertyNames": {"pattern": "^[1-9][0-9]?$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        "maxProperties": 4,
    }
    own = {
        "CompletionRequest": {
            "prompt": {"oneOf": [text, ids, {"type": "array", "items": text, "minItems": 1, "maxItems": 3}]},
            "stream": {"type": "boolean"},
            "echo": {"type": "boolean"},
            "logprobs": integers,
        },
        "ChatRequest": {
            "messages": {"type": "array", "items": turn, "minItems": 1, "maxItems": 2},
            "prompt_logprobs": integers,
            "logprobs": {"type": "boolean"},
            "return_token_ids": {"type": "boolean"},
        },
    }
    for name, more in own.items():
        schema = schemas[name]
        kept = {field: schema["properties"][field] for field in fields}
        schemas[name] = {
            "type": "object",
            "properties": {**kept, **narrowed, **more},
            "required": [next(iter(more)), "max_tokens"],
            "additionalProperties": False,
        }
    kept_paths = ("/v1/completions", "/v1/chat/completions")
    return {**document, "paths": {path: document["paths"][path] for path in kept_paths}}


def test_no_500_and_nothing_undocumented(small: Server, tmp_path: Path) -> None:
    document = small.client.get("/openapi.json").json()
    for schema in document["components"]["schemas"].values():
        schema.get("properties", {}).pop("timeout", None)
    del document["paths"][
        "/watch"
    ]  # it lasts as long as one says, up to a day; test_watch.py has what it refuses
    operations = sum(len(methods) for methods in document["paths"].values())
    all_fields, served = tmp_path / "all", tmp_path / "served"
    all_fields.mkdir()
    served.mkdir()
    made = schemathesis(
        small,
        document,
        all_fields,
        *("--phases", "examples,coverage,fuzzing", "--mode", "all", "--checks", ",".join(CHECKS)),
        *("--max-examples", str(max(300 // operations, 5))),
    )
    accepted = schemathesis(
        small,
        plain(document),
        served,
        *(
            "--phases",
            "fuzzing",
            "--mode",
            "positive",
            "--checks",
            ",".join((*CHECKS, "positive_data_acceptance")),
        ),
        *("--max-examples", "100"),
    )
    assert accepted >= 150
    assert made + accepted >= EXAMPLES
    small.until_idle()
    assert small.client.get("/health").status_code == 200
