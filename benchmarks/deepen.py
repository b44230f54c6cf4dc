"""Writes a model that answers as a small one does, and takes as long as a large one: a target for its own draft model.

    python -m benchmarks.deepen OUT.gguf [--times 8] [--strength 0.0] [--model smollm2]

Behind each layer stand copies of it whose output matrices are multiplied by `strength`. With 0 they add nothing, so the
large model computes exactly what the small one does; with a little more the two disagree now and then. The small one is
the draft that agrees by construction: speed is real, and how often guesses are right is what was asked for.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from octavo.models.store import open_model

__all__ = ["write_deeper"]

_SCALES = {"Q4_1": (0, 2), "Q4_0": (0,), "Q8_0": (0,)}
"""Where a block has fp16 numbers that its weights are multiples of."""
_OUTPUTS = re.compile(r"(attn_output|ffn_down)\.weight$")


def write_deeper(source: Path, path: Path, times: int, strength: float) -> Path:
    """Write the model of `source` with `times` as many layers, and return `path`."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "llama")
    layers = int(reader.fields["llama.block_count"].contents())
    for field in reader.fields.values():
        if field.name == "general.name":
            writer.add_name(f"{field.contents()} x{times}, strength {strength:g}")
        elif field.name == "llama.block_count":
            writer.add_block_count(layers * times)
        elif not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            within = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, within)
    written: list[NDArray[Any]] = []
    for tensor in reader.tensors:
        match = re.match(r"blk\.(\d+)\.", tensor.name)
        for copy in range(times if match else 1):
            name = tensor.name
            if match:
                name = f"blk.{int(match[1]) * times + copy}.{tensor.name[match.end() :]}"
            data = tensor.data if not copy or not _OUTPUTS.search(name) else _weaker(tensor, strength)
            writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes, raw_dtype=tensor.tensor_type)
            written.append(data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for data in track(written, path.name, console=Console(stderr=True), transient=True):
        writer.write_tensor_data(data)
    writer.close()
    return path


def _weaker(tensor: gguf.ReaderTensor, strength: float) -> NDArray[np.uint8]:
    """The same blocks with all weights multiplied."""
    kind = tensor.tensor_type
    if kind.name not in _SCALES:
        raise ValueError(f"{tensor.name} is {kind.name}; this multiplies {', '.join(_SCALES)} only")
    nbytes = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = np.array(tensor.data, np.uint8).reshape(-1, nbytes)
    for at in _SCALES[kind.name]:
        scales = blocks[:, at : at + 2].copy().view(np.float16)
        blocks[:, at : at + 2] = (scales * np.float16(strength)).view(np.uint8)
    return blocks.reshape(tensor.data.shape)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--times", type=int, default=8, help="as many layers")
    parser.add_argument("--strength", type=float, default=0.0, help="of the copies' outputs")
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    options = parser.parse_args()
    source = Path(open_model(options.model, packed=False).source)
    path = write_deeper(source, options.out, options.times, options.strength)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
