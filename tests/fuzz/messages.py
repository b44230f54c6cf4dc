"""Mutated messages between server and engine, as bytes. Knows the messages, not what becomes of them."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import msgspec

from octavo.backends.base import TokenSample
from octavo.engine.messages import Abort, Add, Outputs, Shutdown, Stats
from octavo.engine.wire import frame
from octavo.sampling.grammar import Grammar
from octavo.sampling.params import EMBEDDING, SamplingParams
from octavo.scheduling.inputs import Service
from octavo.scheduling.outputs import SequenceOutput
from tests.fuzz.mutator import NUMBERS, TEXTS, damaged, mutated

__all__ = ["NAMES", "adds", "encoded", "framed", "hostile_add", "mutated_message", "outputs_of"]

NAMES = [f"r{place}" for place in range(12)]
"""Few, so that they meet."""
_BYTES = "bytes:"
"""What a text begins with that stands for bytes, which JSON has not."""
_WIDEST = range(-(2**63), 2**64)


def adds(name: str) -> list[Add]:
    """Right requests of every kind, all short."""
    service = Service(1, "t", "u", "chat", (70, 71), 0.5, 0.1)
    plain = SamplingParams(seed=1, max_tokens=4)
    return [
        Add(name, (70, 71, 72), plain, 1.0),
        Add(name, tuple(range(40, 80)), SamplingParams(seed=2, n=2, max_tokens=3, logprobs=2, stop=("e",)), 1.0),
        Add(name, (70, 71), SamplingParams(seed=3, n=2, max_tokens=6), 1.0, ((75, 76), (77,)), (), "salt", service),
        Add(name, (70, 71), SamplingParams(seed=4, n=2, max_tokens=6), 1.0, ((75, 76), (77,)), (1,)),
        Add(name, (70, 71), SamplingParams(seed=5, n=1, best_of=3, max_tokens=4), 1.0),
        Add(name, (70,), SamplingParams(seed=6, temperature=0.0, beam_width=3, n=2, max_tokens=4), 1.0),
        Add(name, (70, 71, 72), SamplingParams(seed=7, max_tokens=2, prompt_logprobs=1, logit_bias={70: 5.0}), 1.0),
        Add(name, (70, 71), SamplingParams(seed=8, max_tokens=8, grammar=Grammar("regex", "[ab]{2}")), 1.0),
        Add(name, (70, 71, 72), EMBEDDING, 1.0, pooling="mean"),
        Add(name, (70, 71, 72), SamplingParams(seed=9, max_tokens=0), 1.0, pooling="last"),
        Add(name, (70,), SamplingParams(seed=10, max_tokens=5, min_tokens=2, stop_token_ids=(5,), top_k=3), 1.0),
    ]  # fmt: skip


def outputs_of(name: str, prompt: int, stats: Stats) -> list[Outputs]:
    """Right outputs for a request of two answers."""
    sample = TokenSample(70, -0.5, ((70, -0.5), (71, -1.0)))
    scored = (None, *(sample,) * (prompt - 1))
    items = [
        SequenceOutput(name, 0, (sample, sample)),
        SequenceOutput(name, 1, (sample,), 2, "stop", "x", 1),
        SequenceOutput(name, 0, (sample,), prompt_samples=scored, cached_tokens=1),
        SequenceOutput(
            name, 1, (), finish_reason="length", stop_reason=5, accepted_tokens=1, rejected_tokens=1
        ),
        SequenceOutput(name, 0, finish_reason="error", error="No.", refused=True),
        SequenceOutput(name, 0, finish_reason="abort"),
        SequenceOutput(name, 0, finish_reason="stop", vector=struct.pack("<4f", 0, 1, 2, 3)),
    ]
    return [Outputs((item,), stats) for item in items] + [Outputs(tuple(items[:2]), stats)]


def mutated_message(random: random.Random, message: msgspec.Struct, changes: int) -> bytes:
    """A message with so many values changed, as msgpack."""
    plain = json.loads(json.dumps(msgspec.to_builtins(message, builtin_types=(bytes,)), default=_marked))
    return encoded(mutated(random, plain, NAMES, changes))


def hostile_add(random: random.Random, name: str) -> bytes:
    """A request of the right types with one to three values that no client of ours sends."""
    plain = json.loads(json.dumps(msgspec.to_builtins(random.choice(adds(name)))))
    numbers = [one for one in NUMBERS if isinstance(one, int) and one in range(-(2**63), 2**63)]
    tokens = [-1, 0, 2, 70, 285, 286, 287, 2**31 - 1, 2**31, 2**40, -(2**63)]

    def ids() -> list[int]:
        most = random.choice((0, 1, 3, 5, 30, 699, 700, 2000))
        usual = random.random() < 0.5
        return [70 if usual else random.choice(tokens) for _ in range(most)]

    for _ in range(random.choice((1, 1, 2, 3))):
        _, _, prompt, params, _, _, _, _, service, _ = plain
        match random.randrange(9):
            case 0:
                plain[2] = random.choice((ids(), [], [*prompt, random.choice(tokens)]))
            case 1 | 2:
                named = random.choice(
                    [one for one, value in params.items() if isinstance(value, int | float) or value is None]
                )
                value = params[named]
                edges = (
                    [one for one in NUMBERS if isinstance(one, float)]
                    if isinstance(value, float)
                    else numbers
                )
                params[named] = None if isinstance(value, bool) else random.choice(edges)
                if isinstance(value, bool):
                    params[named] = not value
            case 3:
                plain[4] = random.choice([one for one in NUMBERS if isinstance(one, float)])
            case 4:
                plain[5] = [ids() for _ in range(random.choice((0, 1, 2, 3, 200)))]
            case 5:
                plain[6] = random.choice(([0], [0, 1], [1, 1], [-1], [2], [2**40], list(range(200))))
            case 6:
                at = random.choice((0, 4, 5, 6))
                service[at] = (
                    ids()
                    if at == 4
                    else random.choice(numbers if at == 0 else [0.0, -1.0, float("nan"), 1e308])
                )
            case 7:
                plain[9] = random.choice(("mean", "last", None))
            case _:
                kind = random.choice(("json_schema", "regex", "choice", "lark", "gbnf"))
                source = random.choice([one for one in TEXTS if one])
                params["grammar"] = [kind, source]
    return encoded(plain)


def encoded(value: Any) -> bytes:
    """As msgpack, which has no integers beyond 64 bits and no halves of characters."""
    return msgspec.msgpack.encode(_writable(value))


def _writable(value: Any) -> Any:
    match value:
        case dict():
            return {_key(key): _writable(child) for key, child in value.items()}
        case list():
            return [_writable(child) for child in value]
        case int() if value not in _WIDEST:
            return 2**64 - 1 if value > 0 else -(2**63)
        case str() if value.startswith(_BYTES):
            return value.encode(errors="replace")[len(_BYTES) :]
        case str():
            return value.encode(errors="replace").decode()
    return value


def _marked(value: bytes) -> str:
    return _BYTES + value.decode("latin-1")


def _key(name: str) -> Any:
    return int(name) if name.isdecimal() and len(name) < 18 else name.encode(errors="replace").decode()


def framed(random: random.Random, body: bytes) -> bytes:
    """A frame, sometimes with damage that the frame itself does not survive."""
    data = struct.pack("<I", len(body)) + body
    match random.randrange(30):
        case 0:
            return damaged(random, data)
        case 1:
            return data[: random.randrange(len(data))]
        case 2:
            return (
                struct.pack("<I", random.choice((0, 1, len(body) + 1, 1 << 20, (1 << 30) + 1, 2**32 - 1)))
                + body
            )
        case 3:
            return random.randbytes(random.randrange(1, 64))
        case 4:  # what is no message: an announced array of 4 billion entries, something deep, another kind
            kind = random.choice(
                (b"\xdd\xff\xff\xff\xff", b"\x91" * 5000, b"\x9a\xa3add\xa1r\xdd\x7f\xff\xff\xff\x01")
            )
            return struct.pack("<I", len(kind)) + kind
        case 5:
            return bytes(frame(random.choice((Abort("r1"), Abort(""), Shutdown()))))
    return data
