"""The store: converts once, opens fast, survives damage and company."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from octavo.errors import ModelError, ServerError
from octavo.models import store
from octavo.models.gguf import GGUFFile
from octavo.models.store import StoredModel, open_model
from octavo.models.weights import ALIGNMENT
from tests.models.tiny import WeightType, write_tiny_llama


class RawPacker:
    """Packs nothing: a matrix's bytes stay as they are. Counts its work."""

    def __init__(self, version: str = "raw/1") -> None:
        self.version = version
        self.packed: list[tuple[int, int, int]] = []

    def pack(
        self, raw: NDArray[np.uint8], ggml_type: int, rows: int, cols: int
    ) -> tuple[str, int, bool, NDArray[np.uint8]]:
        if ggml_type == 1:
            raise ValueError("no F16")
        self.packed.append((ggml_type, rows, cols))
        return "u4", 8, True, raw


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny.gguf", biases=True)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_conversion(source: Path, cache: Path) -> None:
    packer = RawPacker()
    seen: list[tuple[int, int, str]] = []
    model = open_model(source, cache=cache, packer=packer, progress=lambda *args: seen.append(args))
    file = GGUFFile(source)

    assert model.source == source
    assert model.weight_type == StoredModel.load(model.dir).weight_type == "Q4_1"
    assert model.dir.parent == cache / "models"
    assert len(model.spec.weights_hash) == 64
    assert model.tensors.keys() == file.tensors.keys()
    assert len(packer.packed) == 2 * 7 + 1
    weights = model.weights()
    assert weights.readonly
    end = 0
    for tensor in model.tensors.values():
        original = file.tensors[tensor.name]
        assert tensor.offset % ALIGNMENT == 0
        assert tensor.offset >= end
        end = tensor.offset + tensor.nbytes
        np.testing.assert_array_equal(weights[tensor.offset : end], file.data(tensor.name))
        if len(original.shape) == 2:
            assert (tensor.kind, tensor.rows, tensor.cols) == ("matrix", *original.shape)
            assert (tensor.container, tensor.zero_point, tensor.has_min) == ("u4", 8, True)
        else:
            assert (tensor.kind, tensor.container, tensor.rows) == ("vector", "f32", 1)
            assert tensor.cols == original.shape[0]
    assert end == len(weights)
    assert [what for _, _, what in seen if what == "converting"]
    assert all(0 < done <= total for done, total, _ in seen)


def test_copied_weights_are_the_mapped_ones_and_in_memory_once(source: Path, cache: Path) -> None:
    model = open_model(source, cache=cache, packer=RawPacker())
    copied = model.weights(copied=True, threads=3)
    assert copied.readonly
    assert str(model.dir) not in Path("/proc/self/maps").read_text()
    assert copied == model.weights()


def test_weights_that_cannot_be_read_are_named(source: Path, cache: Path) -> None:
    model = open_model(source, cache=cache, packer=RawPacker())
    (model.dir / "weights.bin").unlink()
    for copied in (False, True):
        with pytest.raises(ModelError, match=r"weights\.bin"):
            model.weights(copied=copied)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_vectors_become_float32(tmp_path: Path, cache: Path, kind: str) -> None:
    values = np.linspace(-3, 3, 128, dtype=np.float32)
    path = write_tiny_llama(tmp_path / "m.gguf")
    ggml_type = gguf.GGMLQuantizationType[kind]
    halves = quantize(values, ggml_type)
    original = GGUFFile(path).tensors["output_norm.weight"]
    data = bytearray(path.read_bytes())
    at = data.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8
    assert data[at : at + 4] == bytes(4)
    data[at] = ggml_type
    data[original.offset : original.offset + halves.nbytes] = halves.tobytes()
    path.write_bytes(data)
    model = open_model(path, cache=cache, packer=RawPacker())
    tensor = model.tensors["output_norm.weight"]
    stored = np.frombuffer(model.weights(), np.uint8)[tensor.offset :][: tensor.nbytes].view(np.float32)
    np.testing.assert_array_equal(stored, dequantize(halves, ggml_type))


def test_the_second_opening_converts_nothing(source: Path, cache: Path) -> None:
    first = open_model(source, cache=cache, packer=RawPacker())
    packer = RawPacker()
    again = open_model(source, cache=cache, packer=packer)
    assert again == first
    assert not packer.packed
    assert StoredModel.load(first.dir) == first
    assert open_model(first.dir) == first
    assert open_model(str(first.dir)) == first


def test_another_kernel_version_or_other_bytes_convert_anew(
    source: Path, cache: Path, tmp_path: Path
) -> None:
    other = write_tiny_llama(tmp_path / "other.gguf", seed=1)
    models = [
        open_model(source, cache=cache, packer=RawPacker("1")),
        open_model(source, cache=cache, packer=RawPacker("../2")),
        open_model(other, cache=cache, packer=RawPacker("1")),
        open_model(source, cache=cache, packed=False),
    ]
    folders = {model.dir for model in models}
    assert len(folders) == 4
    assert set((cache / "models").iterdir()) == folders  # no locks, no drafts


def test_older_versions_go_when_nobody_uses_them(source: Path, cache: Path, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other.gguf", seed=1)
    kept = {
        open_model(other, cache=cache, packer=RawPacker("1")).dir,
        open_model(source, cache=cache, packed=False).dir,
    }
    first = open_model(source, cache=cache, packer=RawPacker("1"))
    died = first.dir.with_name(f"{first.dir.name}0.draft")
    died.mkdir()
    second = open_model(source, cache=cache, packer=RawPacker("2")).dir
    assert not died.exists()
    assert set((cache / "models").iterdir()) == kept | {first.dir, second}  # the first is in use
    assert StoredModel.load(first.dir) == first
    del first
    third = open_model(source, cache=cache, packer=RawPacker("3"))
    assert set((cache / "models").iterdir()) == kept | {third.dir}


def test_another_process_keeps_its_folder(source: Path, cache: Path) -> None:
    folder = open_model(source, cache=cache, packer=RawPacker("1")).dir
    code = (
        "import sys; from octavo.models.store import StoredModel; "
        "model = StoredModel.load(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout is not None and user.stdout.readline() == "open\n"
        open_model(source, cache=cache, packer=RawPacker("2"))
        assert folder.exists()
        user.communicate()
    open_model(source, cache=cache, packer=RawPacker("3"))
    assert not folder.exists()


def test_without_kernels(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "octavo._kernels", None)  # makes the import fail
    with pytest.raises(ModelError, match="kernels are not installed"):
        open_model(source, cache=cache)
    model = open_model(source, cache=cache, packed=False)
    assert model.tensors == {}
    assert model.spec.layers == 2
    with pytest.raises(ModelError, match="no packed weights"):
        model.weights()
    assert not list(model.dir.glob("weights*"))
    assert open_model(model.dir, cache=cache, packed=False) == model
    assert open_model(model.dir, cache=cache, packer=RawPacker()).tensors  # by its source


def test_tokenizer_and_vocabulary(source: Path, cache: Path) -> None:
    model = open_model(source, cache=cache, packed=False)
    tokenizer, vocabulary = model.tokenizer(), model.vocabulary()
    ids = tokenizer.encode("Hello the world é")
    assert len(ids) == 5
    assert b"".join(vocabulary.pieces[token] for token in ids) == "Hello the world é".encode()
    assert vocabulary.special == {0, 1, 2}
    assert vocabulary.size == model.spec.vocab_size


def test_the_same_file_at_another_path_is_the_same_model(source: Path, cache: Path, tmp_path: Path) -> None:
    first = open_model(source, cache=cache, packed=False)
    moved = source.rename(tmp_path / "moved.gguf")
    again = open_model(moved, cache=cache, packed=False)
    assert (again.dir, again.source) == (first.dir, moved)
    assert StoredModel.load(first.dir).source == moved


@pytest.mark.parametrize("name", ["weights.bin", "spec.json", "tensors.json", "vocabulary.bin", "store.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_a_damaged_folder_is_rebuilt_with_a_warning(
    source: Path, cache: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = open_model(source, cache=cache, packer=RawPacker())
    path = model.dir / name
    whole = path.read_bytes()
    match damage:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(whole[:-1])
        case _:
            path.write_bytes(b"{}")
    with pytest.raises(ModelError, match="is damaged"):
        StoredModel.load(model.dir)
    assert open_model(source, cache=cache, packer=RawPacker()) == model
    assert path.read_bytes() == whole
    assert "is damaged" in caplog.text


def test_an_older_format_is_told(source: Path, cache: Path) -> None:
    model = open_model(source, cache=cache, packed=False)
    path = model.dir / "store.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 0}))
    with pytest.raises(ModelError, match="format 0, this version reads 2"):
        StoredModel.load(model.dir)


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", weights="F16")
    with pytest.raises(
        ModelError, match=r"'blk\.0\.attn_q\.weight' .* F16 \(128, 128\), cannot be run .*no F16"
    ):
        open_model(path, cache=cache, packer=RawPacker())
    assert not list((cache / "models").iterdir())


def test_a_draft_of_a_process_that_died_is_no_obstacle(source: Path, cache: Path) -> None:
    folder = open_model(source, cache=cache, packed=False).dir
    draft = folder.rename(folder.with_name(f"{folder.name}.draft"))
    assert open_model(source, cache=cache, packed=False).dir == folder
    assert not draft.exists()


def test_threads_at_once_convert_once(source: Path, cache: Path) -> None:
    packer = RawPacker()
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda _: open_model(source, cache=cache, packer=packer), range(4)))
    assert len(packer.packed) == 2 * 7 + 1
    assert len({model.dir for model in models}) == 1


def test_processes_at_once_are_safe(source: Path, cache: Path) -> None:
    code = (
        "import sys; from octavo.models.store import open_model; "
        "print(open_model(sys.argv[1], cache=sys.argv[2], packed=False).dir)"
    )
    command = [sys.executable, "-c", code, str(source), str(cache)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    folders = {process.communicate(timeout=120)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    (folder,) = folders
    assert StoredModel.load(folder).spec.layers == 2


def test_opening_imports_no_tokenizer_and_no_network(source: Path, cache: Path) -> None:
    open_model(source, cache=cache, packed=False)
    code = (
        "import sys; from octavo.models.store import open_model; "
        "open_model(sys.argv[1], cache=sys.argv[2], packed=False).vocabulary(); "
        "print({'tokenizers', 'gguf', 'urllib.request', 'huggingface_hub', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(source), str(cache)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_a_cache_that_cannot_be_written(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot be stored: Not a directory"):
        open_model(source, cache=tmp_path / "file", packed=False)


def test_a_disk_that_is_full(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(store, "pack_weights", full)
    with pytest.raises(ServerError, match="No space left on device; free some space"):
        open_model(source, cache=cache, packer=RawPacker())
    assert not list((cache / "models").iterdir())


def test_an_unreadable_source(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="it has 4 bytes"):
        open_model(path, cache=cache, packed=False)


def test_the_kernels_pack_every_type(cache: Path, tmp_path: Path) -> None:
    kernels = pytest.importorskip("octavo._kernels", reason="the C++ kernels were not built")
    types = get_args(WeightType)
    path = write_tiny_llama(tmp_path / "m.gguf", weights=types, hidden=256, head_dim=64, ffn=256, layers=3)
    model = open_model(path, cache=cache)
    assert kernels.KERNEL_VERSION in model.dir.name
    file = GGUFFile(path)
    containers = {
        (file.tensors[tensor.name].type.name, tensor.container, tensor.zero_point, tensor.has_min)
        for tensor in model.tensors.values()
        if tensor.kind == "matrix"
    }
    assert containers == {
        ("Q4_0", "u4", 8, False),
        ("Q4_1", "u4", 0, True),
        ("Q8_0", "u8", 128, False),
        ("Q5_0", "u8", 16, False),
        ("Q5_1", "u8", 0, True),
        ("Q2_K", "u4h", 0, True),
        ("Q3_K", "u4h", 4, False),
        ("Q4_K", "u4k", 0, True),
        ("Q5_K", "u8k", 0, True),
        ("Q6_K", "u8h", 32, False),
        ("IQ4_NL", "u8", 128, False),
        ("F16", "f32", 0, False),
        ("BF16", "bf16", 0, False),
        ("F32", "f32", 0, False),
    }
