"""lm-eval's `local-completions` against a server, and the same questions asked of the reference backend directly."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from octavo.llm import LLM
from octavo.models.store import StoredModel
from octavo.sampling.params import SamplingParams
from tests.clients.conftest import MODEL, Clients, serving
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow

PAGE = REPOSITORY / "docs" / "life-of-a-request.md"
QUESTIONS = 4
NEW_TOKENS = 16
A_TOKEN = 0.15
"""How far the native backend's log-probabilities of a text may be from the reference's, for a token (within it are
97 of 100 single ones: tests/backends/test_oracle.py)."""


class Scores(NamedTuple):
    """What a model makes of the tasks: (log-likelihood, greedy?) of every choice, and every continuation."""

    choices: list[list[tuple[float, bool]]]
    texts: list[str]


def sentences() -> list[str]:
    """The longer ones of a page, of plain words."""
    found = re.findall(r"[A-Z][^.:`|\n]{60,160}\.", PAGE.read_text())
    assert len(found) > QUESTIONS
    return [" ".join(sentence.split()) for sentence in found[: QUESTIONS + 1]]


def questions() -> list[dict[str, Any]]:
    """The first half of a sentence, its own second half and the next one's."""
    halves = []
    for sentence in sentences():
        words = sentence.split()
        halves.append((" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])))
    return [
        {"question": first, "choices": [second, other], "gold": 0}
        for (first, second), (_, other) in pairwise(halves)
    ]


@pytest.fixture(scope="module")
def expected(model_dir: Path) -> Scores:
    """By the reference backend, in this process, without a server."""
    scored: list[list[tuple[float, bool]]] = []
    with LLM(MODEL, backend="reference", kv_memory_bytes=256 << 20) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
        for one in questions():
            start = len(llm.tokenizer.encode(one["question"]))
            prompts = [llm.tokenizer.encode(f"{one['question']} {choice}") for choice in one["choices"]]
            scored.append([])
            for output in llm.generate(prompts, params):
                assert output.prompt_logprobs is not None
                samples = [sample for sample in output.prompt_logprobs[start:] if sample is not None]
                total = sum(sample.logprob for sample in samples if sample.logprob is not None)
                greedy = all(sample.top[0][0] == sample.token for sample in samples)
                scored[-1].append((total, greedy))
        greedy_params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, stop=("\n",))
        outputs = llm.generate([one["question"] for one in questions()], greedy_params)
    return Scores(scored, [output.text for output in outputs])


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both tasks, for `--include_path`; their data lie in it."""
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in questions()))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
    }
    choice = {
        "task": "octavo_choice",
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    greedy = {
        "task": "octavo_greedy",
        "output_type": "generate_until",
        "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {
            "until": ["\n"],
            "max_gen_toks": NEW_TOKENS,
            "do_sample": False,
            "temperature": 0,
        },
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    for task in (choice, greedy):
        (folder / f"{task['task']}.yaml").write_text(json.dumps({**common, **task}))  # JSON is YAML
    return folder


@pytest.fixture(scope="module")
def tokenizer_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's tokenizer, as `transformers` reads one."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_bytes((model_dir / "tokenizer.json").read_bytes())
    model = StoredModel.load(model_dir)
    end = model.vocabulary().bytes_of(model.spec.eos_ids[0], skip_special=False).decode()
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def evaluate(clients: Clients, url: str, tasks: Path, tokenizer_dir: Path, output: Path) -> Scores:
    """Run lm-eval; what the server made of the tasks."""
    model_args = {
        "model": MODEL,
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(tokenizer_dir),
        "num_concurrent": 4,
    }
    clients.run(
        *("lm_eval", "run", "--model", "local-completions"),
        *("--model_args", ",".join(f"{name}={value}" for name, value in model_args.items())),
        *("--tasks", "octavo_choice,octavo_greedy", "--include_path", tasks),
        *("--log_samples", "--output_path", output),
    )
    choices = [
        [(float(total), greedy == "True") for [[total, greedy]] in sample["resps"]]
        for sample in samples(output, "octavo_choice")
    ]
    return Scores(choices, [sample["resps"][0][0] for sample in samples(output, "octavo_greedy")])


def samples(output: Path, task: str) -> Iterator[Any]:
    """What lm-eval wrote down of a task, in the order of the questions."""
    [file] = output.glob(f"*/samples_{task}_*.jsonl")
    lines = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    return iter(sorted(lines, key=lambda line: int(line["doc_id"])))


def test_a_reference_server_gives_what_the_backend_gives(
    clients: Clients, tasks: Path, tokenizer_dir: Path, expected: Scores, tmp_path: Path
) -> None:
    with serving("--backend", "reference", "--kv-memory", "256MiB") as url:
        scores = evaluate(clients, url, tasks, tokenizer_dir, tmp_path / "results")
    assert scores == expected


def test_the_native_server_agrees_with_the_reference(
    clients: Clients, url: str, tasks: Path, tokenizer_dir: Path, expected: Scores, tmp_path: Path
) -> None:
    scores = evaluate(clients, url, tasks, tokenizer_dir, tmp_path / "results")
    assert all(scores.texts)
    for one, mine, theirs in zip(questions(), scores.choices, expected.choices, strict=True):
        bounds = [A_TOKEN * len(choice.split()) for choice in one["choices"]]  # a word is one token or more
        for (total, _), (reference, _), bound in zip(mine, theirs, bounds, strict=True):
            assert total == pytest.approx(reference, abs=bound)
        if abs(theirs[0][0] - theirs[1][0]) > sum(bounds):
            assert mine.index(max(mine)) == theirs.index(max(theirs))
