"""Fields of OpenAI's and other servers' requests that are not served. Knows names and values, no request.

What would change the answer is refused by its name, unless its value asks for nothing. One list for all routes: a field
is refused where the request does not have it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["INERT", "INSTEAD", "REFUSED"]

_NO: tuple[Any, ...] = (None, False)
_EMPTY: tuple[Any, ...] = (None, [], {}, "")

REFUSED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (None, True),
    "allowed_token_ids": _EMPTY,
    "audio": _EMPTY,
    "bad_words": _EMPTY,
    "best_of": (None, 1),
    "chat_template": _EMPTY,
    "chat_template_kwargs": _EMPTY,
    "continue_final_message": _NO,
    "documents": _EMPTY,
    "dry_multiplier": (None, 0, 0.0),
    "dynatemp_range": (None, 0, 0.0),
    "echo": _NO,
    "format": _EMPTY,
    "function_call": (None, "none", "auto"),
    "functions": _EMPTY,
    "include_reasoning": (None, True),
    "kv_transfer_params": _EMPTY,
    "logits_processors": _EMPTY,
    "lora": _EMPTY,
    "lora_path": _EMPTY,
    "max_completion_tokens": (None,),
    "messages": _EMPTY,
    "mirostat": (None, 0),
    "mm_processor_kwargs": _EMPTY,
    "modalities": (None, ["text"]),
    "n_predict": (None,),
    "prediction": _EMPTY,
    "prompt": _EMPTY,
    "prompt_embeds": _EMPTY,
    "reasoning_effort": (None, "none"),
    "repeat_penalty": (None, 1, 1.0),
    "request_id": _EMPTY,
    "samplers": _EMPTY,
    "service_tier": (None, "auto", "default"),
    "stop_regex": _EMPTY,
    "store": _NO,
    "structural_tag": _EMPTY,
    "suffix": _EMPTY,
    "thinking_token_budget": (None,),
    "tool_choice": (None, "none", "auto"),
    "tools": _EMPTY,
    "top_logprobs": (None, 0),
    "top_n_sigma": (None, -1, 0, 0.0),
    "typical_p": (None, 1, 1.0),
    "verbosity": (None, "medium"),
    "vllm_xargs": _EMPTY,
    "web_search_options": (None,),
    "xtc_probability": (None, 0, 0.0),
}
"""By name, the values that ask for nothing. Some names are of llama.cpp, SGLang and Ollama."""
INSTEAD = {
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "top_logprobs": "logprobs",
}
"""What to use for some of them."""

INERT = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "spaces_between_special_tokens",
    }
)
"""Known, and nothing follows from them here: who asks, hints for caches and tools that are not there, and spaces that
only some tokenizers of vLLM add."""
