"""Readers: the published traces' published figures, each format, and one sentence for each thing that is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from octavo.errors import WorkloadError
from octavo.workload import Request, Workload, requests_of
from octavo.workload.lines import mooncake_lines, plain_lines
from octavo.workload.summary import Summary, summarize
from octavo.workload.traces import estimated_tokens, format_of, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def _of(path: Path, **changes: object) -> list[Request]:
    return list(requests_of(msgspec.convert({"trace": {"file": str(path)}, **changes}, Workload)))


def _summary(path: Path) -> Summary:
    workload = msgspec.convert({"trace": {"file": str(path)}}, Workload)
    return summarize(requests_of(workload), block_size=512, partial=True)


@pytest.mark.parametrize(
    ("name", "count", "cv", "asked", "said"),
    [("code", 8819, 13.2, 1469, 13), ("conv", 19366, 1.1, 1020, 129)],
)
def test_azures_traces_have_their_figures(
    shared_dir: Path, name: str, count: int, cv: float, asked: int, said: int
) -> None:
    found = _summary(shared_dir / "traces" / f"azure-2023-{name}.csv")
    assert found.requests == count and round(found.gap_cv or 0, 1) == cv
    assert found.input is not None and (found.input.p50, found.output.p50) == (asked, said)


@pytest.mark.parametrize(
    ("name", "count", "hits"), [("conversation", 12031, 36.6), ("synthetic", 3993, 64.0)]
)
def test_mooncakes_traces_have_their_figures(shared_dir: Path, name: str, count: int, hits: float) -> None:
    found = _summary(shared_dir / "traces" / f"mooncake-{name}.jsonl.gz")
    assert found.requests == count and round(100 * (found.hit_rate or 0), 1) == hits


def test_a_mooncake_trace_is_written_as_it_was_read(shared_dir: Path) -> None:
    path = shared_dir / "traces" / "mooncake-synthetic.jsonl.gz"
    with gzip.open(path) as file:
        there = [json.loads(line) for line in file.readlines()[:300]]
    workload = msgspec.convert({"trace": {"file": str(path)}, "requests": 300}, Workload)
    assert [json.loads(line) for line in mooncake_lines(requests_of(workload))] == there


def test_azure_2024_and_burstgpt(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        AZURE + "2024-05-10 00:00:00.009930+00:00,2162,5\r\n2024-05-10 02:00:01.009930+02:00,2,3\r\n"
    )
    assert [(r.at_s, r.input_tokens, r.output_tokens) for r in _of(file)] == [(0, 2162, 5), (1, 2, 3)]
    file.write_text(
        "\ufeff"
        + BURST
        + "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,7,0,7,API log\n47,GPT-4,7,1,8,\n"
    )
    assert format_of(file) == "burstgpt"
    assert [(r.at_s, r.input_tokens, r.output_tokens) for r in _of(file)] == [(0, 472, 18), (42, 7, 1)]


def test_sharegpt_is_read_turn_by_turn(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    talk = [("human", "a?"), ("gpt", "b" * 40), ("human", "c?"), ("gpt", "dd"), ("human", "left alone")]
    says = [{"from": who, "value": what} for who, what in talk]
    alone = {"id": "y", "conversations": [{"from": "gpt", "value": "nobody asked"}]}
    file.write_text(
        json.dumps([{"id": "x", "conversations": says}, alone, {"id": "z", "conversations": says[:2]}])
    )
    with pytest.raises(WorkloadError, match=r"has no time; give the workload `arrivals`"):
        _of(file)
    made = _of(file, arrivals={"kind": "constant", "rate": 2.0})
    assert [(r.session, r.turn, r.after, r.at_s, r.output_tokens) for r in made] == [
        (0, 0, None, 0.0, 10), (0, 1, 0, 0.0, 1), (1, 0, None, 0.5, 10),
    ]  # fmt: skip
    assert made[1].messages == (
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "b" * 40},
        {"role": "user", "content": "c?"},
    )
    assert made[0].input_tokens is None and estimated_tokens("") == 1


@pytest.mark.parametrize("prompts", ["ids", "text", "parts"])
def test_plain_lines_are_read_as_they_were_written(tmp_path: Path, prompts: str) -> None:
    sessions = {"turns": {"kind": "fixed", "tokens": 3}, "think": {"kind": "exponential", "mean_s": 1.0}}
    length = {"kind": "uniform", "min": 1, "max": 40}
    arrivals = {"kind": "poisson", "rate": 3.0}
    raw = {
        "requests": 40,
        "input": length,
        "output": length,
        "arrivals": arrivals,
        "sessions": sessions,
        "seed": 5,
    }
    made = list(requests_of(msgspec.convert(raw | {"tenants": [{"name": "t", "priority": 3}]}, Workload)))
    file = tmp_path / "p.jsonl"
    file.write_bytes(b"".join(plain_lines(made, prompts, 32_000)))  # type: ignore[arg-type]
    back = _of(file, seed=5)
    for one, other in zip(made, back, strict=True):
        assert (one.index, one.at_s, one.after, one.tenant, one.priority, one.session, one.turn) == (
            other.index, other.at_s, other.after, other.tenant, other.priority, other.session, other.turn,
        )  # fmt: skip
        assert (one.delay_s, one.input_tokens, one.output_tokens) == (
            other.delay_s, other.input_tokens, other.output_tokens,
        )  # fmt: skip
        if prompts == "text":
            assert one.prompt_text() == other.text
        else:
            assert one.token_ids() == other.token_ids()


def test_real_prompts_take_times_and_lengths_from_the_workload(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(
        '{"prompt": "Hello"}\n\n{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}\n'
    )
    made = _of(file, arrivals={"kind": "constant", "rate": 1.0}, output={"kind": "fixed", "tokens": 8})
    assert [(r.at_s, r.text, r.output_tokens) for r in made] == [(0, "Hello", 8), (1, None, 3)]
    with pytest.raises(WorkloadError, match=r"p.jsonl, line 1, has no output_tokens; give them, or"):
        _of(file, arrivals={"kind": "constant", "rate": 1.0})


def test_clients_of_a_closed_loop_share_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    says = [{"from": who, "value": "x"} for who in ("human", "gpt")]
    file.write_text(json.dumps([{"conversations": says * turns} for turns in (1, 3, 1, 1, 1)]))
    made = _of(file, arrivals={"kind": "closed", "clients": 2, "think": {"kind": "fixed", "seconds": 5}})
    assert [(r.session, r.turn, r.after, r.delay_s, r.at_s) for r in made] == [
        (0, 0, None, 0, 0), (1, 0, None, 0, 0), (1, 1, 1, 0, 0), (1, 2, 2, 0, 0),
        (2, 0, 0, 5, 5), (3, 0, 3, 5, 5), (4, 0, 4, 5, 10),
    ]  # fmt: skip
    assert len(_of(file, requests=3, arrivals={"kind": "closed", "clients": 50})) == 3
    own = tmp_path / "p.jsonl"
    own.write_text('{"prompt": "a", "output_tokens": 1}\n{"prompt": "b", "output_tokens": 1, "after": 0}\n')
    with pytest.raises(WorkloadError, match="line 2, waits for another request"):
        _of(own, arrivals={"kind": "closed", "clients": 1})


def test_a_trace_runs_faster_and_ends_earlier(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(AZURE + "".join(f"2023-11-16 18:17:{s:02}.5000000,10,1\n" for s in range(0, 60, 6)))
    made = _of(file, arrivals={"kind": "trace", "speed": 2.0}, duration_s=10.0)
    assert [r.at_s for r in made] == [0, 3, 6, 9]
    own = tmp_path / "p.jsonl"
    lines = [{"prompt": "a", "at_s": 0}, {"prompt": "b", "at_s": 3, "after": 0, "delay_s": 3}]
    own.write_text("".join(json.dumps(line | {"output_tokens": 1}) + "\n" for line in lines))
    assert [(r.at_s, r.delay_s) for r in _of(own, arrivals={"kind": "trace", "speed": 2.0})] == [
        (0, 0),
        (1.5, 1.5),
    ]


MOON = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty; a trace has at least one request."),
        ("[]", "has no requests; a trace has at least one."),
        ("what is this", "begins with 'what is this', which is no trace that is known; it may be Azure's"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "line 1, has no column GeneratedTokens; it has TIMESTAMP, ContextTokens,"),
        ('TIMESTAMP,ContextTokens,"Gener\nated', "it has TIMESTAMP, ContextTokens, Gener ated, and needs"),
        (AZURE, "has no requests"),
        (AZURE + "2023-11-16 18:17:03,5\n", "line 2: ends before the column GeneratedTokens"),
        (AZURE + "yesterday,5,5\n", "line 2: TIMESTAMP is 'yesterday'; it must be a time such as 2023-"),
        (AZURE + "2023-11-16 18:17:03,-5,5\n", "line 2: ContextTokens is '-5'; it must be a whole number from 0"),
        (AZURE + "2023-11-16 18:17:03,5,x\n", "line 2: GeneratedTokens is 'x'"),
        (AZURE + "2023-11-16 18:17:03,5,5\n2023-11-16 18:17:01,5,5\n",
         "line 3: is 2 s before the request above; sort"),
        (BURST + "-1,GPT-4,5,5,10,\n", "line 2: Timestamp is '-1'; it must be a number of seconds that is not neg"),
        (BURST + "nan,GPT-4,5,5,10,\n", "line 2: Timestamp is 'nan'"),
        (MOON.replace(' "output_length": 5,', ""), "line 1: has no output_length"),
        (MOON + MOON.replace('"timestamp": 0', '"timestamp": -3'),
         "line 2: timestamp is -3; it must be a number of mill"),
        (MOON.replace("600", "500"), "line 1: hash_ids has 2 blocks of 512 for input_length 500"),
        (MOON.replace("[1, 2]", '["a"]'), "line 1: hash_ids is ['a']; it must be a list of whole numbers"),
        (MOON.replace("5,", "0,"), "line 1: output_length is 0; it must be a whole number from 1"),
        (MOON + MOON[:30], "line 2: is no JSON"),
        ('[{"conversations": 5}]', "cannot be read as ShareGPT's JSON: Expected `array`, got `int`"),
        ('{"prompt": "a", "output_tokns": 5}',
         "line 1: has the unknown field 'output_tokns'; did you mean output_tokens?"),
        ('{"output_tokens": 5}', "line 1: has no prompt; give one of prompt, messages and parts."),
        ('{"prompt": "", "output_tokens": 5}', "line 1: has an empty prompt"),
        ('{"prompt": "a", "at_s": -1, "output_tokens": 5}', "line 1: at_s is -1; it must be a number of seconds"),
        ('{"prompt": "a", "after": 0, "output_tokens": 5}', "line 1: after is 0; it must be the place"),
        ('{"prompt": 5, "output_tokens": 5}', "line 1: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(WorkloadError) as found:
        for _ in read_trace(file):
            pass
    message = str(found.value)
    assert message.startswith(str(file)) and told in message and "\n" not in message


def test_damaged_files_are_told(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl.gz"
    file.write_bytes(gzip.compress(MOON.encode() * 9000)[:-40])
    with pytest.raises(WorkloadError, match=r"cannot be unpacked \(.*\); the file is damaged or cut off"):
        list(read_trace(file, "mooncake"))
    file.write_bytes(AZURE.encode() + b"\xff\xfe,5,5\n")
    with pytest.raises(WorkloadError, match="is not UTF-8"):
        list(read_trace(file, "azure"))
    with pytest.raises(FileNotFoundError):
        list(read_trace(tmp_path / "none"))
