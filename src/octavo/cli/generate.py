"""`octavo generate`: a file of prompts → a file of answers. Knows arguments; the shapes are in `records`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from octavo.cli.local import local_model
from octavo.cli.options import engine_options
from octavo.cli.pull import MODEL_HELP

if TYPE_CHECKING:
    from octavo.cli.records import AnswerFile, Task
    from octavo.llm import LLM, Request
    from octavo.telemetry.progress import RequestProgress

__all__ = ["generate"]


@engine_options
def generate(
    prompts: Annotated[
        str, typer.Argument(help="JSONL records or plain lines, one prompt each; - is standard input.")
    ] = "-",
    *,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="Where answers go, as JSONL; a file is continued where it ends. - is standard output.",
        ),
    ] = "-",
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "smollm2",
    chat: Annotated[
        bool, typer.Option("--chat", help="A prompt is a user's message, not a text to continue.")
    ] = False,
    jsonl: Annotated[
        bool | None,
        typer.Option("--jsonl/--lines", help="What the prompts are; the default looks at the first line."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer, where a record does not say.")] = 256,
    temperature: Annotated[
        float, typer.Option(help="0 is greedy, 100 the most; for records that do not say.")
    ] = 1.0,
    top_p: Annotated[float, typer.Option(help="For records that do not say.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="For records that do not say; without one, each gets its own.")
    ] = None,
    settings: dict[str, Any],
) -> None:
    """Answer every prompt of a file; an interrupted run goes on where it was.

    A record has "prompt" or "messages", perhaps an "id", and any sampling parameter, such as "temperature", "n" or
    "stop". Answers come in the order in which they finish; their "id" is the record's, or the number of its line.
    A record that cannot be answered gets an "error", and the exit code is then 2; the next run tries it again.
    """
    from octavo.cli.records import AnswerFile, read_tasks
    from octavo.telemetry.progress import RequestProgress

    defaults = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    with _input(prompts) as file:
        tasks = read_tasks(file, defaults, model=model, jsonl=jsonl, chat=chat)
    with AnswerFile(None if output == "-" else Path(output)) as answers:
        waiting = [task for task in tasks if not answers.done(task)]
        skipped = len(tasks) - len(waiting)
        try:
            if waiting:
                with local_model(model, settings) as llm, RequestProgress(len(waiting)) as progress:
                    _answer(llm, waiting, answers, progress)
        except KeyboardInterrupt:
            again = "; the same command goes on from there" if answers.continues else ""
            print(
                f"interrupted: {answers.answered + skipped} of {len(tasks)} are answered{again}",
                file=sys.stderr,
            )
            raise
    print(
        f"{answers.answered} answered, {answers.failed} failed"
        + (f", {skipped} done before" if skipped else ""),
        file=sys.stderr,
    )
    if answers.failed:
        raise typer.Exit(2)


def _input(prompts: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if prompts == "-" else Path(prompts).open("rb")


def _answer(llm: LLM, tasks: list[Task], answers: AnswerFile, progress: RequestProgress) -> None:
    """Write an answer, or an error, for every task."""
    from octavo.cli.records import answer_record
    from octavo.errors import ClientError

    running: dict[int, Task] = {}

    def requests() -> Iterator[Request]:
        for task in tasks:
            try:
                request = _prepare(llm, task)
            except ClientError as error:
                answers.write({"id": task.id, "error": str(error)})
                progress.add()
            else:
                running[id(request)] = task
                yield request

    for request, result in llm.run(requests()):
        answers.write(answer_record(running.pop(id(request)), request, result))
        progress.add(result.new_tokens)


def _prepare(llm: LLM, task: Task) -> Request:
    from octavo.errors import InvalidParameter

    if task.error is not None or task.params is None:
        raise InvalidParameter(task.error or "The record has no parameters.")
    if task.messages is not None:
        return llm.prepare_chat(task.messages, task.params)
    return llm.prepare(task.prompt, task.params)
