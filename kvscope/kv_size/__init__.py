"""How many bytes of KV cache a token takes: from a Hugging Face config.json or a preset."""

from __future__ import annotations

from pathlib import Path

from kvscope.kv_size.hf_config import read_config
from kvscope.kv_size.model import HeadKv, KvDtype, LatentKv, ModelKv
from kvscope.kv_size.presets import preset, preset_names

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
