"""Tables of the sines and cosines by which attention rotates positions: each GPU holds them whole.

They are no parameters, but vLLM counts them with the weights: 2.5 GiB of Llama 4 Scout, whose
positions reach to 10,485,760.

Source: vLLM 0.32.0, vllm/model_executor/layers/rotary_embedding (get_rope, and
_compute_cos_sin_cache of each class), and vllm/models/deepseek_v4/common/rope.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvscope.deployment.config_fields import ConfigFields

_VALUE_BYTES, _FLOAT_BYTES = 2, 4
_WITH_LOCAL = ("gemma3", "gemma3_text", "gemma3n", "gemma4")  # whose windows have their own table
_PARTIAL = ("partial_rotary_factor", "rotary_pct")
_AXES = 4  # as many times as many positions where images have axes of their own


def rotary_bytes(config: ConfigFields, head_size: int) -> int:
    """Return the bytes of all tables on a GPU; 0 if no field states the longest position.

    `head_size` is the size of a head where keys are not compressed.
    """
    longest = config.count_or(0, "max_position_embeddings")
    if not longest:
        return 0
    compressed = config.count_or(0, "qk_rope_head_dim")
    if config.has("compress_ratios"):  # layers with and without compression, in 32 bits
        return 2 * _FLOAT_BYTES * longest * compressed
    size = compressed or head_size
    return sum(
        _VALUE_BYTES * positions * values for positions, values in _tables(config, longest, size)
    )


def _tables(config: ConfigFields, longest: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the number of positions of each table, and its values per position."""
    stated = config.get("rope_parameters", "rope_scaling", default={})
    stated = stated if isinstance(stated, Mapping) else {}
    kinds = {name: each for name, each in stated.items() if isinstance(each, Mapping)}
    local = config.family in _WITH_LOCAL
    if not kinds:
        kinds = {"full_attention": stated, **({"sliding_attention": {}} if local else {})}
    share = config.factor(1.0, next(filter(config.has, _PARTIAL), _PARTIAL[0]))
    for name, rope in kinds.items():
        head = config.count_or(size, "global_head_dim") if name == "full_attention" else size
        turned = head * float(rope.get("partial_rotary_factor", share))
        if rope.get("rope_type") == "proportional":
            turned = head
        yield _positions(rope, longest), round(turned)


def _positions(rope: Mapping[str, Any], longest: int) -> int:
    """Return the number of positions of a table, including the effect of RoPE scaling."""
    kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
    factor = factor if isinstance(factor, int | float) and factor > 0 else 1
    original = rope.get("original_max_position_embeddings")
    original = original if isinstance(original, int) and original > 0 else longest
    if kind == "linear":
        return round(longest * factor)
    if kind in {"yarn", "deepseek_yarn"}:
        return round(original * factor)
    if kind == "longrope":
        return original + longest
    return longest * (_AXES if "mrope_section" in rope else 1)
