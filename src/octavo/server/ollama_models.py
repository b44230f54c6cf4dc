"""What Ollama's API says of models: here, of the one that is served, by each of its names. Knows no request."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from octavo.server.serving import Serving
from octavo.text.reasoning import reasoning_of

__all__ = ["listed", "running", "shown"]

_NEVER = "9999-12-31T23:59:59Z"
"""When the model is given up: the server keeps it for as long as it runs."""


def listed(serving: Serving) -> dict[str, Any]:
    """Of /api/tags."""
    return {
        "models": [
            {"name": name, "model": name, "modified_at": _modified(serving), **_file(serving)}
            for name in _tagged(serving)
        ]
    }


def running(serving: Serving) -> dict[str, Any]:
    """Of /api/ps; empty while the model is being loaded."""
    if not serving.client.loaded:
        return {"models": []}
    more = {
        "expires_at": _NEVER,
        "size_vram": 0,
        "context_length": serving.client.info.capacity.max_model_len,
    }
    return {"models": [{"name": name, "model": name, **_file(serving), **more} for name in _tagged(serving)]}


def shown(serving: Serving) -> dict[str, Any]:
    """Of /api/show."""
    spec, template = serving.spec, serving.template.source or ""
    capabilities = ["completion"]
    if template:
        capabilities.append("tools")
    if reasoning_of(template) is not None:
        capabilities.append("thinking")
    if serving.infill is not None:
        capabilities.append("insert")
    family = spec.architecture
    info: dict[str, Any] = {
        "general.architecture": family,
        "general.basename": spec.name,
        f"{family}.attention.head_count": spec.heads,
        f"{family}.attention.head_count_kv": spec.kv_heads,
        f"{family}.block_count": spec.layers,
        f"{family}.context_length": spec.context_tokens,
        f"{family}.embedding_length": spec.hidden,
        f"{family}.feed_forward_length": spec.ffn,
        f"{family}.rope.freq_base": spec.rope.theta,
        f"{family}.vocab_size": spec.vocab_size,
        "tokenizer.ggml.bos_token_id": spec.bos_id,
        "tokenizer.ggml.eos_token_id": spec.eos_ids[0] if spec.eos_ids else None,
    }
    if serving.model_file.parameters:
        info["general.parameter_count"] = serving.model_file.parameters
    return {
        "modelfile": f"# Served by Octavo, which has no Modelfile.\nFROM {serving.model_name}\n",
        "parameters": "",
        "template": template,
        "modified_at": _modified(serving),
        "details": _details(serving),
        "model_info": {name: value for name, value in info.items() if value is not None},
        "capabilities": [*capabilities, "embedding"],
    }


def _tagged(serving: Serving) -> list[str]:
    """Its names with a tag, as Ollama's clients expect them."""
    return [name if ":" in name.rpartition("/")[2] else f"{name}:latest" for name in serving.names]


def _file(serving: Serving) -> dict[str, Any]:
    return {
        "size": serving.model_file.nbytes,
        "digest": serving.spec.weights_hash,
        "details": _details(serving),
    }


def _details(serving: Serving) -> dict[str, Any]:
    family = serving.spec.architecture
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": _short(serving.model_file.parameters),
        "quantization_level": serving.model_file.weight_type,
    }


def _modified(serving: Serving) -> str:
    when = datetime.fromtimestamp(serving.model_file.modified_s, UTC)
    return when.isoformat().replace("+00:00", "Z")


def _short(count: int) -> str:
    """135M, 1.2B; "" for none."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return str(count) if count else ""
