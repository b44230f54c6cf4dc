"""`octavo plan`: the cheapest way to serve a workload within a target. Knows arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from octavo.cli.bench_options import numbers
from octavo.cli.options import parse_duration, typed
from octavo.errors import InvalidParameter

__all__ = ["PLAN_EXAMPLES", "plan"]

PLAN_EXAMPLES = """Examples:
  octavo plan --model llama-3-8b --workload chat --rate 4 --slo 'ttft_p99<1s,itl_p99<50ms'
  octavo plan --model llama-3-70b --workload rag --rate 1 --slo 'ttft_p95<2s' --hardware h100,h200 --html plan.html
  octavo plan --model llama-3-8b --workload chat --rate 4 --slo 'ttft_p99<1s' --hosted gpt-4.1-mini --journal plan.jsonl
  octavo plan --model smollm2 --hardware here --workload chat --rate 0.5 --slo 'ttft_p95<1s,tpot_p95<60ms'
  octavo plan --observe http://127.0.0.1:8000 --for 60s

Exit codes: 0 a plan was found; 1 nothing meets the target; 2 bad input, or a server that cannot be watched; 3 the
simulation does not tell the watched server as it was; 130 interrupted.
docs/planning.md explains how it searches, and how sure it is."""

_RUNNING = "A server that runs"
_OBSERVED = ("for_", "key_env", "insecure")
_ASKED, _SPACE, _SEARCH, _OUTPUT = "What is asked", "What may be chosen", "The search", "What is shown"


HERE = "here"
"""This machine, among the names of hardware."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(piece.strip() for piece in text.split(",") if piece.strip()))


def plan(
    context: typer.Context,
    *,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", rich_help_panel=_ASKED, help="Of the catalogue of octavo simulate."),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload", "-w", metavar="FILE|PRESET", rich_help_panel=_ASKED, help="Who asks what, and when."
        ),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="BOUNDS",
            rich_help_panel=_ASKED,
            help="What is fast enough, such as 'ttft_p99<1s,itl_p99<50ms'.",
        ),
    ] = None,
    observe: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            rich_help_panel=_RUNNING,
            help="Instead of all this: watch an Octavo server, simulate its load, and say which option to change.",
        ),
    ] = None,
    for_: Annotated[
        float,
        typer.Option(
            "--for",
            parser=parse_duration,
            metavar="TIME",
            rich_help_panel=_RUNNING,
            help="So long. Ctrl-C ends it, and what there is counts.",
        ),
    ] = "60s",  # type: ignore[assignment]
    key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_RUNNING,
            help="The variable of the environment with the API key; by default OPENAI_API_KEY, where it is set.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", rich_help_panel=_RUNNING, help="Take any TLS certificate.")
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="RATE", rich_help_panel=_ASKED, help="Sessions a second, instead of the workload's own."
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            rich_help_panel=_SPACE,
            help="Accelerators, with commas between them; without it all whose rent is known. here: this machine, as "
            "it was calibrated.",
        ),
    ] = None,
    pace: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_SPACE,
            help="Plan for the machine of this calibration (octavo simulate --calibrate). May be given several times: "
            "with other numbers of threads.",
        ),
    ] = None,
    kv_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            rich_help_panel=_SPACE,
            help="For K and V on a calibrated machine; without it powers of two, up to what was calibrated.",
        ),
    ] = None,
    speculation: Annotated[
        str,
        typer.Option(
            metavar="VALUES",
            rich_help_panel=_SPACE,
            help="off, and the share of guessed tokens that are right or an acceptance profile: off,0.6 tries both.",
        ),
    ] = "off",
    draft_model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_SPACE,
            help="Of the catalogue, who guesses; without it nobody takes time.",
        ),
    ] = None,
    mtbf: Annotated[
        float | None,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            rich_help_panel=_ASKED,
            help="Replicas die, so long after their start in the mean, such as 12h; the SLO must hold then too.",
        ),
    ] = None,
    repair: Annotated[
        float,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            rich_help_panel=_ASKED,
            help="Until a new one serves in its place.",
        ),
    ] = "60s",  # type: ignore[assignment]
    weight_bits: Annotated[
        str,
        typer.Option(
            metavar="BITS", rich_help_panel=_SPACE, help="Of each weight. Fewer change the answers."
        ),
    ] = "16,8,4",
    tensor_parallel: Annotated[
        str, typer.Option(metavar="COUNTS", rich_help_panel=_SPACE, help="Accelerators that work as one.")
    ] = "1,2,4,8",
    policies: Annotated[
        str,
        typer.Option(metavar="NAMES", rich_help_panel=_SPACE, help="How prompts and decodes share a step."),
    ] = "stall-free,prefill-first,continuous",
    max_step_tokens: Annotated[
        str, typer.Option(metavar="COUNTS", rich_help_panel=_SPACE, help="Budgets of a step.")
    ] = "2048,512,8192",
    max_running: Annotated[
        str, typer.Option(metavar="COUNTS", rich_help_panel=_SPACE, help="Sequences at once.")
    ] = "256,64",
    memory_utilization: Annotated[
        str, typer.Option(metavar="SHARES", rich_help_panel=_SPACE, help="Of the memory in use.")
    ] = "0.9,0.8,0.95",
    max_accelerators: Annotated[
        int,
        typer.Option(
            min=1, max=4096, metavar="COUNT", rich_help_panel=_SPACE, help="In all replicas together."
        ),
    ] = 64,
    kernels: Annotated[
        Literal["low", "typical", "high"],
        typer.Option(
            rich_help_panel=_SPACE,
            help="What part of a machine's peaks kernels reach: low is the careful plan, high the hopeful one.",
        ),
    ] = "typical",
    hosted: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|PRICES",
            rich_help_panel=_SPACE,
            help="A seller to compare with: a name of octavo cost prices, or NAME:in=3,out=12; several may be given.",
        ),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=_SPACE, help="Rents and prices of your own: see docs/cost.md."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="NUMBER", rich_help_panel=_SEARCH, help="Instead of the workload's own."),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            min=1, max=50, metavar="COUNT", rich_help_panel=_SEARCH, help="Runs that confirm the plan."
        ),
    ] = 3,
    requests: Annotated[
        int,
        typer.Option(
            min=20, max=100_000, metavar="COUNT", rich_help_panel=_SEARCH, help="Of one replica in each run."
        ),
    ] = 300,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=256, metavar="COUNT", rich_help_panel=_SEARCH, help="Processes; as many as cores."
        ),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_SEARCH,
            help="Keeps what was simulated; an interrupted search goes on.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", rich_help_panel=_OUTPUT, help="A page with the trade-offs as pictures."
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", rich_help_panel=_OUTPUT, help="Print one JSON object in place of the tables."),
    ] = False,
) -> None:
    """Find the cheapest machines and settings that serve a workload within a target, by simulating the real scheduler.

    Nothing is bought or started: what is printed has the command line of each server, and how sure it is. With
    --observe, a server that runs is watched, and the one of its options named that should be changed.
    """
    given = typed(context)
    if observe is not None:
        _check_observed(given, for_)
        from octavo.cli.plan_observe import AskedOf, look_at

        code = look_at(
            AskedOf(
                url=observe,
                for_s=for_,
                key_env=key_env,
                insecure=insecure,
                slo=slo,
                seeds=seeds,
                workers=workers,
                html=html,
                json=json,
            )
        )
        if code:
            raise typer.Exit(code)
        return
    for name in _OBSERVED:
        if name in given:
            raise InvalidParameter(
                f"{_option(name)} is about a server that runs; give it with --observe URL."
            )
    if model is None or workload is None or slo is None:
        missing = [
            f"--{name}"
            for name, value in (("model", model), ("workload", workload), ("slo", slo))
            if value is None
        ]
        named = ", ".join(missing[:-1]) + " and " * (len(missing) > 1) + missing[-1]
        raise InvalidParameter(
            f"{named} {'is' if len(missing) == 1 else 'are'} missing: what is to be served to whom, "
            "and how fast; or watch a server that runs, with --observe URL."
        )
    from octavo.cli.plan_run import Asked, make_plan
    from octavo.planning.space import Space
    from octavo.planning.trying import Failing

    if pace or hardware == HERE:
        from octavo.cli.plan_here import HereAsked, plan_here

        code = plan_here(
            HereAsked(
                model=model,
                workload=workload,
                slo=slo,
                rate=rate,
                paces=tuple(pace or ()),
                kv_memory=kv_memory,
                policies=_names(policies),
                budgets=_whole("--max-step-tokens", max_step_tokens) if "max_step_tokens" in given else (),
                max_running=_whole("--max-running", max_running) if "max_running" in given else (),
                speculations=_names(speculation),
                given=given,
                seed=seed,
                seeds=seeds,
                requests=requests,
                workers=workers,
                journal=journal,
                html=html,
                json=json,
            )
        )
        if code:
            raise typer.Exit(code)
        return
    if kv_memory is not None:
        raise InvalidParameter("--kv-memory is about a calibrated machine; others have --memory-utilization.")
    space = Space(
        model=model,
        hardware=_names(hardware) if hardware is not None else (),
        weight_bits=numbers("--weight-bits", weight_bits),
        tensor_parallel=_whole("--tensor-parallel", tensor_parallel),
        policies=_names(policies),  # type: ignore[arg-type]
        budgets=_whole("--max-step-tokens", max_step_tokens),
        max_running=_whole("--max-running", max_running),
        utilizations=numbers("--memory-utilization", memory_utilization),
        max_accelerators=max_accelerators,
        kernels=kernels,
        speculations=_names(speculation),
        draft_model=draft_model,
    )
    code = make_plan(
        Asked(
            space=space,
            workload=workload,
            slo=slo,
            rate=rate,
            failing=None if mtbf is None else Failing(mtbf_s=mtbf, repair_s=repair),
            hosted=hosted,
            prices=prices,
            seed=seed,
            seeds=seeds,
            requests=requests,
            workers=workers,
            journal=journal,
            html=html,
            json=json,
        )
    )
    if code:
        raise typer.Exit(code)


def _option(name: str) -> str:
    return f"--{name.strip('_').replace('_', '-')}"


def _check_observed(given: frozenset[str], for_s: float) -> None:
    """Raise InvalidParameter for what is about machines to buy."""
    allowed = {"observe", *_OBSERVED, "slo", "seeds", "workers", "html", "json"}
    for name in sorted(given):
        if name not in allowed:
            raise InvalidParameter(
                f"{_option(name)} is about machines to choose; leave it out with --observe."
            )
    if not 1 <= for_s <= 86_400:
        raise InvalidParameter(f"--for is {for_s:g} s; watch for 1 s to 24 h.")


def _whole(option: str, text: str) -> tuple[int, ...]:
    found = numbers(option, text)
    if any(one != int(one) for one in found):
        raise InvalidParameter(f"{option} is {text!r}; write whole numbers with commas between them.")
    return tuple(int(one) for one in found)
