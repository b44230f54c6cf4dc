"""Requests made from the OpenAPI document, right and wrong ones: no 500, no answer that the document does not have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.conftest import Server

EXAMPLES = 2000
"""In all routes together."""

# Not on: positive_data_acceptance (a body may fit its schema and not this model: a token id outside the vocabulary, a
# prompt that is too long, two fields that exclude each other; 400 is right then). ignored_auth: the server has no key.
# missing_required_header: there is none.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)
PHASES = "examples,coverage,fuzzing"


@pytest.mark.slow
def test_no_500_and_nothing_undocumented(server: Server, tmp_path: Path) -> None:
    document = server.client.get("/openapi.json").json()
    operations = sum(len(methods) for methods in document["paths"].values())
    run = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
            *("--phases", PHASES, "--mode", "all", "--checks", ",".join(CHECKS)),
            *("--max-examples", str(EXAMPLES // operations + 1), "--seed", "6", "--request-timeout", "30"),
            *("--report", "ndjson", "--report-dir", str(tmp_path / "report"), "--no-color"),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=900,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr
