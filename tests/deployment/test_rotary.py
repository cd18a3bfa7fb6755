"""Tables of positions: their sizes by hand; tests/conformance/test_rotary.py has vLLM's own."""

from __future__ import annotations

from typing import Any

import pytest

from kvscope.core.errors import InputError
from kvscope.core.units import GIB, MIB
from kvscope.deployment.config_fields import ConfigFields
from kvscope.deployment.models import resolve_model
from kvscope.deployment.rotary import rotary_bytes


@pytest.mark.parametrize(
    ("stated", "positions", "values"),
    [
        ({}, 32_768, 128),
        ({"partial_rotary_factor": 0.5}, 32_768, 64),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, 131_072, 128),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 32_768, 128),
        (
            {"rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4}},
            160,
            128,
        ),
        ({"rope_scaling": {"type": "yarn", "factor": None}}, 32_768, 128),
        ({"rope_scaling": "none"}, 32_768, 128),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, 131_072, 128),
        (
            {"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 4096}},
            36_864,
            128,
        ),
        ({"qk_rope_head_dim": 64, "kv_lora_rank": 512}, 32_768, 64),
    ],
)
def test_a_table(stated: dict[str, Any], positions: int, values: int) -> None:
    """16 bits for the sines and cosines of each position, as far as scaling reaches."""
    config = ConfigFields("config.json", {"max_position_embeddings": 32_768, **stated})
    assert rotary_bytes(config, 128) == 2 * positions * values


@pytest.mark.parametrize(
    "rope",
    [
        {"type": "linear", "factor": "wide"},
        {"type": "linear", "factor": float("inf")},
        {"type": "yarn", "factor": 1e300},
        {"type": "yarn", "original_max_position_embeddings": -3},
        {"partial_rotary_factor": "half"},
        {"full_attention": {"partial_rotary_factor": [1]}},
    ],
)
def test_sizes_that_are_none_are_refused(rope: dict[str, Any]) -> None:
    """In one line with the place, as those of other fields."""
    config = ConfigFields("config.json", {"max_position_embeddings": 32_768, "rope_scaling": rope})
    with pytest.raises(InputError, match=r"^config\.json: \w+ is .*, not a number"):
        rotary_bytes(config, 128)


def test_no_table_without_positions() -> None:
    """Where no field states the longest position, none is counted."""
    assert rotary_bytes(ConfigFields("config.json", {"rope_theta": 10_000}), 128) == 0


def test_windows_have_a_table_of_their_own() -> None:
    """Gemma 3 scales the positions of full attention alone: 1,048,576 and 131,072 of 256 values."""
    gemma = resolve_model("gemma3-4b")
    assert gemma.shaped().rotary_bytes == 576 * MIB
    assert gemma.loaded_bytes(4) == gemma.weight_bytes(4) + 576 * MIB


def test_compressed_attention_has_two_tables() -> None:
    """DeepSeek-V4: with and without compression, each of 1,048,576 positions in 32 bits."""
    assert resolve_model("deepseek-v4-flash").shaped().rotary_bytes == GIB // 2
