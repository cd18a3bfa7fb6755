"""What a model keeps in its KV cache for each token.

Bytes per token = 2 · layers · KV heads · head size · bytes per value (keys and values).
Multi-head latent attention (MLA) keeps one compressed vector and one rotary key instead:
(latent size + rope size) · layers · bytes per value.

Checks: Vicuna-7B in fp16 524,288 B; Qwen2-7B 0.875 MiB per block of 16 tokens.

Source: DeepSeek-V2, section 2.1, for MLA.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

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
