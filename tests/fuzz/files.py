"""`python -m tests.fuzz.files KIND FOLDER NUMBER…`: mutated files of one kind, in a process that may not grow.

Each case is named on stdout before it is tried. What comes out is an answer, or an OctavoError of one sentence.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec

from octavo.engine.replay import replay
from octavo.errors import OctavoError
from octavo.memory.folder import BlockFolder
from octavo.models.store import StoredModel
from octavo.protocol.batch_lines import InputCheck, read_line, with_seed
from octavo.storage.lines import lines_of
from tests.fuzz.bodies import EXAMPLES, FIELDS
from tests.fuzz.mutator import damaged, generator, mutated, written

MOST_BYTES = 1 << 30
"""That a case may take beside what the process has."""
KEY = b"k" * 32
BLOCK = bytes(range(256)) * 64

Case = Callable[[Random, Path], None]


def changed(random: Random, path: Path, *, lines: bool = False) -> bytes:
    """The file, damaged as bytes, or one of its lines as JSON."""
    data = path.read_bytes()
    if random.random() < 0.4 or not lines:
        return damaged(random, data)
    parts = data.splitlines(keepends=True)
    for _ in range(random.choice((1, 1, 2))):
        at = random.randrange(min(len(parts), 12))
        match random.randrange(4):
            case 0:
                parts[at], parts[-1] = parts[-1], parts[at]
            case 1:
                del parts[at]
            case _:
                with suppress(ValueError):
                    value = mutated(random, json.loads(parts[at]), FIELDS, random.choice((1, 2)))
                    parts[at] = written(random, value, FIELDS) + b"\n"
        if not parts:
            return b""
    return b"".join(parts)


def step_log(random: Random, folder: Path) -> None:
    path = folder / "mutant.jsonl"
    path.write_bytes(changed(random, folder / "steps.jsonl", lines=True))
    for report in replay(path):
        assert report.difference is None or len(report.difference) < 4000


def stored_model(random: Random, folder: Path) -> None:
    """The folder of a converted model: text, tables and sizes."""
    names = (
        "tokenizer.json",
        "tokenizer.rules.json",
        "vocabulary.bin",
        "spec.json",
        "store.json",
        "tensors.json",
    )
    path = folder / random.choice(names)
    whole = path.read_bytes()
    try:
        if path.suffix == ".json" and random.random() < 0.7:
            value = mutated(random, json.loads(whole), FIELDS, random.choice((1, 2)))
            path.write_bytes(written(random, value, FIELDS))
        else:
            path.write_bytes(damaged(random, whole))
        if random.random() < 0.7:  # else the sizes tell
            _fit_sizes(folder)
        model = StoredModel.load(folder)
        tokenizer = model.tokenizer()
        if path.name == "tokenizer.json":
            return  # the library loads rules that nobody can use, such as one that cuts for ever; we write that file
        ids = tokenizer.encode("Hello <|im_end|> é😀", allow_special=True)
        tokenizer.vocabulary.join([one for one in ids if one < tokenizer.vocabulary.size], skip_special=False)
    finally:
        path.write_bytes(whole)
        _fit_sizes(folder)


def _fit_sizes(folder: Path) -> None:
    with suppress(ValueError, TypeError, AttributeError, KeyError, OSError):
        manifest = json.loads((folder / "store.json").read_bytes())
        manifest["sizes"] = {name: (folder / name).stat().st_size for name in manifest["sizes"]}
        (folder / "store.json").write_text(json.dumps(manifest))


def disk_block(random: Random, folder: Path) -> None:
    root = folder / "blocks"
    blocks = BlockFolder(root, b"identity", 1 << 40)
    try:
        blocks.scan()
        if blocks.fetch(KEY) is None:
            blocks.store(KEY, BLOCK)
        [path] = root.glob("*/*.kv")
        path.write_bytes(damaged(random, path.read_bytes()))
        if random.random() < 0.1:
            with path.open("ab") as file:
                file.truncate(1 << 36)  # 64 GiB that take no room
        found = blocks.fetch(KEY)
        assert found in (None, BLOCK)
        if found is None:
            blocks.store(KEY, BLOCK)
        assert blocks.fetch(KEY) == BLOCK
    finally:
        blocks.close()


def batch_lines(random: Random, folder: Path) -> None:
    bodies = [*EXAMPLES["/v1/completions"], *EXAMPLES["/v1/chat/completions"]]
    lines = []
    for place in range(random.choice((1, 3, 20))):
        line = {
            "custom_id": f"l{place}",
            "method": "POST",
            "url": "/v1/completions",
            "body": random.choice(bodies),
        }
        changes = random.choice((0, 0, 1, 2))
        data = written(random, mutated(random, line, FIELDS, changes), FIELDS)
        lines.append(damaged(random, data) if random.random() < 0.1 else data)
    path = folder / "lines.jsonl"
    path.write_bytes(random.choice((b"\n", b"\r\n", b"\n\n")).join(lines))
    check = InputCheck("/v1/completions")
    good = []
    for number, text in lines_of(path, 100_000):
        before = len(check.errors)
        check.look(number, text)
        if len(check.errors) == before and not check.over:
            good.append((number, text))
    for error in check.finish():
        assert error.message and len(error.message) < 4000
    if not check.errors:
        for number, text in good:
            body = with_seed(bytes(read_line(text).body), 5, number)
            assert isinstance(msgspec.json.decode(body), dict)


KINDS: dict[str, Case] = {
    "step_log": step_log,
    "stored_model": stored_model,
    "disk_block": disk_block,
    "batch_lines": batch_lines,
}


def main(kind: str, folder: Path, numbers: list[int]) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    told: Counter[str] = Counter()
    for number in numbers:
        print(number, flush=True)
        try:
            KINDS[kind](generator(number, kind), folder)
            told["read"] += 1
        except OctavoError as error:
            text = str(error)
            assert text and len(text) < 4000, text[:5000]
            told["refused"] += 1
    print(dict(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [int(number) for number in sys.argv[3:]])
