"""The description's file: TOML and JSON alike, and one sentence for each thing that is wrong."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from octavo.errors import WorkloadError
from octavo.workload import PRESETS, load_workload, requests_of
from octavo.workload.arrivals import Arrivals
from octavo.workload.lengths import Delay, Length
from octavo.workload.spec import preset_text
from tests.conftest import REPOSITORY

GOOD = """
requests = 5
arrivals = { kind = "poisson", rate = 1.0 }
input = { kind = "fixed", tokens = 5 }
output = { kind = "fixed", tokens = 5 }
"""


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_file_that_anyone_could_have_written(tmp_path: Path, name: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(preset_text(name))
    assert load_workload(str(file)) == load_workload(name)
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(tomllib.loads(preset_text(name))))
    assert load_workload(str(file)) == load_workload(name)
    assert msgspec.convert(
        msgspec.to_builtins(load_workload(name)), type(load_workload(name))
    ) == load_workload(name)


def test_the_page_has_a_file_that_works_and_every_kind(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "workloads.md").read_text()
    whole, trace = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for text in (whole, trace):
        file = tmp_path / "page.toml"
        file.write_text(text)
        load_workload(str(file))
    for kind in (Arrivals, Length, Delay):
        for one in get_args(kind):
            assert f"`{one.__struct_config__.tag}`" in page
            assert all(f"`{field}`" in page for field in one.__struct_fields__)
    assert set(PRESETS) <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_a_traces_path_is_from_the_files_folder(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text('trace = { file = "t.csv" }')
    trace = load_workload(str(file)).trace
    assert trace is not None and trace.file == str(tmp_path / "t.csv")


def test_a_trace_is_a_workload_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    with pytest.raises(FileNotFoundError):
        load_workload(str(file))
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,7\n")
    assert [request.output_tokens for request in requests_of(load_workload(str(file)))] == [7]


def test_a_rate_is_changed() -> None:
    chat = load_workload("chat").at_rate(3.0)
    assert msgspec.to_builtins(chat.arrivals) == {"kind": "gamma", "rate": 3.0, "cv": 1.1}
    with pytest.raises(WorkloadError, match="of the kind closed"):
        load_workload("batch").at_rate(1.0)
    with pytest.raises(WorkloadError, match="must be above 0"):
        load_workload("chat").at_rate(0.0)


def test_arrivals_come_in_bursts() -> None:
    chat = load_workload("chat").at_rate(3.0).at_cv(8.0)
    assert msgspec.to_builtins(chat.arrivals) == {"kind": "gamma", "rate": 3.0, "cv": 8.0}
    with pytest.raises(WorkloadError, match="no single rate"):
        load_workload("batch").at_cv(2.0)
    with pytest.raises(WorkloadError, match="must be above 0"):
        chat.at_cv(0.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GOOD + "requets = 5", "requets is no key of a workload; did you mean requests?"),
        (GOOD.replace("rate =", "rte ="), "arrivals.rte is no key of a workload; did you mean arrivals.rate?"),
        (GOOD + "[[tenants]]\nname = 'a'\nwieght = 1",
         "tenants[0].wieght is no key of a workload; did you mean tenants[0].weight?"),
        (GOOD + "[sessions.tools]\nzzz = 1",
         "sessions.tools.zzz is no key of a workload; here may be delay, share, tokens."),
        (GOOD.replace("rate = 1.0", "rate = 0"), "arrivals.rate is 0: Expected `float` > 0.0."),
        (GOOD.replace("poisson", "poison"), "arrivals.kind is \"poison\": Invalid value 'poison'"),
        (GOOD.replace("requests = 5", ""), "`requests` and `duration_s` are missing"),
        (GOOD.replace("output", "description = 'x' #"), "`output` is missing"),
        (GOOD + "trace = { file = 'x' }", "a trace has its own input"),
        (GOOD.replace('"poisson", rate = 1.0', '"trace"'), "arrivals of the kind trace need a `trace`"),
        (GOOD.replace('"poisson", rate = 1.0', '"closed", clients = 2').replace("requests = 5", "duration_s = 1"),
         "closed loop has no end"),
        (GOOD.replace("= 5\n", "= 99999999999999999999999\n", 1), "requests is 99999999999999999999999:"),
        (GOOD + "duration_s = inf", "duration_s is Infinity: Expected `float` <= 1000000000.0."),
        (GOOD + "duration_s = nan", "duration_s is NaN: Expected `float` > 0.0."),
        (GOOD + "tenants = [{ name = 'a', weight = inf }]", "tenants[0].weight is Infinity: Expected `float` <="),
        (GOOD + "seed = -1", "seed is -1: Expected `int` >= 0."),
        ("requests = ", "cannot be read as TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "w.toml"
    file.write_text(text)
    with pytest.raises(WorkloadError) as found:
        load_workload(str(file))
    assert str(found.value).startswith(str(file)) and told in str(found.value)


def test_names_that_are_nothing(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"did you mean chat\?"):
        load_workload("chatt")
    with pytest.raises(FileNotFoundError):
        load_workload(str(tmp_path / "none.toml"))
    file = tmp_path / "w.json"
    file.write_text('{"requests": 1, "requests": 2}')
    with pytest.raises(WorkloadError, match="the key requests is there twice"):
        load_workload(str(file))
    file.write_text("[1]")
    with pytest.raises(WorkloadError, match="holds no table"):
        load_workload(str(file))
