"""The KV cache of a model, read from its Hugging Face config.json.

Where a config leaves the size open (hybrid layers, no precision), the result says so in a note.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.errors import InputError
from kvscope.kv_size.model import HeadKv, KvDtype, LatentKv, ModelKv, windowed_note

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
