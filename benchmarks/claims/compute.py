"""Claims about arithmetic: prompts, the KV cache, the levers of TTFT and TPOT, rows in a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations
from statistics import median

from benchmarks.claims.finding import (
    Finding,
    Setting,
    finish,
    first_token_s,
    graded,
    ratio,
    rounds,
    timed_step,
)
from benchmarks.engine import add, products
from benchmarks.shapes import Shape
from octavo.backends.native import load_kernels
from octavo.engine.engine import Engine
from octavo.models.store import StoredModel
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add

__all__ = ["kv_cache", "levers", "prefill", "rows"]


def prefill(setting: Setting) -> Finding:
    """Prefill takes time in proportion to the prompt; the quadratic part, attention, is small at usual lengths."""
    lengths = (125, 500, 1000) if setting.quick else (500, 2000, 4000)
    chunk, longest, vocabulary = lengths[0], lengths[-1], setting.model.spec.vocab_size
    count = longest // chunk
    chunks: dict[int, list[float]] = defaultdict(list)
    relative: dict[int, list[float]] = defaultdict(list)
    with (
        setting.engine(
            max_step_tokens=chunk, max_model_len=longest + 16, num_blocks=longest // 16 + 2
        ) as engine,
        setting.engine(max_step_tokens=chunk, max_model_len=chunk + 16, num_blocks=chunk // 16 + 2) as other,
    ):

        def short() -> float:
            """Of a prompt of one chunk: what one behind others is compared with, before and after."""
            other.add(add("short", chunk, 1, vocabulary))
            return first_token_s(other)

        short()
        for _ in rounds(6, 12 if setting.quick else 40):
            engine.add(add("long", longest, 1, vocabulary))
            before = short()
            for number in range(count):
                taken, _ = timed_step(engine)
                after = short()
                chunks[number].append(taken)
                relative[number].append(2 * taken / (before + after))
                before = after
            finish(engine)
    constant, slope = line([(float(number), median(one)) for number, one in relative.items()])
    # A chunk behind n others reads the keys of n + ½ on average: half a slope of the constant is quadratic too.
    parts = [size // chunk for size in lengths]
    shares = [slope * n**2 / 2 / (constant * n + slope * n * (n - 1) / 2) for n in parts]
    seconds = [sum(median(chunks[number]) for number in range(n)) for n in parts]
    growth = [sum(median(relative[number]) for number in range(n)) for n in parts]
    return Finding(
        f"Prefill time is linear in the prompt ({', '.join(map(str, lengths))} tokens)",
        f"{', '.join(f'{taken:.2f}' for taken in seconds)} s: {growth[-1]:.1f} × the time for {parts[-1]} × the "
        f"tokens; quadratic part {', '.join(f'{100 * share:.0f}' for share in shares)} %",
        graded(shares[-1] < 0.2, shares[-1] < 0.5),
        f"Each further chunk of {chunk} tokens takes {100 * slope:.0f} % of the first one's time more, for attention "
        f"to those before; wider matrices than {setting.model.spec.hidden} would hide it longer. Each chunk of the "
        f"longest prompt, whose beginnings are the shorter ones, is taken beside a prompt of {chunk}. Holds below a "
        "quadratic part of 20 %, partly below 50 %.",
        {
            "seconds": seconds,
            "growth": growth,
            "quadratic_share": shares,
            "chunk_s": chunks,
            "relative": relative,
        },
    )


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Constant and slope through points, by the median of all slopes (Theil and Sen): outliers do not count."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2)]
    slope = max(median(slopes), 0.0)
    return median(y - slope * x for x, y in points), slope


def kv_cache(setting: Setting) -> Finding:
    """With a KV cache n tokens take n token passes; without one, 1 + 2 + … + n."""
    count = 60 if setting.quick else 200
    vocabulary = setting.model.spec.vocab_size
    begin = add("begin", 1, 1, vocabulary).prompt
    with setting.engine(max_model_len=count + 16, num_blocks=count // 16 + 8) as engine:
        generate(engine, "warm", begin, 8)
        runs = [generate(engine, "cached 0", begin, count)]
        tokens, passes, without_s = list(begin), 0, 0.0
        for number in range(count):
            if number == count // 2:
                runs.append(generate(engine, "cached 1", begin, count))
            chosen, computed, seconds = generate(engine, f"anew {number}", tuple(tokens), 1)
            tokens += chosen
            passes += computed
            without_s += seconds
        runs.append(generate(engine, "cached 2", begin, count))
    with_s = median(seconds for _, _, seconds in runs)
    cached = runs[0][1]
    exact = cached == count and passes == count * (count + 1) // 2
    same = all(list(begin) + answer == tokens for answer, _, _ in runs)
    faster, fewer = without_s / with_s, passes / cached
    return Finding(
        f"{count} tokens take {count:,} token passes with a KV cache, {count * (count + 1) // 2:,} without",
        f"{cached:,} and {passes:,} passes ({fewer:.0f} ×), {with_s:.2f} and {without_s:.2f} s ({faster:.1f} ×); "
        f"the tokens are {'the same' if same else 'NOT the same'}",
        graded(exact and same and faster >= fewer / 2, exact and same),
        "The passes are exact. The time is not in proportion to them: a step without a cache computes many tokens for "
        "one reading of the weights, a step with it only one. Holds if the time differs by half as much as the "
        "passes at least, partly if only the passes are right.",
        {"passes": [cached, passes], "seconds": [[run[2] for run in runs], without_s], "same": same},
    )


def generate(
    engine: Engine, name: str, prompt: tuple[int, ...], outputs: int
) -> tuple[list[int], int, float]:
    """The chosen tokens, the token passes that took, and seconds."""
    params = SamplingParams(temperature=0.0, max_tokens=outputs, ignore_eos=True, seed=0)
    engine.add(Add(name, prompt, params, 0.0))
    chosen, passes, seconds = [], 0, 0.0
    while not engine.idle:
        taken, told = timed_step(engine)
        seconds += taken
        passes += told.stats.step_tokens
        chosen += [sample.token for item in told.items for sample in item.samples]
    return chosen, passes, seconds


def levers(setting: Setting) -> Finding:
    """TPOT depends on the bits of the weights and TTFT on the length of the prompt: the levers are independent."""
    spec = setting.model.spec
    short, long = (32, 512) if setting.quick else (64, 1024)
    shape = Shape(spec.hidden, spec.layers, spec.heads, spec.kv_heads, spec.head_dim, spec.ffn)
    models = (setting.model, setting.random_model("wide", shape, "q8_0"))
    bits = [weight_bits(model) for model in models]
    sizes = [sum(tensor.nbytes for tensor in model.tensors.values()) for model in models]
    cells = [(which, tokens) for which in (0, 1) for tokens in (short, long)]
    ttft: dict[tuple[int, int], list[float]] = defaultdict(list)
    tpot: dict[tuple[int, int], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        engines = {}
        for which, tokens in cells:
            limits = {"max_model_len": long + 64, "num_blocks": long // 16 + 8}
            engine = stack.enter_context(setting.engine(model_dir=str(models[which].dir), **limits))
            generate(engine, "warm", add("warm", short, 1, spec.vocab_size).prompt, 8)
            engines[which, tokens] = engine
        for turn in rounds(4, 12 if setting.quick else 30):
            for cell in cells if turn % 2 else cells[::-1]:
                engines[cell].add(add("request", cell[1], 48, spec.vocab_size))
                ttft[cell].append(first_token_s(engines[cell]))
            for _ in range(24):
                for cell in cells:
                    tpot[cell].append(timed_step(engines[cell])[0])
            for engine in engines.values():
                engine.abort("request")
                finish(engine)
    by_bits = {"TPOT": ratio(tpot[1, short], tpot[0, short]), "TTFT": ratio(ttft[1, long], ttft[0, long])}
    by_prompt = {"TPOT": ratio(tpot[0, long], tpot[0, short]), "TTFT": ratio(ttft[0, long], ttft[0, short])}
    work = by_bits["TPOT"] >= 1.1 and by_prompt["TTFT"] >= 1.1
    crossing = [
        words
        for changed, words in (
            (by_bits["TTFT"], "Bits change TTFT too: their products take other instructions. "),
            (by_prompt["TPOT"], "Prompts change TPOT too: a step also reads their K and V. "),
        )
        if not 1 / 1.1 <= changed <= 1.1
    ]
    return Finding(
        "Weight bits set TPOT, the prompt's length sets TTFT: independent levers",
        f"{bits[0]:.1f} to {bits[1]:.1f} bits: TPOT × {by_bits['TPOT']:.2f}, TTFT × {by_bits['TTFT']:.2f}; {short} to "
        f"{long} tokens: TPOT × {by_prompt['TPOT']:.2f}, TTFT × {by_prompt['TTFT']:.1f}",
        graded(work and not crossing, work and len(crossing) == 1),
        "".join(crossing)
        + ("" if work else "One lever does not move its own time by 10 %. ")
        + f"{sizes[0] / 1e6:.0f} MB of weights, or {sizes[1] / 1e6:.0f} with random Q8_0 of the same shape (the "
        "kernels widen F16). Holds if each lever moves its own time by 10 % and not the other's, partly if one "
        "crosses over.",
        {
            "bits": bits,
            "ttft_s": keyed(ttft),
            "tpot_s": keyed(tpot),
            "by_bits": by_bits,
            "by_prompt": by_prompt,
        },
    )


def keyed(cells: dict[tuple[int, int], list[float]]) -> dict[str, list[float]]:
    return {f"{'Q8_0' if wide else 'own'}, {tokens} tokens": times for (wide, tokens), times in cells.items()}


def weight_bits(model: StoredModel) -> float:
    """Bits of an element of the layers' matrices, scales included."""
    layers = [
        tensor
        for tensor in model.tensors.values()
        if tensor.kind == "matrix" and tensor.rows != model.spec.vocab_size
    ]
    return 8 * sum(tensor.nbytes for tensor in layers) / sum(tensor.rows * tensor.cols for tensor in layers)


def rows(setting: Setting) -> Finding:
    """A step takes the same time up to B* rows, while memory is its limit, and from there on grows (roofline model)."""
    most, model = 64, setting.model
    counts = [64, 48, 32, 24, 16, 12, 8, 6, 5, 4, 3, 2, 1]
    relative: dict[int, list[float]] = defaultdict(list)
    alone, reads, rates = list[float](), list[float](), list[float]()
    kernels = load_kernels()
    limits = {"max_running": most, "max_model_len": 256, "num_blocks": 16 * most}
    with setting.engine(**limits) as engine, setting.engine(**limits) as other:
        threads = engine.info.threads
        weights = model.weights(copied=True, threads=threads)
        for number in rounds(5, 8 if setting.quick else 25):
            names = [f"{number} {row}" for row in range(most)]
            for name in names:
                engine.add(add(name, 8, 200, model.spec.vocab_size))
            other.add(add("alone", 8, 200, model.spec.vocab_size))
            for one in (engine, other):
                timed_step(one)
            for count in counts:
                while len(names) > count:
                    engine.abort(names.pop())
                timed_step(engine)  # the others leave
                before, _ = timed_step(other)
                for _ in range(6):
                    taken, _ = timed_step(engine)
                    after, _ = timed_step(other)
                    relative[count].append(2 * taken / (before + after))
                    alone.append(after)
                    before = after
            engine.abort(names.pop())
            other.abort("alone")
            for one in (engine, other):
                finish(one)
            reads += kernels.ops.time_read(weights, threads=threads, repeats=5)
            rates += kernels.ops.time_products(threads=threads, repeats=10)
    usual = {count: median(relative[count]) * median(alone) for count in counts}
    knee, flat, slope = knee_of(usual)
    read_s = median(reads)
    multiply_s = sum(products(model, kernels.isa())) / median(rates)
    roofline = read_s / multiply_s
    rise = max(usual[count] for count in counts if count <= knee) / usual[1]
    off = median(abs(flat + slope * max(n - knee, 0.0) - t) / t for n, t in usual.items())
    is_flat, is_linear = knee >= 2 and rise <= 1.25, off <= 0.15
    near = 0.5 <= knee / roofline <= 2
    return Finding(
        "A step is flat in its rows until B*, then linear",
        f"B* {knee:.1f} fitted ({1e3 * flat:.1f} ms, then {1e3 * slope:.2f} ms a row), {roofline:.1f} by the roofline; "
        f"1 row {1e3 * usual[1]:.0f} ms, 8 rows {1e3 * usual[8]:.0f}, 64 rows {1e3 * usual[64]:.0f}",
        graded(is_flat and is_linear and near, is_linear and (is_flat or near)),
        f"Reading the weights takes {1e3 * read_s:.1f} ms, a row's products {1e3 * multiply_s:.1f} from registers and "
        f"{1e3 * slope:.1f} in a step, which would be a B* of {read_s / slope:.1f}: a CPU is compute-bound from "
        "a few rows on, a GPU from hundreds, and reading does not hide behind products. Until B* the "
        f"step grows by {100 * (rise - 1):.0f} %, the two lines are off by {100 * off:.0f} %. Holds if flat (B* at "
        "least 2, 25 % at most), linear (15 %) and within twice the roofline; partly if linear and one of "
        "the others. Steps alternate with those of one row.",
        {"step_s": usual, "b_star": knee, "flat_s": flat, "row_s": slope, "roofline_b_star": roofline},
    )


def knee_of(usual: dict[int, float]) -> tuple[float, float, float]:
    """B*, seconds until there and seconds of each row after it: the least squares of the relative errors."""
    best = (float("inf"), 1.0, 0.0, 0.0)
    for step in range(int(4 * max(usual)) - 3):
        knee = 1 + step / 4
        points = [(max(n - knee, 0.0) / t, 1 / t) for n, t in usual.items()]  # slope · x + flat · y = 1
        xx, xy, yy = (sum(f) for f in zip(*((x * x, x * y, y * y) for x, y in points), strict=True))
        x1, y1 = (sum(values) for values in zip(*points, strict=True))
        if not (whole := xx * yy - xy * xy):
            continue
        slope, flat = (x1 * yy - y1 * xy) / whole, (y1 * xx - x1 * xy) / whole
        error = sum((slope * x + flat * y - 1) ** 2 for x, y in points)
        best = min(best, (error, knee, flat, slope))
    return best[1:]
