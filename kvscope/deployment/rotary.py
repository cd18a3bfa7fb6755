"""Rotary position embeddings: tables of sines and cosines, which each GPU holds whole.

They are no parameters, but vLLM counts them with the weights: 2.5 GiB for Llama 4 Scout with its
10,485,760 positions.

Source: vLLM 0.32.0, vllm/model_executor/layers/rotary_embedding (get_rope, and
_compute_cos_sin_cache of each class), and vllm/models/deepseek_v4/common/rope.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvscope.deployment.config_fields import ConfigFields

_VALUE_BYTES, _FLOAT_BYTES = 2, 4
_WITH_LOCAL = ("gemma3", "gemma3_text", "gemma3n", "gemma4")  # whose windows have their own table
_PARTIAL = ("partial_rotary_factor", "rotary_pct")
_AXES = 4  # times the positions if images have axes of their own


def rotary_bytes(config: ConfigFields, head_size: int) -> int:
    """Return the bytes of all tables on a GPU; 0 if the config states no longest position.

    `head_size` is the values in a key; models with compressed keys state their own rotary size.
    Raises InputError for a stated size that is no number above 0.
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
    """Yield the number of positions and the values per position of each table."""
    stated = config.get("rope_parameters", "rope_scaling", default={})
    stated = stated if isinstance(stated, Mapping) else {}
    kinds = {name: each for name, each in stated.items() if isinstance(each, Mapping)}
    if not kinds:
        kinds = {"full_attention": stated}
        if config.family in _WITH_LOCAL:
            kinds["sliding_attention"] = {}
    share = config.factor(1.0, next(filter(config.has, _PARTIAL), _PARTIAL[0]))
    for name, each in kinds.items():
        rope = ConfigFields(config.where, each)
        head = config.count_or(size, "global_head_dim") if name == "full_attention" else size
        whole = rope.get("rope_type") == "proportional"
        turned = 1.0 if whole else rope.factor(share, "partial_rotary_factor")
        yield _positions(rope, longest), round(head * turned)


def _positions(rope: ConfigFields, longest: int) -> int:
    """Return the positions of a table: `longest`, unless the scaling of `rope` changes it."""
    kind = rope.get("rope_type", "type")
    original = rope.count_or(longest, "original_max_position_embeddings")
    if kind == "linear":
        return round(longest * rope.factor(1.0, "factor"))
    if kind in {"yarn", "deepseek_yarn"}:
        return round(original * rope.factor(1.0, "factor"))
    if kind == "longrope":
        return original + longest
    return longest * (_AXES if rope.has("mrope_section") else 1)
