"""Models, converted once and then only mapped. Knows files, not where they come from, and no arithmetic.

A converted model is a folder, `<cache>/models/<hash>-<format>-<kernel version>/`:

    store.json        format, source path, the size of every other file
    spec.json         ModelSpec
    tensors.json      PackedTensor table       } not there when converted with packed=False
    weights.bin       packed tensors           }
    tokenizer.json, vocabulary.bin, …          as `text/` writes them

The folder appears whole, by a rename, and never changes afterwards but for the source's path. When another version
of the kernels converts the same file anew, the folders of the others go, but for those that a process has open.
"""

from __future__ import annotations

import fcntl
import logging
import math
import mmap
import os
import re
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from octavo.errors import ModelError
from octavo.models.cache import Hashes, Progress, cache_root, locked, replace_file, storing
from octavo.models.pull import locate
from octavo.models.resident import read_resident
from octavo.models.spec import ModelSpec
from octavo.models.weights import KernelsPacker, PackedTensor, Packer, pack_weights
from octavo.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from octavo.models.gguf import GGUFFile
    from octavo.text.tokenizer import Tokenizer

__all__ = ["PackedTensor", "StoredModel", "open_model"]

_log = logging.getLogger(__name__)

_FORMAT = 2
"""To be raised with any change of the files, of `compile_model`'s results or of the tokenizer's."""
_MANIFEST = "store.json"


class _Manifest(msgspec.Struct):
    format: int
    source: str
    sizes: dict[str, int]
    weight_type: str = ""


@dataclass(frozen=True)
class StoredModel:
    """A converted model. Opening reads two small files; weights are mapped or read when asked for."""

    dir: Path
    spec: ModelSpec
    source: Path
    """The GGUF it was made from. Nothing checks that it is still there."""
    tensors: dict[str, PackedTensor]
    """Empty when the model was converted without weights (packed=False)."""
    weight_type: str = ""
    """ggml's name of the type that most of the source's weights have; empty in folders that were made before it was
    written down."""
    lock: _FolderLock | None = field(default=None, repr=False, compare=False)
    """While it lives, no other process removes the folder."""

    @classmethod
    def load(cls, dir: str | Path) -> StoredModel:  # noqa: A002 the contract's name
        """Open a folder. Raises ModelError when a file is missing, cut, or of another version."""
        folder = Path(dir)
        try:
            lock = _FolderLock(folder, shared=True)
            manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=_Manifest)
            if manifest.format != _FORMAT:
                raise _damaged(folder, f"it has format {manifest.format}, this version reads {_FORMAT}")
            for name, size in manifest.sizes.items():
                found = (folder / name).stat().st_size
                if found != size:
                    raise _damaged(folder, f"{name} has {found} bytes and should have {size}")
            spec = msgspec.json.decode((folder / "spec.json").read_bytes(), type=ModelSpec)
            table: tuple[PackedTensor, ...] = ()
            if "tensors.json" in manifest.sizes:
                table = msgspec.json.decode(
                    (folder / "tensors.json").read_bytes(), type=tuple[PackedTensor, ...]
                )
        except OSError as error:
            name = Path(error.filename or folder).name
            raise _damaged(folder, f"{name} cannot be read ({error.strerror})") from error
        except msgspec.MsgspecError as error:
            raise _damaged(folder, str(error)) from error
        tensors = {tensor.name: tensor for tensor in table}
        return cls(folder, spec, Path(manifest.source), tensors, manifest.weight_type, lock)

    def weights(self, *, copied: bool = False, threads: int = 1) -> memoryview:
        """The weights file, read-only: uint8 [bytes]. Each call maps anew, or reads anew.

        `copied`: in memory of this process's own, read by `threads`, and without a mapping (see models/resident).
        """
        if not self.tensors:
            raise ModelError(f"'{self.dir}' has no packed weights; open the model with packed=True.")
        path = self.dir / "weights.bin"
        try:
            if copied:
                return read_resident(path, threads)
            with path.open("rb") as file:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, EOFError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ModelError(f"The weights in '{path}' cannot be read: {reason}.") from error

    def vocabulary(self) -> Vocabulary:
        """The bytes of every token; a few milliseconds."""
        return Vocabulary.load(self.dir / "vocabulary.bin")

    def tokenizer(self) -> Tokenizer:
        """The tokenizer; imports the library, which an engine process never needs."""
        from octavo.text.tokenizer import Tokenizer

        return Tokenizer.load(self.dir / "tokenizer.json")


def open_model(
    ref: str | Path,
    *,
    cache: str | Path | None = None,
    progress: Progress | None = None,
    packed: bool = True,
    packer: Packer | None = None,
) -> StoredModel:
    """Find, download, verify and convert a model as far as that was not done before, and open it.

    `ref`: an alias (`smollm2`), the path of a GGUF file, `hf:owner/name/file.gguf`, or a folder of the store.
    `cache`: instead of the folder that the environment names.
    `packed`: False leaves the weights out, for backends that read the source; then no kernels are needed.
    `packer`: who packs; by default the kernels.
    Several processes may do this at once: one converts, the others wait for it. Raises ModelError, and ServerError
    where the network fails or the disk is full.
    """
    root = cache_root() if cache is None else Path(cache).absolute()
    if _is_folder(ref):
        model = StoredModel.load(ref)
        if model.tensors or not packed:
            return model
        ref = model.source
    if packed and packer is None:
        packer = KernelsPacker()
    source = locate(str(ref), root, progress).absolute()
    try:
        weights_hash = Hashes(root).sha256(source, progress)
    except OSError as error:
        raise ModelError(f"'{source}' cannot be read: {error.strerror or error}.") from error

    version = packer.version if packed and packer is not None else "plain"
    version = re.sub(r"[^\w.+-]", "_", version)
    folder = root / "models" / f"{weights_hash[:32]}-{_FORMAT}-{version}"
    try:
        model = StoredModel.load(folder)
    except ModelError:
        with storing(folder):
            model = _made(source, weights_hash, folder, packer if packed else None, progress)
    return model if model.source == source else _moved(model, source)


def _made(
    source: Path, weights_hash: str, folder: Path, packer: Packer | None, progress: Progress | None
) -> StoredModel:
    """The model of `folder`, converted unless another process just did that. The caller holds the lock."""
    if folder.exists():
        try:
            return StoredModel.load(folder)
        except ModelError as error:
            _log.warning("%s It is converted again.", error)
    _convert(source, weights_hash, folder, packer, progress)
    _remove_others(folder)
    return StoredModel.load(folder)


def _convert(
    source: Path, weights_hash: str, folder: Path, packer: Packer | None, progress: Progress | None
) -> None:
    """Make `folder` from `source`, in a draft that is nobody else's, thanks to the lock."""
    from octavo.models.architectures import compile_model
    from octavo.models.gguf import GGUFFile
    from octavo.text.tokenizer import Tokenizer

    file = GGUFFile(source)
    spec = compile_model(file, weights_hash)
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)  # of a process that died
    draft.mkdir()
    try:
        Tokenizer.from_gguf(file.metadata).save(draft / "tokenizer.json")
        if packer is not None:
            table = pack_weights(file, spec.program, packer, draft / "weights.bin", progress)
            (draft / "tensors.json").write_bytes(msgspec.json.encode(table))
        (draft / "spec.json").write_bytes(msgspec.json.encode(spec))
        sizes = {path.name: path.stat().st_size for path in draft.iterdir()}
        manifest = _Manifest(_FORMAT, str(source), sizes, _weight_type(file))
        (draft / _MANIFEST).write_bytes(msgspec.json.encode(manifest))
        if folder.exists():  # damaged; a process that has it mapped keeps its pages
            shutil.rmtree(folder)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _weight_type(file: GGUFFile) -> str:
    values: Counter[str] = Counter()
    for tensor in file.tensors.values():
        values[tensor.type.name] += math.prod(tensor.shape)
    return values.most_common(1)[0][0]


def _remove_others(folder: Path) -> None:
    """Remove what other versions made of the same file, packed or plain as `folder` is, where nobody uses it."""
    prefix, plain = folder.name.partition("-")[0], folder.name.endswith("-plain")
    found = {each.name.removesuffix(".draft") for each in folder.parent.glob(f"{prefix}-*") if each.is_dir()}
    for name in found - {folder.name}:
        if name.endswith("-plain") != plain:
            continue
        old = folder.with_name(name)
        # In use, being made, or not ours to remove: another conversion will see to it.
        with suppress(OSError), locked(old, wait=False):
            shutil.rmtree(old.with_name(f"{name}.draft"), ignore_errors=True)
            if old.exists():
                lock = _FolderLock(old, shared=False)
                shutil.rmtree(old)
                del lock


class _FolderLock:
    """Shared by those who use a folder, or of one who removes it, until the object goes. Raises OSError when there is
    no such folder, and, for the one who removes it, when somebody uses it or locks do not work there."""

    def __init__(self, folder: Path, *, shared: bool) -> None:
        self._file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if not shared:
                raise

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)


def _moved(model: StoredModel, source: Path) -> StoredModel:
    """The same bytes are found at another path now: say so to processes that open the folder later."""
    path = model.dir / _MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=_Manifest)
        manifest.source = str(source)
        replace_file(path, msgspec.json.encode(manifest))
    except OSError:
        pass  # a cache on a read-only disk: this process still knows
    return replace(model, source=source)


def _is_folder(ref: str | Path) -> bool:
    return (Path(ref) / _MANIFEST).is_file()


def _damaged(folder: Path, reason: str) -> ModelError:
    return ModelError(f"The converted model '{folder}' is damaged: {reason}.")
