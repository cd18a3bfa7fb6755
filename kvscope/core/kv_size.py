"""How many bytes of KV cache a token takes: from a Hugging Face config.json or a preset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from kvscope.core.errors import InputError, UsageError

KvDtype = Literal["fp32", "fp16", "bf16", "fp8", "int8"]

_BYTES: Mapping[KvDtype, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True, slots=True)
class HeadKv:
    """Keys and values of every KV head (MHA, GQA, MQA), in each of `layers`."""

    layers: int
    kv_heads: int
    head_size: int

    @property
    def values_per_token(self) -> int:
        """Numbers kept for each token."""
        return 2 * self.layers * self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class LatentKv:
    """One compressed vector and one rotary key (MLA), in each of `layers`."""

    layers: int
    latent_size: int
    rope_size: int

    @property
    def values_per_token(self) -> int:
        """Numbers kept for each token."""
        return self.layers * (self.latent_size + self.rope_size)


@dataclass(frozen=True, slots=True)
class ModelKv:
    """What a model keeps per token. `notes` say where the count is only an approximation."""

    name: str
    shape: HeadKv | LatentKv
    dtype: KvDtype
    source: str
    notes: tuple[str, ...] = ()

    @property
    def bytes_per_token(self) -> int:
        """Bytes of KV cache for one token, over all layers."""
        return self.shape.values_per_token * _BYTES[self.dtype]

    def bytes_for(self, tokens: int) -> int:
        """Bytes of KV cache for `tokens` tokens."""
        return tokens * self.bytes_per_token

    def blocks_in(self, size_bytes: int, block_size: int) -> int:
        """Whole blocks of `block_size` tokens that fit into `size_bytes`."""
        return size_bytes // self.bytes_for(block_size)

    def with_dtype(self, dtype: KvDtype) -> ModelKv:
        """The same model with its KV cache kept as `dtype`."""
        return replace(self, dtype=dtype)


def windowed_note(windowed: int | None, layers: int, window: object) -> str:
    """The note on layers that look `window` tokens back; `windowed` of them, None if unknown."""
    which = f"{windowed} of {layers} layers look" if windowed else "layers may look"
    back = f"{window} tokens back" if isinstance(window, int) else "a limited way back"
    return f"{which} only {back}: counted in full, an upper bound for long prompts"


_CONFIG_DTYPES: Mapping[str, KvDtype] = {
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}
_NESTED = ("text_config", "llm_config", "language_config")
_WINDOWED = ("sliding_attention", "chunked_attention")
_FULL = ("full_attention", "attention")
# Keys by which configs without `layer_types` say that not every layer is attention.
_HYBRID = ("attn_layer_period", "full_attention_interval", "hybrid_override_pattern")


def read_config(path: Path) -> ModelKv:
    """The model that the Hugging Face config.json at `path` describes. Raises InputError."""
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        what = error.strerror or "cannot be read"
        raise InputError(what, where=str(path), remedy="name a config.json or a preset") from error
    except ValueError as error:
        raise InputError("not a JSON document", where=str(path)) from error
    if not isinstance(config, dict):
        raise InputError("not a JSON object", where=str(path))
    inner: dict[str, Any] = next(
        (config[key] for key in _NESTED if isinstance(config.get(key), dict)), {}
    )
    return _Config(str(path), {**config, **inner}).model()


@dataclass(frozen=True, slots=True)
class _Config:
    """A config.json with its text part on top, read field by field."""

    where: str
    fields: Mapping[str, Any]

    def model(self) -> ModelKv:
        layers, layer_notes = self._layers()
        dtype, dtype_notes = self._dtype()
        return ModelKv(
            name=Path(self.where).resolve().parent.name,
            shape=self._shape(layers),
            dtype=dtype,
            source=self.where,
            notes=(*layer_notes, *dtype_notes),
        )

    def _shape(self, layers: int) -> HeadKv | LatentKv:
        if self.fields.get("kv_lora_rank") is not None:
            return LatentKv(layers, self._count("kv_lora_rank"), self._count("qk_rope_head_dim"))
        heads = self._count("num_attention_heads", "n_head")
        return HeadKv(layers, self._kv_heads(heads), self._head_size(heads))

    def _kv_heads(self, heads: int) -> int:
        names = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
        if any(self.fields.get(name) is not None for name in names):
            return self._count(*names)
        return 1 if self.fields.get("multi_query") else heads

    def _head_size(self, heads: int) -> int:
        if self.fields.get("head_dim") is not None:
            return self._count("head_dim")
        hidden = self._count("hidden_size", "n_embd", "d_model")
        if hidden % heads:
            what = f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
            raise InputError(what, where=self.where, remedy="add head_dim")
        return hidden // heads

    def _count(self, *names: str) -> int:
        """The first of `names` that the config states, a positive whole number."""
        name = next((name for name in names if self.fields.get(name) is not None), None)
        if name is None:
            remedy = "is this a language model's config.json? A preset may do instead"
            raise InputError(f"{names[0]} is missing", where=self.where, remedy=remedy)
        value = self.fields[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name} is {value!r}, not a positive number", where=self.where)
        return value

    def _layers(self) -> tuple[int, tuple[str, ...]]:
        """Layers that keep KV for each token, and what is only an approximation about them."""
        total = self._count("num_hidden_layers", "n_layer", "num_layers")
        kinds = self.fields.get("layer_types")
        if not isinstance(kinds, list):
            return total, self._unlisted_layers(total)
        if len(kinds) != total:
            what = f"layer_types lists {len(kinds)} layers, num_hidden_layers says {total}"
            raise InputError(what, where=self.where)
        windowed = sum(kind in _WINDOWED for kind in kinds)
        keeping = windowed + sum(kind in _FULL for kind in kinds)
        if not keeping:
            raise InputError("no layer keeps KV for each token", where=self.where)
        notes: tuple[str, ...] = ()
        if windowed:
            notes += (windowed_note(windowed, total, self.fields.get("sliding_window")),)
        if keeping < total:
            note = f"{total - keeping} of {total} layers keep a state of fixed size"
            notes += (f"{note} instead of KV for each token: not counted",)
        return keeping, notes

    def _unlisted_layers(self, total: int) -> tuple[str, ...]:
        hybrid = [key for key in _HYBRID if self.fields.get(key) is not None]
        if hybrid:
            note = f"{hybrid[0]} says that layers differ: all {total} counted as full attention"
            return (f"{note}, an upper bound",)
        window = self.fields.get("sliding_window")
        if window is not None and self.fields.get("use_sliding_window", True):
            return (windowed_note(None, total, window),)
        return ()

    def _dtype(self) -> tuple[KvDtype, tuple[str, ...]]:
        stated = self.fields.get("dtype") or self.fields.get("torch_dtype")
        dtype = _CONFIG_DTYPES.get(str(stated).removeprefix("torch."))
        if dtype is None:
            said = f"dtype {stated!r} is unknown" if stated else "no dtype stated"
            return "bf16", (f"{said}: 2 bytes per value assumed; --kv-dtype says otherwise",)
        if dtype == "fp32":
            note = "float32 counted as stated; vLLM serves such a model in 16 bits by default"
            return dtype, (f"{note}: --kv-dtype fp16",)
        return dtype, ()


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


__all__ = [
    "HeadKv",
    "KvDtype",
    "LatentKv",
    "ModelKv",
    "preset_names",
    "read_config",
    "resolve_model",
]


def resolve_model(text: str, dtype: KvDtype | None = None) -> ModelKv:
    """The model that `text` names: a preset, a config.json, or a folder that holds one.

    `dtype` overrides the precision of the cache. Raises UsageError for an unknown preset (with the
    nearest names), InputError for a config that does not say what is needed. A preset's exact name
    wins over a folder of that name, whatever the current directory: write `./name` for the folder.
    """
    path = Path(text)
    if text not in preset_names() and (path.exists() or path.suffix == ".json"):
        model = read_config(path / "config.json" if path.is_dir() else path)
    else:
        model = preset(text)
    return model.with_dtype(dtype) if dtype else model
