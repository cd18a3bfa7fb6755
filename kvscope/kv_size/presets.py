"""Models known by name, as their published config.json files describe them.

Source: each entry names the config.json it stands for. Layers, KV heads and head size were compared
with what others quote from these files: LitGPT's litgpt/config.py (Llama 2 to 3.1, Mistral,
Mixtral, Qwen2.5, Qwen3), the Qwen2 Technical Report, Table 1 (Qwen2), the text model of
llava-1.5-7b (Vicuna v1.5), the DeepSeek-V3 Technical Report, section 4.2, and the gpt-oss model
card. The precision is the config's `torch_dtype`, which engines keep the KV cache in unless told
otherwise; the weights of DeepSeek-V3 (FP8) and gpt-oss (MXFP4) are smaller than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from kvscope.errors import UsageError
from kvscope.kv_size.model import HeadKv, LatentKv, ModelKv, windowed_note


def preset_names() -> tuple[str, ...]:
    """The names that `resolve_model` knows without a config.json."""
    return tuple(_PRESETS)


def preset(text: str) -> ModelKv:
    """The preset called `text`, an organisation before it and capitals allowed.

    Raises UsageError with the nearest names.
    """
    name = text.rsplit("/", 1)[-1].lower()
    if name in _PRESETS:
        return _PRESETS[name]
    near = get_close_matches(name, _PRESETS, n=3, cutoff=0.5)
    remedy = f"did you mean {', '.join(near)}" if near else f"presets: {', '.join(_PRESETS)}"
    raise UsageError(
        f"no model preset {text!r}", remedy=f"{remedy}, or name the model's config.json"
    )


def _heads(layers: int, kv_heads: int, head_size: int, source: str, *notes: str) -> ModelKv:
    shape = HeadKv(layers, kv_heads, head_size)
    return ModelKv("", shape, "bf16", f"config.json of {source}", notes)


def _latent(layers: int, source: str) -> ModelKv:
    return ModelKv("", LatentKv(layers, 512, 64), "bf16", f"config.json of {source}")


_TABLE: Mapping[str, ModelKv] = {
    "vicuna-7b": _heads(32, 32, 128, "lmsys/vicuna-7b-v1.5").with_dtype("fp16"),
    "llama2-7b": _heads(32, 32, 128, "meta-llama/Llama-2-7b-hf").with_dtype("fp16"),
    "llama2-13b": _heads(40, 40, 128, "meta-llama/Llama-2-13b-hf").with_dtype("fp16"),
    "llama2-70b": _heads(80, 8, 128, "meta-llama/Llama-2-70b-hf").with_dtype("fp16"),
    "llama3-8b": _heads(32, 8, 128, "meta-llama/Meta-Llama-3-8B"),
    "llama3-70b": _heads(80, 8, 128, "meta-llama/Meta-Llama-3-70B"),
    "llama3.1-8b": _heads(32, 8, 128, "meta-llama/Llama-3.1-8B"),
    "llama3.1-70b": _heads(80, 8, 128, "meta-llama/Llama-3.1-70B"),
    "mistral-7b": _heads(32, 8, 128, "mistralai/Mistral-7B-v0.3"),
    "mixtral-8x7b": _heads(32, 8, 128, "mistralai/Mixtral-8x7B-v0.1"),
    "qwen2-7b": _heads(28, 4, 128, "Qwen/Qwen2-7B"),
    "qwen2-72b": _heads(80, 8, 128, "Qwen/Qwen2-72B"),
    "qwen2.5-7b": _heads(28, 4, 128, "Qwen/Qwen2.5-7B"),
    "qwen2.5-14b": _heads(48, 8, 128, "Qwen/Qwen2.5-14B"),
    "qwen2.5-32b": _heads(64, 8, 128, "Qwen/Qwen2.5-32B"),
    "qwen2.5-72b": _heads(80, 8, 128, "Qwen/Qwen2.5-72B"),
    "qwen3-8b": _heads(36, 8, 128, "Qwen/Qwen3-8B"),
    "qwen3-32b": _heads(64, 8, 128, "Qwen/Qwen3-32B"),
    "deepseek-v3": _latent(61, "deepseek-ai/DeepSeek-V3"),
    "gpt-oss-20b": _heads(24, 8, 64, "openai/gpt-oss-20b", windowed_note(12, 24, 128)),
}
_PRESETS: Mapping[str, ModelKv] = {
    name: replace(model, name=name) for name, model in _TABLE.items()
}
