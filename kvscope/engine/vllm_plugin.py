"""Earlier path of the scheduler classes; `kvscope.vllm_plugin` is their place."""

from __future__ import annotations

from typing import Any

from kvscope import vllm_plugin


def __getattr__(name: str) -> Any:
    """Return what `kvscope.vllm_plugin` has under `name`."""
    return getattr(vllm_plugin, name)
