"""Packs a model's tensors into one file that a start maps. Knows the table, not the packed layouts.

Matrices go through a packer (the kernels' `pack_matrix`), vectors become float32. Tensors lie in the order of
their use, so a step walks the file forwards, each on a 64-byte boundary (a cache line, an AVX-512 register).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

import msgspec

from octavo.errors import ModelError
from octavo.models.cache import Progress
from octavo.models.program import Program

if TYPE_CHECKING:  # a start that finds its model converted needs none of them, and 0.1 s less
    import numpy as np
    from numpy.typing import NDArray

    from octavo.models.gguf import GGUFFile, TensorInfo

    _Packed = tuple[str, int, bool, NDArray[np.uint8]]

__all__ = ["ALIGNMENT", "KernelsPacker", "PackedTensor", "Packer", "pack_weights"]

ALIGNMENT = 64

Container = Literal["u4", "u4k", "u4h", "u8", "u8k", "u8h", "bf16", "f32"]
"""How a matrix is packed; kernels/octavo.h has the layouts."""


class PackedTensor(msgspec.Struct, frozen=True):
    """A tensor in the store's weights file."""

    name: str
    """As in the source file and the program."""
    kind: Literal["matrix", "vector"]
    container: Container
    rows: int
    """Outputs; 1 for a vector."""
    cols: int
    zero_point: int
    """What an unsigned element is counted from (0, 4, 8, 16, 32 or 128); see pack_matrix."""
    has_min: bool
    """Whether blocks have a minimum beside their scale."""
    offset: int
    """Bytes from the beginning of the weights file."""
    nbytes: int


class Packer(Protocol):
    """Turns a matrix as the source has it into the layout of one kernel version."""

    @property
    def version(self) -> str:
        """Equal versions give equal bytes."""

    def pack(
        self, raw: NDArray[np.uint8], ggml_type: int, rows: int, cols: int
    ) -> tuple[str, int, bool, NDArray[np.uint8]]:
        """(container, zero_point, has_min, packed bytes). Raises ValueError for a type it does not know."""


class KernelsPacker:
    """The C++ kernels as a Packer. Raises ModelError where they were not built."""

    def __init__(self) -> None:
        try:
            kernels = import_module("octavo._kernels")
        except ImportError as error:
            raise ModelError(
                f"The C++ kernels are not installed ({error}); install a C++ compiler and Octavo again, or "
                "use the reference backend."
            ) from error
        self.version: str = kernels.KERNEL_VERSION
        self.pack = kernels.pack_matrix


def pack_weights(
    file: GGUFFile, program: Program, packer: Packer, target: Path, progress: Progress | None = None
) -> tuple[PackedTensor, ...]:
    """Write every tensor of `program` to `target` and return the table. Raises ModelError and OSError."""
    tensors = [file.tensors[name] for name in program.weights()]
    total, done = sum(tensor.nbytes for tensor in tensors), 0
    table: list[PackedTensor] = []
    with target.open("wb") as out:
        for tensor, (container, zero_point, has_min, data) in _packed(file, tensors, packer):
            offset = -(-out.tell() // ALIGNMENT) * ALIGNMENT
            out.seek(offset)
            out.write(data.data)
            table.append(
                PackedTensor(
                    name=tensor.name,
                    kind="matrix" if len(tensor.shape) == 2 else "vector",
                    container=cast(Container, container),
                    rows=tensor.shape[0] if len(tensor.shape) == 2 else 1,
                    cols=tensor.shape[-1],
                    zero_point=zero_point,
                    has_min=has_min,
                    offset=offset,
                    nbytes=data.nbytes,
                )
            )
            done += tensor.nbytes
            if progress is not None:
                progress(done, total, "converting")
    return tuple(table)


def _packed(
    file: GGUFFile, tensors: list[TensorInfo], packer: Packer
) -> Iterator[tuple[TensorInfo, _Packed]]:
    """Pack ahead of the writer on a few threads (the packer releases the GIL), two tensors each at most, so
    that a model larger than memory converts too."""
    workers = min(len(os.sched_getaffinity(0)), 8)
    with ThreadPoolExecutor(workers, "octavo-pack") as pool:
        ahead: deque[tuple[TensorInfo, Future[_Packed]]] = deque()
        for tensor in tensors:
            if len(ahead) == 2 * workers:
                first, future = ahead.popleft()
                yield first, future.result()
            ahead.append((tensor, pool.submit(_pack, file, tensor, packer)))
        for first, future in ahead:
            yield first, future.result()


def _pack(file: GGUFFile, tensor: TensorInfo, packer: Packer) -> _Packed:
    import numpy as np

    raw = file.data(tensor.name)
    if len(tensor.shape) == 1:
        return "f32", 0, False, _float32(raw, tensor.type.name).view(np.uint8)
    try:
        return packer.pack(raw, tensor.type.id, *tensor.shape)
    except ValueError as error:
        raise ModelError(
            f"Tensor {tensor.name!r} of '{file.path}', {tensor.type.name} {tensor.shape}, cannot be run by the "
            f"kernels ({error})."
        ) from error


def _float32(raw: NDArray[np.uint8], type_name: str) -> NDArray[np.float32]:
    """A vector's values; BF16 is the upper half of a float32."""
    import numpy as np

    match type_name:
        case "F32":
            return raw.view(np.float32)
        case "F16":
            return raw.view(np.float16).astype(np.float32)
        case _:
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
