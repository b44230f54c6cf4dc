"""Fields of OpenAI's and other servers' requests that are not served. Knows names and values, no request.

What would change the answer is refused by its name, unless its value asks for nothing. One list for all routes: a field
is refused where the request does not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.errors import InvalidParameter

__all__ = ["EMPTY", "INERT", "INSTEAD", "REFUSED", "REFUSED_OF_TOKENS", "left_over"]

_NO: tuple[Any, ...] = (None, False)
EMPTY: tuple[Any, ...] = (None, [], {}, "")
"""The values of a text, a list or an object that ask for nothing."""

REFUSED_OF_TOKENS: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (None, True),
    "allowed_token_ids": EMPTY,
    "audio": EMPTY,
    "bad_words": EMPTY,
    "best_of": (None, 1),
    "chat_template": EMPTY,
    "chat_template_kwargs": EMPTY,
    "continue_final_message": _NO,
    "documents": EMPTY,
    "dry_multiplier": (None, 0, 0.0),
    "dynatemp_range": (None, 0, 0.0),
    "echo": _NO,
    "format": EMPTY,
    "function_call": (None, "none", "auto"),
    "functions": EMPTY,
    "include_reasoning": (None, True),
    "kv_transfer_params": EMPTY,
    "logits_processors": EMPTY,
    "lora": EMPTY,
    "lora_path": EMPTY,
    "max_completion_tokens": (None,),
    "messages": EMPTY,
    "mirostat": (None, 0),
    "mm_processor_kwargs": EMPTY,
    "modalities": (None, ["text"]),
    "n_predict": (None,),
    "prediction": EMPTY,
    "prompt": EMPTY,
    "prompt_embeds": EMPTY,
    "reasoning_effort": (None, "none"),
    "repeat_penalty": (None, 1, 1.0),
    "request_id": EMPTY,
    "samplers": EMPTY,
    "service_tier": (None, "auto", "default"),
    "stop_regex": EMPTY,
    "store": _NO,
    "structural_tag": EMPTY,
    "suffix": EMPTY,
    "thinking_token_budget": (None,),
    "tool_choice": (None, "none", "auto"),
    "tools": EMPTY,
    "top_logprobs": (None, 0),
    "top_n_sigma": (None, -1, 0, 0.0),
    "typical_p": (None, 1, 1.0),
    "verbosity": (None, "medium"),
    "vllm_xargs": EMPTY,
    "web_search_options": (None,),
    "xtc_probability": (None, 0, 0.0),
}
"""By name, the values that ask for nothing: of what may change a prompt, or is served nowhere. Some names are of
llama.cpp, SGLang and Ollama."""
REFUSED: dict[str, tuple[Any, ...]] = {
    **REFUSED_OF_TOKENS,
    "add_special_tokens": (None, True),
    "beam_width": (None,),
    "cache_salt": EMPTY,
    "early_stopping": _NO,
    "ebnf": EMPTY,
    "frequency_penalty": (None, 0, 0.0),
    "grammar": EMPTY,
    "guided_choice": EMPTY,
    "guided_grammar": EMPTY,
    "guided_json": EMPTY,
    "guided_regex": EMPTY,
    "guided_whitespace_pattern": EMPTY,
    "ignore_eos": _NO,
    "include_stop_str_in_output": _NO,
    "instructions": EMPTY,
    "json_schema": EMPTY,
    "length_penalty": (None, 1, 1.0),
    "logit_bias": EMPTY,
    "logprobs": _NO,
    "max_output_tokens": (None,),
    "max_tokens": (None,),
    "min_p": (None, 0, 0.0),
    "min_tokens": (None, 0),
    "n": (None, 1),
    "options": EMPTY,
    "presence_penalty": (None, 0, 0.0),
    "priority": (None, 0),
    "profile": EMPTY,
    "prompt_logprobs": (None,),
    "raw": _NO,
    "regex": EMPTY,
    "repetition_penalty": (None, 1, 1.0),
    "response_format": (*EMPTY, {"type": "text"}),
    "return_token_ids": _NO,
    "return_tokens_as_token_ids": _NO,
    "seed": (None,),
    "skip_special_tokens": (None, True),
    "stop": EMPTY,
    "stop_sequences": EMPTY,
    "stop_token_ids": EMPTY,
    "stream": _NO,
    "stream_options": EMPTY,
    "structured_outputs": EMPTY,
    "system": EMPTY,
    "temperature": (None, 1, 1.0),
    "template": EMPTY,
    "think": (None,),
    "thinking": EMPTY,
    "top_k": (None, 0, -1),
    "top_p": (None, 1, 1.0),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": _NO,
}
"""The same with what some routes serve, and others have by another name or not at all."""
INSTEAD = {
    "instructions": "a system message",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "options": "the fields of this route",
    "repeat_penalty": "repetition_penalty",
    "stop_sequences": "stop",
    "system": "a system message",
    "think": "reasoning_effort",
    "thinking": "reasoning_effort",
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


def left_over(
    raw: Mapping[str, Any],
    known: frozenset[str],
    refused: Mapping[str, tuple[Any, ...]],
    instead: Mapping[str, str],
) -> list[str]:
    """The names that nobody knows. Raises InvalidParameter for one of `refused` that asks for something."""
    unknown = []
    for name in sorted(raw.keys() - known):
        nothing = refused.get(name)
        if nothing is None:
            unknown.append(name)
        elif not any(_same(raw[name], value) for value in nothing):
            hint = f"use {instead[name]}" if name in instead else "leave it out"
            raise InvalidParameter(f"{name} is not supported on this route; {hint}.", name)
    return unknown


def _same(value: Any, nothing: Any) -> bool:
    """Equal and of the same kind: False is not 0 here."""
    return bool(value == nothing) and isinstance(value, bool) == isinstance(nothing, bool)
