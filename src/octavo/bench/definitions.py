"""What each metric is: its name, unit, words, formula, and whose definition it is. Knows how nothing is computed.

The HTML page, the terminal and docs/bench.md all take their words from here.
"""

from __future__ import annotations

import difflib
from typing import Literal

import msgspec

from octavo.errors import InvalidParameter

__all__ = ["DEFINITIONS", "DISTRIBUTIONS", "SCALARS", "STATS", "Definition", "definition", "known", "split"]

STATS = ("mean", "std", "min", "max", "p50", "p75", "p90", "p95", "p99", "p99_9")
"""What there is of a distribution; p99_9 is the percentile 99.9."""

Unit = Literal["s", "s/token", "1/s", "tokens/s", "share", "count", "cores"]


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One metric."""

    name: str
    label: str
    """As tables show it."""
    unit: Unit
    distribution: bool = False
    """It has a mean, percentiles and so on, named `<name>_p99`; else it is one number, named `<name>`."""
    better: Literal["lower", "higher"] | None = None
    """None where neither is, by itself."""
    words: str
    """One plain sentence."""
    formula: str
    source: str = "ours"
    """Whose definition it is."""
    excluded: str = ""
    """What is not in it."""


_GOOD = "requests that failed"

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        name="ttft", label="TTFT", unit="s", distribution=True, better="lower",
        words="How long after it was sent a request had its first token.",
        formula="time of the first event with text (answer, reasoning or tool call) - time sent",
        source="the field's; vLLM's and LLMPerf's clients, DistServe (Zhong et al., OSDI 2024)",
        excluded=f"{_GOOD}, answers without any text, events that have only a role, a count or nothing",
    ),
    Definition(
        name="ttft_intended", label="TTFT from arrival", unit="s", distribution=True, better="lower",
        words="How long after it should have been sent a request had its first token: what a user would have waited.",
        formula="time of the first event with text - intended arrival",
        source="wrk2 and HdrHistogram (Tene), against coordinated omission",
        excluded=f"{_GOOD}, answers without any text",
    ),
    Definition(
        name="ttfa", label="TTFA", unit="s", distribution=True, better="lower",
        words="How long after it was sent a request had the first token of its answer, after any reasoning.",
        formula="time of the first event with text of the answer or a tool call - time sent",
        source="the time to first output token of NVIDIA AIPerf",
        excluded=f"{_GOOD}, reasoning, answers that are only reasoning",
    ),
    Definition(
        name="ttfs", label="TTFS", unit="s", distribution=True, better="lower",
        words="How long after it was sent a request had the first whole sentence of its answer, "
        "or the whole answer where it has none: when a voice can begin.",
        formula="time of the event that ended the first sentence, else of the finish - time sent",
                excluded=f"{_GOOD}, answers without text of their own",
    ),
    Definition(
        name="tpot", label="TPOT", unit="s/token", distribution=True, better="lower",
        words="How long each further token of a request took, on average over the request.",
        formula="(time of the last token - time of the first) / (tokens - tokens that came with the first)",
        source="vLLM's client, (E2E - TTFT) / (tokens - 1), made exact for a first event with several tokens",
        excluded=f"{_GOOD}, answers that came in one event, answers whose tokens nobody counted",
    ),
    Definition(
        name="itl", label="ITL", unit="s", distribution=True, better="lower",
        words="The gap between two neighbouring tokens, all gaps of all requests together.",
        formula="time of token i + 1 - time of token i; 0 between tokens of one event",
        source="TBT of Sarathi-Serve (Agrawal et al., OSDI 2024), token by token",
        excluded=f"{_GOOD}, the time before the first token",
    ),
    Definition(
        name="icl", label="ICL", unit="s", distribution=True, better="lower",
        words="The gap between two neighbouring events with text or tokens, all gaps of all requests together.",
        formula="time of event i + 1 - time of event i",
        source='what the clients of vLLM and SGLang call "ITL"; inter-chunk latency of NVIDIA AIPerf',
        excluded=f"{_GOOD}, the time before the first token, events that have only a role, a count or nothing",
    ),
    Definition(
        name="e2e", label="E2E", unit="s", distribution=True, better="lower",
        words="How long after it was sent a request had its whole answer.",
        formula="time of the answer's end - time sent",
        source="the field's",
        excluded=_GOOD,
    ),
    Definition(
        name="e2e_intended", label="E2E from arrival", unit="s", distribution=True, better="lower",
        words="How long after it should have been sent a request had its whole answer.",
        formula="time of the answer's end - intended arrival",
        source="wrk2 and HdrHistogram (Tene), against coordinated omission",
        excluded=_GOOD,
    ),
    Definition(
        name="normalized", label="Normalized latency", unit="s/token", distribution=True, better="lower",
        words="A request's whole time, waiting too, for each token of its answer.",
        formula="(time of the answer's end - intended arrival) / output tokens",
        source="Orca (Yu et al., OSDI 2022: the median) and vLLM (Kwon et al., SOSP 2023: the mean)",
        excluded=f"{_GOOD}, answers whose tokens nobody counted",
    ),
    Definition(
        name="lag", label="Schedule lag", unit="s", distribution=True,
        words="How late the measuring process turned to a request.",
        formula="time it was turned to - intended arrival",

        excluded="the opening of a connection, which is the server's time too, and requests that were never turned to",
    ),
    Definition(
        name="connect", label="Connection", unit="s", distribution=True,
        words="How long a new connection and the sending took.",
        formula="time sent - time the measuring process turned to it, where a connection was opened",
        excluded="requests that used an open connection again",
    ),
    Definition(
        name="requests", label="Requests", unit="count",
        words="How many requests were meant to be sent in the window.",
        formula="count of intended arrivals in the window",
    ),
    Definition(
        name="offered_rate", label="Offered", unit="1/s",
        words="How many requests a second were meant to be sent.",
        formula="intended arrivals in the window / its length",
    ),
    Definition(
        name="request_rate", label="Answered", unit="1/s", better="higher",
        words="How many whole answers came a second.",
        formula="answers without an error that ended in the window / its length",
        source="the field's, over a steady window",
    ),
    Definition(
        name="output_rate", label="Output", unit="tokens/s", better="higher",
        words="How many tokens of answers came a second.",
        formula="tokens received in the window / its length",
        source="the field's, over a steady window",
        excluded="tokens of answers that failed later",
    ),
    Definition(
        name="input_rate", label="Input", unit="tokens/s", better="higher",
        words="How many tokens of prompts were worked off a second, those found in a cache too.",
        formula="tokens of the prompts whose first token came in the window / its length",
        source="the field's, over a steady window",
        excluded=_GOOD,
    ),
    Definition(
        name="total_rate", label="Input and output", unit="tokens/s", better="higher",
        words="Both together.",
        formula="input_rate + output_rate",
    ),
    Definition(
        name="goodput", label="Goodput", unit="share", better="higher",
        words="The share of offered requests that were good: answered, and within the target where one is given.",
        formula="good requests / requests; what failed, timed out or was never sent is not good",
        source="SLO attainment of DistServe (Zhong et al., OSDI 2024)",
    ),
    Definition(
        name="goodput_rate", label="Goodput rate", unit="1/s", better="higher",
        words="How many good requests there were a second.",
        formula="good requests / length of the window",
        source="DistServe (Zhong et al., OSDI 2024), over offered requests",
    ),
    Definition(
        name="error_share", label="Errors", unit="share", better="lower",
        words="The share of offered requests without a good answer: errors, timeouts, never sent.",
        formula="requests with an error / requests",
    ),
    Definition(
        name="short_share", label="Short answers", unit="share",
        words="The share of answers that ended with fewer tokens than the workload asks for.",
        formula="answers with output tokens < wanted / answers that the server counted",
    ),
    Definition(
        name="concurrency", label="In flight", unit="count",
        words="How many requests were in flight, on average over time.",
        formula="time in flight within the window, summed over requests / its length",
    ),
    Definition(
        name="concurrency_max", label="In flight, at most", unit="count",
        words="How many requests were in flight at most.",
        formula="maximum over the window",
    ),
    Definition(
        name="cached_share", label="Cached prompt", unit="share",
        words="The share of prompt tokens that the server found in its cache, as its answers tell.",
        formula="cached tokens / prompt tokens, of answers that tell both; where none does, prefix_hit_share",
        source="OpenAI's API, usage.prompt_tokens_details.cached_tokens",
    ),
    Definition(
        name="prefix_hit_share", label="Prefix hits", unit="share",
        words="The share of prompt tokens looked up that were found in the prefix cache, as the server's metrics tell, "
        "for others too.",
        formula="tokens found / tokens looked up, both as growth over the window",
        source="vLLM's metrics",
    ),
    Definition(
        name="kv_use", label="KV in use", unit="share",
        words="How full the server's KV memory was, on average.",
        formula="mean of the readings in the window",
        source="vLLM's metrics",
    ),
    Definition(
        name="kv_use_max", label="KV in use, at most", unit="share",
        words="How full the server's KV memory was at most.",
        formula="maximum of the readings in the window",
    ),
    Definition(
        name="server_running", label="Running", unit="count",
        words="How many requests the server worked on, on average.",
        formula="mean of the readings in the window",
    ),
    Definition(
        name="server_running_max", label="Running, at most", unit="count",
        words="How many requests the server worked on at most.",
        formula="maximum of the readings in the window",
    ),
    Definition(
        name="server_waiting", label="Waiting", unit="count",
        words="How many requests waited in the server, on average.",
        formula="mean of the readings in the window",
    ),
    Definition(
        name="server_waiting_max", label="Waiting, at most", unit="count",
        words="How many requests waited in the server at most.",
        formula="maximum of the readings in the window",
    ),
    Definition(
        name="preemptions", label="Preemptions", unit="count", better="lower",
        words="How often the server set a running request back.",
        formula="growth of the counter over the window",
        source="vLLM's metrics",
    ),
    Definition(
        name="busy_share", label="Engine busy", unit="share",
        words="The share of time in which the server's engine computed.",
        formula="growth of its busy time / time; else 1 - growth of its idle time / time",
    ),
    Definition(
        name="busy_share_estimate", label="Engine busy, estimated", unit="share",
        words="In what share of the readings the server worked on a request, even between its engine's steps.",
        formula="readings with running requests / readings in the window",
    ),
    Definition(
        name="server_output_rate", label="Output, by the server", unit="tokens/s",
        words="How many tokens a second the server says it made, for others too.",
        formula="growth of its counter / time",
    ),
    Definition(
        name="server_input_rate", label="Input, by the server", unit="tokens/s",
        words="How many prompt tokens a second the server says it took, from others too.",
        formula="growth of its counter / time",
    ),
    Definition(
        name="client_cpu", label="Own processor", unit="cores",
        words="How much of one core the measuring process used, on average.",
        formula="mean of the samples in the window",
    ),
    Definition(
        name="client_cpu_max", label="Own processor, at most", unit="cores",
        words="How much of one core the measuring process used at most.",
        formula="maximum of the samples in the window",
    ),
    Definition(
        name="loop_lag_p50", label="Own loop's lag, p50", unit="s",
        words="How late the measuring process woke, half of the time at most.",
        formula="percentile 50 of the samples in the window",
    ),
    Definition(
        name="loop_lag_p99", label="Own loop's lag, p99", unit="s",
        words="How late the measuring process woke, 99 % of the time at most: so late may time stamps be.",
        formula="percentile 99 of the samples in the window",
    ),
)  # fmt: skip
"""In the order in which they are shown."""

_BY_NAME = {one.name: one for one in DEFINITIONS}

DISTRIBUTIONS = tuple(one.name for one in DEFINITIONS if one.distribution)
SCALARS = tuple(one.name for one in DEFINITIONS if not one.distribution)


def known() -> list[str]:
    """Every name that `Measures.value` takes."""
    return [*SCALARS, *(f"{name}_{stat}" for name in DISTRIBUTIONS for stat in STATS)]


def split(name: str) -> tuple[Definition, str | None]:
    """The metric of a value's name, and which of `STATS` it is: of "ttft_p99", TTFT's and "p99".

    Raises InvalidParameter for a name that there is not.
    """
    if (found := _BY_NAME.get(name)) is not None and not found.distribution:
        return found, None
    for stat in STATS:
        metric = _BY_NAME.get(name.removesuffix(f"_{stat}"))
        if metric is not None and metric.distribution and name.endswith(f"_{stat}"):
            return metric, stat
    if found is not None:
        reason = f"is a distribution; say which value of it: {', '.join(f'{name}_{stat}' for stat in STATS)}."
    else:
        close = difflib.get_close_matches(name, known(), 1)
        reason = "is no metric; " + (f"did you mean {close[0]}?" if close else "docs/bench.md lists them.")
    raise InvalidParameter(f"{name} {reason}", name)


def definition(name: str) -> Definition:
    """Of a metric ("ttft") or of a value ("ttft_p99"). Raises InvalidParameter for a name that there is not."""
    return _BY_NAME[name] if name in _BY_NAME else split(name)[0]
