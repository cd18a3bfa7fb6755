"""`--offload` as text: what it stands for, vLLM's options for it, and what is refused."""

from __future__ import annotations

import pytest

from kvscope.core.errors import UsageError
from kvscope.vllm_sim.offload_spec import OffloadSpec


def test_defaults_are_those_of_vllm() -> None:
    """Nothing but the version: prompts, LRU, a block a chunk, no threshold."""
    spec = OffloadSpec.parse("vllm@0.33")
    assert spec == OffloadSpec("0.33", "lru", 1, True, 0, 64_000)
    assert spec.kv_transfer_config(2**30) == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 2**30},
    }


@pytest.mark.parametrize(
    "text",
    [
        "vllm@0.32",
        "vllm@0.33:eviction_policy=arc:blocks_per_chunk=4",
        "vllm@0.33:offload_prompt_only=false:store_threshold=2",
    ],
)
def test_text_round_trips(text: str) -> None:
    """A spec is written as it was read, and its options are those that vLLM gets."""
    spec = OffloadSpec.parse(text)
    assert spec.text == text
    extra = spec.kv_transfer_config(1)["kv_connector_extra_config"]
    assert len(extra) == 1 + text.count("=")


def test_size_is_in_chunks() -> None:
    """A chunk of four blocks has a quarter of the places."""
    assert OffloadSpec("0.33", blocks_per_chunk=4).settings(1003).capacity_chunks == 250


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("vllm", "not modelled"),
        ("vllm@0.31", "take vllm@0.32 or vllm@0.33"),
        ("vllm@0.33:eviction=arc", "did you mean eviction_policy?"),
        ("vllm@0.33:eviction_policy=fifo", "take lru or arc"),
        ("vllm@0.33:offload_prompt_only=1", "take true or false"),
        ("vllm@0.33:store_threshold", "no option"),
        ("vllm@0.33:store_threshold=2:store_threshold=3", "twice"),
        ("vllm@0.33:blocks_per_chunk=0", "give 1 or more"),
    ],
)
def test_refuses(text: str, what: str) -> None:
    """Each mistake names the option and a remedy."""
    with pytest.raises(UsageError, match="offload") as error:
        OffloadSpec.parse(text)
    assert what in str(error.value)
