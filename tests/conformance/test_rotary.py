"""Tables of positions against vLLM's own rotary embeddings."""

from __future__ import annotations

from typing import Any

import pytest

from kvscope.deployment.config_fields import ConfigFields
from kvscope.deployment.rotary import rotary_bytes
from tests.conformance.vllm_side import VllmConfig, torch

pytestmark = pytest.mark.engine

HEAD, LONGEST = 128, 32_768
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16_384}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default"},
        {"rope_type": "default", "partial_rotary_factor": 0.25},
        {"rope_type": "default", "mrope_section": [16, 24, 24]},
        {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        {"rope_type": "linear", "factor": 8.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        YARN,
        {**YARN, "rope_type": "deepseek_yarn"},
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * (HEAD // 2),
            "long_factor": [2.0] * (HEAD // 2),
            "original_max_position_embeddings": 4096,
        },
    ],
    ids=lambda rope: "-".join(
        (rope["rope_type"], *sorted({"mrope_section", "partial_rotary_factor"} & set(rope)))
    ),
)
def test_a_table_has_the_bytes_of_vllms(rope: dict[str, Any]) -> None:
    """For each way of scaling that get_rope knows and models use."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    engine = VllmConfig()
    engine.model_config = type("Longest", (), {"max_model_len": LONGEST})()
    with set_current_vllm_config(engine), torch.device("meta"):
        theirs = get_rope(
            HEAD, LONGEST, rope_parameters={"rope_theta": 1e4, **rope}, dtype=torch.bfloat16
        )
    config = ConfigFields(
        "config.json", {"max_position_embeddings": LONGEST, "rope_parameters": rope}
    )
    tables = sum(table.numel() * table.element_size() for table in theirs.buffers())
    assert rotary_bytes(config, HEAD) == tables
