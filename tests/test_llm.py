"""`LLM`: prompts in, answers out, with a tiny model; and the real one where the oracle knows the answer."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

from octavo import LLM, SamplingParams
from octavo.config import Pooling
from octavo.errors import CapacityError, ClientError, InvalidParameter, ModelError, ServerError, SettingsError
from octavo.telemetry.progress import RequestProgress

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
HELLO = [{"role": "user", "content": "Hello the world"}]


@pytest.fixture(scope="module")
def llm(tiny_model_path: Path) -> Iterator[LLM]:
    with LLM(tiny_model_path, num_blocks=64, max_running=8, max_step_tokens=64) as llm:
        yield llm


@pytest.fixture(autouse=True)
def nothing_leaks(llm: LLM) -> Iterator[None]:
    """After every test, a step later, every block is free."""
    yield
    [output] = llm.generate("a", SamplingParams(max_tokens=1))
    assert len(output.outputs[0].token_ids) == 1
    llm._engine.check()
    assert llm._engine.stats().blocks_used == 0
    assert not llm._open


def test_prompts_are_answered_in_order(llm: LLM) -> None:
    prompts = [f"Hello {n} the world" for n in range(30)]
    params = [SamplingParams(max_tokens=1 + n % 7, seed=n, ignore_eos=True) for n in range(30)]
    together = llm.generate(prompts, params)
    assert [output.prompt for output in together] == prompts
    assert [len(output.outputs[0].token_ids) for output in together] == [1 + n % 7 for n in range(30)]
    alone = [llm.generate(prompt, one)[0] for prompt, one in zip(prompts, params, strict=True)]
    assert together == alone


def test_a_prompt_is_a_text_or_ids(llm: LLM) -> None:
    text = "Hello the world"
    ids = llm.tokenizer.encode(text)
    [by_text], [by_ids], [in_list, _] = (
        llm.generate(text, GREEDY),
        llm.generate(ids, GREEDY),
        llm.generate([ids, ids], GREEDY),
    )
    assert by_text.prompt == text
    assert by_ids.prompt is None
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == tuple(ids)
    assert by_text.outputs == by_ids.outputs == in_list.outputs
    assert llm.generate("<|im_start|>", GREEDY)[0].prompt_token_ids == (1,)


def test_text_is_the_tokens_text(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=40, ignore_eos=True)
    [output] = llm.generate("the", params)
    assert [one.index for one in output.outputs] == [0, 1, 2]
    assert len({one.token_ids for one in output.outputs}) == 3
    for one in output.outputs:
        assert one.text == llm.tokenizer.decode(one.token_ids)
        assert one.finish_reason == "length"
        assert one.logprobs is None
    assert output.text == output.outputs[0].text


def test_a_seedless_request_gets_a_seed_of_its_own(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    requests = [llm.prepare("the", params) for _ in range(2)]
    assert requests[0].params.seed != requests[1].params.seed
    answers = {request.params.seed: output for request, output in llm.run(requests)}
    again = [llm.generate("the", request.params)[0] for request in requests]
    assert [answers[request.params.seed] for request in requests] == again


def test_a_stop_string_ends_the_text_before_it(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    [whole] = llm.generate("Hello", params)
    stop = next(a + b for a, b in pairwise(whole.text[3:]) if (a + b).isascii())  # not a broken character
    cut = whole.text.index(stop)
    [stopped] = llm.generate(
        "Hello", SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, stop=(stop,))
    )
    assert stopped.text == whole.text[:cut]
    assert stopped.outputs[0].finish_reason == "stop"
    assert stopped.outputs[0].stop_reason == stop


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=1)
    [output] = llm.generate("Hello the world", params)
    logprobs, prompt_logprobs = output.outputs[0].logprobs, output.prompt_logprobs
    assert logprobs is not None
    assert prompt_logprobs is not None
    assert tuple(sample.token for sample in logprobs) == output.outputs[0].token_ids
    assert all(sample.top[0] == (sample.token, sample.logprob) for sample in logprobs)
    assert prompt_logprobs[0] is None
    assert len(prompt_logprobs) == len(output.prompt_token_ids)


def test_chat(llm: LLM) -> None:
    rendered = "<|im_start|>user\nHello the world<|im_end|>\n<|im_start|>assistant\n"
    [output] = llm.chat(HELLO, GREEDY)
    assert output.prompt_token_ids == tuple(llm.tokenizer.encode(rendered, allow_special=True))
    two = llm.chat([HELLO, [*HELLO, *HELLO]], GREEDY)
    assert two[0] == output
    assert len(two[1].prompt_token_ids) > len(output.prompt_token_ids)
    assert (
        llm.chat(HELLO, GREEDY, add_generation_prompt=False)[0].prompt_token_ids[-1]
        != output.prompt_token_ids[-2]
    )


def test_a_streamed_answer_joins_to_the_whole(llm: LLM) -> None:
    params = SamplingParams(seed=1, max_tokens=60, ignore_eos=True)
    pieces = list(llm.stream_chat(HELLO, params))
    assert len(pieces) > 5
    assert "".join(pieces) == llm.chat(HELLO, params)[0].text
    with pytest.raises(InvalidParameter, match="n must be 1"):
        llm.stream_chat(HELLO, SamplingParams(n=2))


def test_a_stream_that_is_closed_ends_and_disturbs_no_other(llm: LLM) -> None:
    params = SamplingParams(seed=1, max_tokens=60, ignore_eos=True)
    closed, kept = llm.stream_chat(HELLO, params), llm.stream_chat(HELLO, params)
    first = [next(closed), next(kept)]
    closed.close()
    assert first[1] + "".join(kept) == llm.chat(HELLO, params)[0].text


def test_runs_take_turns(llm: LLM) -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    one, other = (llm.run(llm.prepare("the", params) for _ in range(20)) for _ in range(2))
    pairs = list(zip(one, other, strict=True))
    assert len(pairs) == 20


def test_a_run_takes_requests_only_as_there_is_room(llm: LLM) -> None:
    taken = 0

    def requests() -> Iterator[Any]:
        nonlocal taken
        while True:
            taken += 1
            yield llm.prepare("the", SamplingParams(max_tokens=3, ignore_eos=True))

    endless = llm.run(requests())
    for _ in range(10):
        next(endless)
    assert taken <= 10 + 2 * 8
    endless.close()  # type: ignore[attr-defined]


def test_ctrl_c_waits_for_the_end_of_a_step(llm: LLM) -> None:
    stream = llm.stream_chat(HELLO, SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    step = llm._engine.step

    def interrupted() -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return step()

    llm._engine.step = interrupted  # type: ignore[method-assign]
    try:
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    finally:
        del llm._engine.step
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        ([], InvalidParameter, "prompts is empty"),
        ("", InvalidParameter, "no tokens"),
        ([[]], InvalidParameter, "no tokens"),
        ([["x"]], InvalidParameter, r"prompt\[0\] must be a token id"),
        ([[1.0]], InvalidParameter, r"prompt\[0\] must be a token id"),
        ([1, 99999], InvalidParameter, "outside the vocabulary"),
        (["fine", "the " * 600], CapacityError, "tokens"),
        (["lone \ud800"], InvalidParameter, "surrogate"),
    ],
)
def test_what_can_never_be_served_is_refused_before_anything_runs(
    llm: LLM, prompts: Any, error: type[Exception], message: str
) -> None:
    steps = llm._engine.stats().steps
    with pytest.raises(error, match=message):
        llm.generate(prompts, GREEDY)
    assert llm._engine.stats().steps == steps


def test_other_refusals(llm: LLM) -> None:
    with pytest.raises(InvalidParameter, match="2 entries for 1 prompts"):
        llm.generate("the", [GREEDY, GREEDY])
    with pytest.raises(InvalidParameter, match="messages is empty"):
        llm.chat([])
    with pytest.raises(InvalidParameter, match=r"messages\[0\].content"):
        llm.chat([{"role": "user"}])


def test_a_failure_of_the_engine_is_told(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec

    step = llm._engine.step

    def failing() -> Any:
        outputs = step()
        items = tuple(
            msgspec.structs.replace(item, finish_reason="error", error="It broke.")
            if item.finish_reason
            else item
            for item in outputs.items
        )
        return msgspec.structs.replace(outputs, items=items)

    with monkeypatch.context() as patch:
        patch.setattr(llm._engine, "step", failing)
        with pytest.raises(ServerError, match=r"It broke\."):
            llm.generate("the", GREEDY)
        with pytest.raises(ServerError, match=r"It broke\."):
            list(llm.stream_chat(HELLO, GREEDY))


def test_settings_are_checked(tiny_model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'max_runing' is no setting; there are .*max_running"):
        LLM(tiny_model_path, max_runing=3)
    with pytest.raises(SettingsError, match="max_running"):
        LLM(tiny_model_path, max_running="many")
    with pytest.raises(SettingsError, match="'model_dir' is no setting"):
        LLM(tiny_model_path, model_dir="x")
    with pytest.raises(ModelError):
        LLM(tmp_path / "absent.gguf")


def test_a_draft_model_is_found_by_its_name(llm: LLM, tiny_model_path: Path) -> None:
    draft = f"draft:{tiny_model_path}"
    with LLM(tiny_model_path, num_blocks=64, speculation=draft, speculation_tokens=4) as guessing:
        params = SamplingParams(max_tokens=20, seed=3, ignore_eos=True)
        [output], [plain] = guessing.generate("Hello", params), llm.generate("Hello", params)
        assert output.outputs == plain.outputs
        assert guessing._engine.stats().saved_steps == 15
    with pytest.raises(SettingsError, match="speculation is 'drafts'"):
        LLM(tiny_model_path, speculation="drafts")
    with pytest.raises(SettingsError, match="speculation"):
        LLM(tiny_model_path, speculation=4)


def test_the_reference_backend_is_there_too(tiny_model_path: Path) -> None:
    with LLM(tiny_model_path, backend="reference", num_blocks=32, kv_dtype="fp32") as llm:
        [output] = llm.generate("Hello", GREEDY)
        assert len(output.outputs[0].token_ids) == 8
        llm.close()  # twice is harmless


def test_vectors(llm: LLM) -> None:
    texts = ["Hello", "the world", "Hello world " * 30]
    for pooling in get_args(Pooling):
        outputs = llm.embed(texts, pooling=pooling)
        assert [output.prompt for output in outputs] == texts
        assert [llm.embed(text, pooling=pooling)[0] for text in texts] == outputs
        assert all(math.hypot(*output.embedding) == pytest.approx(1, abs=1e-6) for output in outputs)
        ids = [list(output.prompt_token_ids) for output in outputs]
        assert [output.embedding for output in llm.embed(ids, pooling=pooling)] == [
            output.embedding for output in outputs
        ]
        raw = llm.embed(texts[2], pooling=pooling, normalize=False)[0].embedding
        [cut] = llm.embed(texts[2], pooling=pooling, normalize=False, dimensions=6)
        assert cut.embedding == raw[:6]
    assert llm.embed(texts) == llm.embed(texts, pooling="last") != llm.embed(texts, pooling="mean")
    llm._engine.check()


def test_vectors_that_cannot_be(llm: LLM) -> None:
    for given, own, param in (
        ([3] * 1000, {}, "prompt"),
        ([], {}, "prompts"),
        ("a", {"dimensions": 0}, "dimensions"),
        ("a", {"pooling": "max"}, "pooling"),
    ):
        with pytest.raises(ClientError) as caught:
            llm.embed(given, **own)
        assert getattr(caught.value, "param", None) == param


def test_progress_off_a_terminal_is_silent(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY, progress=True)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with RequestProgress(2) as progress:
        progress.add(llm.generate("a", GREEDY)[0].new_tokens)
        progress.add()
    shown = capsys.readouterr()
    assert "2/2" in shown.err
    assert "8 tokens" in shown.err
    assert shown.out == ""


def test_the_real_model(shared_dir: Path, model_dir: Path) -> None:
    """Prompts as the oracle has them, and its greedy answers as far as its margins are clear."""
    cases = json.loads((shared_dir / "oracle" / "smollm2-135m.json").read_text("utf-8"))
    params = SamplingParams(temperature=0.0, max_tokens=16)
    with LLM(str(model_dir), max_running=16) as llm:
        for case in cases:
            [output] = (llm.chat if case["kind"] == "chat" else llm.generate)(case["prompt"], params)
            assert list(output.prompt_token_ids) == case["prompt_ids"]
            clear = next((n for n, margin in enumerate(case["greedy_margin"]) if margin < 0.5), 16)
            assert list(output.outputs[0].token_ids[:clear]) == case["greedy_ids"][: min(clear, 16)]
