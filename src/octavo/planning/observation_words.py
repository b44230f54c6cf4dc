"""What an observation says in sentences, for terminal and page alike. Knows observations, no layout."""

from __future__ import annotations

from octavo.bench.shown import label_of, show
from octavo.planning.observation import Observation
from octavo.planning.remedies import Check, Effect, Remedy
from octavo.planning.words import BINDS

__all__ = [
    "advice_lines",
    "brings",
    "check_rows",
    "effect_of",
    "remedy_heads",
    "remedy_rows",
    "settings_words",
    "verdict",
]


def verdict(told: Observation) -> str:
    """The answer, in a sentence."""
    best = told.best
    if not told.trusted:
        off = "; ".join(_off(one) for one in told.checks if one.far) or "it could not be simulated"
        return f"No advice: the simulation does not tell this server as it was ({off})."
    if told.slo is not None and told.meets:
        start = f"The server meets {told.slo} as it is"
        return f"{start}." if best is None else f"{start}; better still: {best.option}."
    if best is None:
        missed = "" if told.slo is None else f", and none that was tried meets {told.slo}"
        return (
            "No single option would help: each that was tried changes little, or makes something else worse"
            f"{missed}."
        )
    if told.slo is not None:
        end = f", which should meet {told.slo}" if best.meets else f", though {told.slo} is still not met"
        return f"Change one thing: {best.option}{end}."
    return f"Change one thing: {best.option}."


def brings(remedy: Remedy) -> list[str]:
    """What the change should bring, number by number; what changes little is left out."""
    lines = []
    for name, effect in remedy.effects.items():
        if name in remedy.better or name in remedy.worse:
            word = "worse" if name in remedy.worse else "better"
            lines.append(f"{label_of(name)}: {effect_of(name, effect)}, {_times(effect)} ({word})")
        else:
            lines.append(f"{label_of(name)}: about as it is ({show(name, effect.value)})")
    return lines


def advice_lines(told: Observation) -> list[str]:
    """What binds, how sure it is, and what was not looked at."""
    lines = []
    if told.binds is not None:
        lines.append(f"What binds is {BINDS[told.binds.kind]}: {told.binds.why}.")
    if told.best is not None:
        if told.best.outside > 0.02:
            lines.append(
                f"In {told.best.outside:.0%} of its steps there is more of something than in any that was seen: there "
                "the terms are drawn on in straight lines."
            )
        if told.best.knob == "servers":
            lines.append("No option of this server does as much.")
    lines.append(
        f"Step times are fitted to {told.fitted.steps:,} steps of this server; those that the fit had not seen are "
        f"predicted within {told.fitted.error_p50:.1%} in the median, {told.fitted.error_p95:.1%} at P95."
    )
    return [*lines, *told.notes]


def settings_words(told: Observation) -> str:
    """How the server is set."""
    one = told.setting
    words = [one.policy, f"{one.max_step_tokens:,} tokens a step", f"{one.max_running} at once"]
    words.append(f"{one.num_blocks * one.block_size:,} tokens of K and V")
    words.append("prefix cache" if one.prefix_cache else "no prefix cache")
    if one.tbt_target_s is not None:
        words.append(f"TBT target {1e3 * one.tbt_target_s:g} ms")
    if one.allocator != "paged":
        words.append(one.allocator)
    words.append("speculation" if one.speculates else "no speculation")
    return ", ".join(words)


def check_rows(told: Observation) -> list[list[str]]:
    """Each number as it was, as the simulation has it, and the difference."""
    rows = []
    for one in told.checks:
        if one.seen is None and one.simulated is None:
            continue
        off = "" if one.off is None else f"{100 * one.off:+.0f} %"
        far = " too far" if one.far else ""
        rows.append([label_of(one.name), show(one.name, one.seen), show(one.name, one.simulated), off + far])
    return rows


def remedy_rows(told: Observation, names: tuple[str, ...]) -> list[list[str]]:
    """One for each change that was tried: the option and its value, the numbers, a word. Rates have no unit."""
    rows = []
    for one in [] if told.same is None else [told.same, *told.remedies]:
        values = [_plain(name, one.effects[name].value) if name in one.effects else "–" for name in names]
        title = f"{one.knob}: {one.value}" if one.knob else one.value
        rows.append([title, *values, _word(told, one) if one.knob else ""])
    return rows


def remedy_heads(names: tuple[str, ...]) -> list[str]:
    """Of these rows, but the first and the last."""
    return ["Tokens/s" if name == "output_rate" else label_of(name) for name in names]


def _plain(name: str, value: float | None) -> str:
    return show(name, value).removesuffix(" tokens/s")


def effect_of(name: str, effect: Effect) -> str:
    """`1.2 s (0.9 s to 1.6 s)`."""
    low, high = show(name, effect.low), show(name, effect.high)
    return f"{show(name, effect.value)} ({low} to {high})"


def _word(told: Observation, one: Remedy) -> str:
    if one.unfit is not None:
        return "impossible"
    if told.slo is not None and one.meets:
        return "meets it"
    if one.helps:
        return "better"
    if one.better:
        return "mixed"
    return "worse" if one.worse else "little"


def _times(effect: Effect) -> str:
    percent = 100 * (effect.ratio - 1)
    if effect.ratio >= 2 or effect.ratio <= 0.5:
        return f"{effect.ratio:.1f} times as much" if effect.ratio >= 2 else f"a {1 / effect.ratio:.1f}th"
    return f"{percent:+.0f} %"


def _off(one: Check) -> str:
    return f"{label_of(one.name)} was {show(one.name, one.seen)}, and it says {show(one.name, one.simulated)}"
