"""`octavo simulate --hardware list` and `--model list`: what is in the catalogue. Knows no option."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from octavo.simulation.catalogue import hardware, hardware_names, model, model_names

__all__ = ["print_catalogue"]


def print_catalogue(console: Console, *, machines: bool, models: bool) -> None:
    """A row for each, as its source has it."""
    if machines:
        table = Table(
            "--hardware",
            "TFLOP/s",
            "int8",
            "GB",
            "GB/s",
            "link GB/s",
            "watts",
            "as of",
            box=None,
            pad_edge=False,
        )
        for name in hardware_names():
            one = hardware(name)
            numbers = (
                one.bf16_tflops, one.int8_tops, one.memory_gb, one.bandwidth_gb_s, one.link_gb_s, one.watts
            )  # fmt: skip
            table.add_row(name, *(f"{number:,g}" for number in numbers), one.as_of)
        console.print(table)
    if machines and models:
        console.print()
    if models:
        table = Table(
            "--model", "parameters", "layers", "heads", "of K and V", "KV KiB a token", "context",
            box=None, pad_edge=False,
        )  # fmt: skip
        for name in model_names():
            shape = model(name)
            table.add_row(
                name,
                f"{shape.parameters / 1e9:.3g} G",
                str(shape.layers),
                str(shape.heads),
                str(shape.kv_heads),
                f"{shape.kv_bytes_per_token() / 1024:g}",
                f"{shape.context:,}",
            )
        console.print(table)
