"""Bytes of KV cache that a token takes: from a Hugging Face config.json or a preset."""

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


@dataclass(frozen=True, slots=True)
class HeadKv:
    """Keys and values of every KV head (MHA, GQA, MQA), in each of `layers`."""

    layers: int
    kv_heads: int
    head_size: int

    @property
    def values_per_token(self) -> int:
        """Numbers cached for each token."""
        return 2 * self.layers * self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class LatentKv:
    """One compressed vector and one rotary key (MLA), in each of `layers`."""

    layers: int
    latent_size: int
    rope_size: int

    @property
    def values_per_token(self) -> int:
        """Numbers cached for each token."""
        return self.layers * (self.latent_size + self.rope_size)


@dataclass(frozen=True, slots=True)
class Model:
    """KV cache of a model. `notes` say where its size is only an approximation."""

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
        """Return the bytes of KV cache for `tokens` tokens."""
        return tokens * self.bytes_per_token

    def blocks_in(self, size_bytes: int, block_size: int) -> int:
        """Return the whole blocks of `block_size` tokens that fit into `size_bytes`."""
        return size_bytes // self.bytes_for(block_size)


def resolve_model(text: str, dtype: KvDtype | None = None) -> Model:
    """Return the model that `text` names: a preset, a config.json, or a folder that holds one.

    `dtype` overrides the precision of the cache. Raises UsageError for an unknown preset (with the
    nearest names), InputError for a config that lacks what is needed. A preset's exact name wins
    over a folder of that name, whatever the current directory: write `./name` for the folder.
    """
    path = Path(text)
    if text not in _PRESETS and (path.exists() or path.suffix == ".json"):
        model = read_config(path / "config.json" if path.is_dir() else path)
    else:
        model = preset(text)
    return replace(model, dtype=dtype) if dtype else model


def preset_names() -> tuple[str, ...]:
    """Return the names that `resolve_model` knows without a config.json."""
    return tuple(_PRESETS)


def preset(text: str) -> Model:
    """Return the preset called `text`, an organisation before it and capitals allowed.

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


def read_config(path: Path) -> Model:
    """Return the model that the Hugging Face config.json at `path` describes.

    Raises InputError for a file that cannot be read or does not say what is needed.
    """
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

    def model(self) -> Model:
        layers, notes = self._layers()
        dtype, doubt = self._dtype()
        name = Path(self.where).resolve().parent.name
        return Model(name, self._shape(layers), dtype, self.where, (*notes, *doubt))

    def _shape(self, layers: int) -> HeadKv | LatentKv:
        if self._has("kv_lora_rank"):
            return LatentKv(layers, self._count("kv_lora_rank"), self._count("qk_rope_head_dim"))
        heads = self._count("num_attention_heads", "n_head")
        names = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
        kv_heads = 1 if self.fields.get("multi_query") else heads
        if any(map(self._has, names)):
            kv_heads = self._count(*names)
        if self._has("head_dim"):
            return HeadKv(layers, kv_heads, self._count("head_dim"))
        hidden = self._count("hidden_size", "n_embd", "d_model")
        if hidden % heads:
            what = f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
            raise InputError(what, where=self.where, remedy="add head_dim")
        return HeadKv(layers, kv_heads, hidden // heads)

    def _has(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def _count(self, *names: str) -> int:
        """Return the first of `names` that the config states, a positive whole number."""
        name = next(filter(self._has, names), None)
        if name is None:
            remedy = "is this a language model's config.json? A preset may do instead"
            raise InputError(f"{names[0]} is missing", where=self.where, remedy=remedy)
        value = self.fields[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name} is {value!r}, not a positive number", where=self.where)
        return value

    def _layers(self) -> tuple[int, list[str]]:
        """Return the number of layers that keep KV for each token, and notes where it is rough."""
        total = self._count("num_hidden_layers", "n_layer", "num_layers")
        window = self.fields.get("sliding_window")
        kinds = self.fields.get("layer_types")
        if not isinstance(kinds, list):
            if hybrid := next(filter(self._has, _HYBRID), None):
                note = f"{hybrid} says that layers differ: all {total} counted as full attention"
                return total, [f"{note}, an upper bound"]
            slides = window is not None and self.fields.get("use_sliding_window", True)
            return total, [_window_note("layers may look", window)] if slides else []
        if len(kinds) != total:
            what = f"layer_types lists {len(kinds)} layers, num_hidden_layers says {total}"
            raise InputError(what, where=self.where)
        windowed = sum(kind in _WINDOWED for kind in kinds)
        keeping = windowed + sum(kind in _FULL for kind in kinds)
        if not keeping:
            raise InputError("no layer keeps KV for each token", where=self.where)
        notes = []
        if windowed:
            notes.append(_window_note(f"{windowed} of {total} layers look", window))
        if keeping < total:
            note = f"{total - keeping} of {total} layers keep a state of fixed size"
            notes.append(f"{note} instead of KV for each token: not counted")
        return keeping, notes

    def _dtype(self) -> tuple[KvDtype, list[str]]:
        stated = self.fields.get("dtype") or self.fields.get("torch_dtype")
        dtype = _CONFIG_DTYPES.get(str(stated).removeprefix("torch."))
        if dtype is None:
            doubt = f"dtype {stated!r} is unknown" if stated else "no dtype stated"
            return "bf16", [f"{doubt}: 2 bytes per value assumed; override with --kv-dtype"]
        if dtype == "fp32":
            note = "float32 counted as stated; vLLM serves such a model in 16 bits by default"
            return dtype, [f"{note}: --kv-dtype fp16"]
        return dtype, []


def _window_note(which: str, window: object) -> str:
    """Return the note on layers that look `window` tokens back."""
    back = f"{window} tokens back" if isinstance(window, int) else "a limited way back"
    return f"{which} only {back}: counted in full, an upper bound for long prompts"


def _model(
    name: str, source: str, shape: tuple[int, int, int], dtype: KvDtype = "bf16", *notes: str
) -> Model:
    return Model(name, HeadKv(*shape), dtype, f"config.json of {source}", notes)


_PRESETS: Mapping[str, Model] = {
    model.name: model
    for model in (
        _model("vicuna-7b", "lmsys/vicuna-7b-v1.5", (32, 32, 128), "fp16"),
        _model("llama2-7b", "meta-llama/Llama-2-7b-hf", (32, 32, 128), "fp16"),
        _model("llama2-13b", "meta-llama/Llama-2-13b-hf", (40, 40, 128), "fp16"),
        _model("llama2-70b", "meta-llama/Llama-2-70b-hf", (80, 8, 128), "fp16"),
        _model("llama3-8b", "meta-llama/Meta-Llama-3-8B", (32, 8, 128)),
        _model("llama3-70b", "meta-llama/Meta-Llama-3-70B", (80, 8, 128)),
        _model("llama3.1-8b", "meta-llama/Llama-3.1-8B", (32, 8, 128)),
        _model("llama3.1-70b", "meta-llama/Llama-3.1-70B", (80, 8, 128)),
        _model("mistral-7b", "mistralai/Mistral-7B-v0.3", (32, 8, 128)),
        _model("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", (32, 8, 128)),
        _model("qwen2-7b", "Qwen/Qwen2-7B", (28, 4, 128)),
        _model("qwen2-72b", "Qwen/Qwen2-72B", (80, 8, 128)),
        _model("qwen2.5-7b", "Qwen/Qwen2.5-7B", (28, 4, 128)),
        _model("qwen2.5-14b", "Qwen/Qwen2.5-14B", (48, 8, 128)),
        _model("qwen2.5-32b", "Qwen/Qwen2.5-32B", (64, 8, 128)),
        _model("qwen2.5-72b", "Qwen/Qwen2.5-72B", (80, 8, 128)),
        _model("qwen3-8b", "Qwen/Qwen3-8B", (36, 8, 128)),
        _model("qwen3-32b", "Qwen/Qwen3-32B", (64, 8, 128)),
        Model(
            "deepseek-v3", LatentKv(61, 512, 64), "bf16", "config.json of deepseek-ai/DeepSeek-V3"
        ),
        _model(
            "gpt-oss-20b",
            "openai/gpt-oss-20b",
            (24, 8, 64),
            "bf16",
            _window_note("12 of 24 layers look", 128),
        ),
    )
}
