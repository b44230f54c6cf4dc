"""`octavo simulate`: a workload on a machine that is not here, by the scheduler that serves. Knows the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from octavo.cli.options import parse_duration, typed
from octavo.cli.simulate_options import (
    Autoscale,
    ColdStart,
    DecodeReplicas,
    Fail,
    LinkLatency,
    LinkRate,
    Mtbf,
    PrefillReplicas,
    Repair,
    Replicas,
    Routing,
    ScaleDownAfter,
    ScaleEvery,
    ScaleTarget,
)
from octavo.config import AllocatorName, PolicyName, ProfileName

if TYPE_CHECKING:
    from rich.console import Console

    from octavo.simulation.tutorial import Outcome

__all__ = ["SIMULATE_EXAMPLES", "simulate"]

SIMULATE_EXAMPLES = """Examples:
  octavo simulate --workload chat --model llama-3-8b --hardware l4 --rate 2
  octavo simulate --workload rag --policy prefill-first --slo 'itl_p99<100ms' --html stall.html
  octavo simulate --workload agent --hardware h100 --replicas 4 --router cache-aware --rate 6
  octavo simulate --paper vllm

docs/simulation.md explains the machines, the models of time, and how sure a simulation is."""

_LIST = "list"
"""Instead of a name: show all of them."""
_MACHINE = "The machine"
_KNOBS = "The server's knobs"
_OUTPUT = "What is shown"
_ASKING = "How requests are asked"
_PAPER = "Published experiments"


def simulate(
    context: typer.Context,
    workload: Annotated[
        str | None,
        typer.Option(metavar="FILE|PRESET", help="Who asks what, and when: see octavo workload --help."),
    ] = None,
    preset: Annotated[
        Literal["tutorial"] | None,
        typer.Option(
            help="`tutorial`: a lesson's model of static and continuous batching, and what it leaves out."
        ),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_PAPER,
            help="`vllm`, `sarathi` or `orca`: a paper's experiments again, beside what was published.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", rich_help_panel=_PAPER, help="With few requests: seconds, and rough numbers."
        ),
    ] = False,
    rate: Annotated[
        float | None, typer.Option(metavar="RATE", help="Sessions a second, instead of the workload's own.")
    ] = None,
    cv: Annotated[
        float | None,
        typer.Option(metavar="CV", help="Deviation of the gaps over their mean: above 1 is bursts."),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=1, max=10**9, metavar="COUNT", help="Instead of the workload's own number."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="NUMBER", help="Instead of the workload's own.")
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=_MACHINE, help="Of the catalogue; list shows all.")
    ] = "llama-3-8b",
    hardware: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_MACHINE,
            help="Of the catalogue, list shows all; here: this machine, as it was calibrated.",
        ),
    ] = "a100-80",
    pace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_MACHINE,
            help="A calibration, or a table of terms, in place of the catalogue's machine.",
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|URL",
            rich_help_panel=_MACHINE,
            help="Measure steps of a model here, or of a server, and save what they take.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            metavar="COUNT",
            rich_help_panel=_MACHINE,
            help="Of the engine that --calibrate measures; a server's are noted for octavo plan.",
        ),
    ] = None,
    tensor_parallel: Annotated[
        int,
        typer.Option(
            min=1, max=64, metavar="COUNT", rich_help_panel=_MACHINE, help="So many of them, as one."
        ),
    ] = 1,
    weight_bits: Annotated[
        float, typer.Option(min=1, max=32, metavar="BITS", rich_help_panel=_MACHINE, help="Of each weight.")
    ] = 16,
    kv_bits: Annotated[
        float,
        typer.Option(
            min=1, max=32, metavar="BITS", rich_help_panel=_MACHINE, help="Of each number in K and V."
        ),
    ] = 16,
    arithmetic: Annotated[
        Literal["bf16", "int8", "fp8"],
        typer.Option(rich_help_panel=_MACHINE, help="In which matrices are multiplied."),
    ] = "bf16",
    memory_utilization: Annotated[
        float,
        typer.Option(
            "--memory-utilization",
            "--gpu-memory-utilization",
            min=0.01,
            max=1,
            metavar="SHARE",
            rich_help_panel=_KNOBS,
            help="Of the memory in use.",
        ),
    ] = 0.9,
    block_size: Annotated[
        int, typer.Option(min=1, max=1024, metavar="TOKENS", rich_help_panel=_KNOBS, help="In a KV block.")
    ] = 16,
    max_running: Annotated[
        int,
        typer.Option(
            "--max-running",
            "--max-num-seqs",
            min=1,
            max=65536,
            metavar="COUNT",
            rich_help_panel=_KNOBS,
            help="Sequences at once.",
        ),
    ] = 256,
    max_step_tokens: Annotated[
        int,
        typer.Option(
            "--max-step-tokens",
            "--max-num-batched-tokens",
            min=1,
            max=1 << 20,
            metavar="TOKENS",
            rich_help_panel=_KNOBS,
            help="The budget of a step.",
        ),
    ] = 2048,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", rich_help_panel=_KNOBS, help="In one sequence.")
    ] = None,
    policy: Annotated[
        PolicyName, typer.Option(rich_help_panel=_KNOBS, help="How prompts and decodes share a step.")
    ] = "stall-free",
    allocator: Annotated[
        AllocatorName, typer.Option(rich_help_panel=_KNOBS, help="How a sequence gets KV memory.")
    ] = "paged",
    prefix_cache: Annotated[
        bool,
        typer.Option("--prefix-cache/--no-prefix-cache", rich_help_panel=_KNOBS, help="Reuse beginnings."),
    ] = True,
    tbt_target: Annotated[
        float | None,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            rich_help_panel=_KNOBS,
            help="The longest step of a stream.",
        ),
    ] = None,
    ttft_target: Annotated[
        float | None,
        typer.Option(
            parser=parse_duration, metavar="TIME", rich_help_panel=_KNOBS, help="When a first token is due."
        ),
    ] = None,
    profile: Annotated[
        ProfileName | None, typer.Option(rich_help_panel=_KNOBS, help="Targets by the kind of use.")
    ] = None,
    priority_aging: Annotated[
        float,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            rich_help_panel=_KNOBS,
            help="Who has waited so long counts as one priority earlier; 0 for never.",
        ),
    ] = "60s",  # type: ignore[assignment]
    speculation: Annotated[
        str,
        typer.Option(
            metavar="SHARE|FILE[:WORK]|off",
            rich_help_panel=_KNOBS,
            help="Share of guessed tokens that are right, or an acceptance profile.",
        ),
    ] = "off",
    speculation_tokens: Annotated[
        int | None,
        typer.Option(metavar="COUNT", rich_help_panel=_KNOBS, help="In every step; else as many as pay."),
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option(metavar="NAME", rich_help_panel=_KNOBS, help="Who guesses; else it takes no time."),
    ] = None,
    n: Annotated[
        int, typer.Option("--n", metavar="COUNT", rich_help_panel=_ASKING, help="Answers to each prompt.")
    ] = 1,
    beam_width: Annotated[
        int,
        typer.Option(
            metavar="COUNT", rich_help_panel=_ASKING, help="Beam search with so many beams; 0: none."
        ),
    ] = 0,
    replicas: Replicas = 1,
    router: Routing = "least-loaded",
    fail: Fail = None,
    mtbf: Mtbf = None,
    repair: Repair = "60s",  # type: ignore[assignment]  # parsed as what is typed
    autoscale: Autoscale = None,
    scale_target: ScaleTarget = 16.0,
    scale_every: ScaleEvery = "15s",  # type: ignore[assignment]
    cold_start: ColdStart = "60s",  # type: ignore[assignment]
    scale_down_after: ScaleDownAfter = "5min",  # type: ignore[assignment]
    prefill_replicas: PrefillReplicas = 0,
    decode_replicas: DecodeReplicas = 0,
    link: LinkRate = "25GB/s",  # type: ignore[assignment]
    link_latency: LinkLatency = "1ms",  # type: ignore[assignment]
    allow_refused: Annotated[
        bool,
        typer.Option(
            "--allow-refused",
            rich_help_panel=_ASKING,
            help="Requests that are too long for the server count as failed, and the others go on.",
        ),
    ] = False,
    compare_naive: Annotated[
        bool,
        typer.Option(
            "--compare-naive",
            rich_help_panel=_OUTPUT,
            help="Instead: how often an engine that watches no memory dies of this workload.",
        ),
    ] = False,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="TARGETS", rich_help_panel=_OUTPUT, help="Such as 'ttft_p99<500ms,itl_p99<100ms'."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", rich_help_panel=_OUTPUT, help="The record, as octavo bench's."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", rich_help_panel=_OUTPUT, help="The report as a page."),
    ] = None,
    gantt: Annotated[
        str | None,
        typer.Option(
            metavar="FROM:TO|stall",
            rich_help_panel=_OUTPUT,
            help="Who did what in which step, from one second to another, or around the longest stall.",
        ),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_OUTPUT,
            help="All steps, or those of --gantt FROM:TO: *.json for ui.perfetto.dev, else JSON lines.",
        ),
    ] = None,
) -> None:
    """Run a workload through the real scheduler on a virtual clock, with the step times of a machine's roofline.

    Nothing of it was measured on that machine, so each figure comes with a range: between kernels that reach little of
    the peaks and kernels that reach nearly all.
    """
    from rich.console import Console

    from octavo.errors import InvalidParameter

    console = Console(highlight=False, emoji=False)
    if _LIST in (hardware, model):
        from octavo.cli.simulate_catalogue import print_catalogue

        print_catalogue(console, machines=hardware == _LIST, models=model == _LIST)
        return
    if [workload, preset, paper, calibrate].count(None) != 3:
        raise InvalidParameter("Give either --workload or --preset tutorial or --paper or --calibrate.")
    if quick and paper is None:
        raise InvalidParameter("--quick is for --paper; a workload has --requests.")
    if threads is not None and calibrate is None:
        raise InvalidParameter("--threads is about the engine that --calibrate measures; leave it out.")
    if preset is not None:
        _tutorial(console)
        return
    if paper is not None:
        from octavo.cli.simulate_paper import run_paper

        run_paper(paper, console, quick=quick, output=output, html=html)
        return
    from octavo.simulation.asking import Asking

    given = typed(context)
    if calibrate is not None:
        from octavo.cli import simulate_pace

        knobs = {name: context.params[name] for name in simulate_pace.KNOBS if name in given}
        simulate_pace.calibrate(calibrate, output, knobs, threads, console)
        return
    from octavo.simulation.deployment import Deployment

    deployment = Deployment(
        model=model,
        hardware=hardware,
        tensor_parallel=tensor_parallel,
        weight_bits=weight_bits,
        kv_bits=kv_bits,
        arithmetic=arithmetic,
        memory_utilization=memory_utilization,
        block_size=block_size,
        max_running=max_running,
        max_step_tokens=max_step_tokens,
        max_model_len=max_model_len,
        policy=policy,
        allocator=allocator,
        prefix_cache=prefix_cache,
        tbt_target_s=tbt_target,
        ttft_target_s=ttft_target,
        profile=profile,
        priority_aging_s=priority_aging,
        speculation=speculation,
        speculation_tokens=speculation_tokens,
        draft_model=draft_model,
    )
    assert workload is not None
    from octavo.cli.simulate_fleet import fleet_of
    from octavo.cli.simulate_run import Asked, run

    code = run(
        Asked(
            workload=workload,
            rate=rate,
            cv=cv,
            requests=requests,
            seed=seed,
            deployment=deployment,
            pace=pace,
            given=given,
            asking=Asking(n=n, beam_width=beam_width),
            fleet=fleet_of(context.params, given),
            compare_naive=compare_naive,
            allow_refused=allow_refused,
            slo=slo,
            output=output,
            html=html,
            gantt=gantt,
            steps=steps,
        ),
        console,
    )
    if code:
        raise typer.Exit(code)


def _tutorial(console: Console) -> None:
    from rich.table import Table

    from octavo.simulation.tutorial import BATCHES, PROMPT_TOKEN_MS, continuous, requests, static

    pairs = requests()
    for prompt_token_ms in PROMPT_TOKEN_MS:
        table = Table(
            "batch", "static", "", "static, all prompts paid", "", "continuous", "", box=None, pad_edge=False
        )
        for batch in BATCHES:
            outcomes = (
                static(pairs, batch, prompt_token_ms),
                static(pairs, batch, prompt_token_ms, "each"),
                continuous(pairs, batch, prompt_token_ms),
            )
            table.add_row(str(batch), *(cell for one in outcomes for cell in _cells(one)))
        console.print(f"{len(pairs)} requests, {prompt_token_ms:g} ms for each token of a prompt:")
        console.print(table)
        console.print()
    console.print(_LESSON, markup=False)


def _cells(outcome: Outcome) -> tuple[str, str]:
    return f"{outcome.seconds:.2f} s", f"{outcome.tokens_s:.1f} tok/s"


_LESSON = """\
The first and the last column are the lesson's. Its batch of 8 contradicts it: static batching looks faster there,
though a batch waits for its longest answer. The reason is in the account, not in the scheduler: the static batch is
charged for one prompt, its longest, as if a machine computed the others for nothing; continuous batching is charged
for every prompt. With more requests in a batch more prompts are free, and with 2 ms a token that decides everything.

The column in the middle charges both alike. There continuous batching is never slower: it computes the same prompts,
and needs fewer steps, since nobody waits for the longest answer. What it still does, in the lesson as in engines that
admit whole prompts, is let everyone wait while a prompt is computed; see `--policy` for that.
"""
