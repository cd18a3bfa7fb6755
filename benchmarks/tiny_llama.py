"""Provide the configuration of a small model with random weights, for vLLM on a CPU."""

from __future__ import annotations

from typing import Any

VOCABULARY = 1024


def tiny_llama(longest: int, dtype: str = "bfloat16") -> dict[str, Any]:
    """Return a Hugging Face config.json for up to `longest` tokens of prompt and output."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": longest,
        "torch_dtype": dtype,
    }
