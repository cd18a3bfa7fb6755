"""Which engine has a policy, and how it is told."""

from __future__ import annotations

import pytest

from kvscope.core.errors import UsageError
from kvscope.policies.lru import Lru
from kvscope.policies.registry import POLICIES
from kvscope.policies.tlru import TLru
from kvscope.tuning.flags import VLLM_PLUGIN, flags
from kvscope.vllm_plugin.eviction_controller import lane_policy


def test_lru_needs_no_plugin() -> None:
    """vLLM's own order; a block more, as its first is never given to a request."""
    told = flags(Lru(), 1000)
    assert told.vllm == "--block-size 16 --num-gpu-blocks-override 64"
    assert told.built_in
    assert not told.vllm_needs_plugin


def test_tlru_is_built_into_sglang_and_vllm_has_the_plugin_for_it() -> None:
    """The plugin reads the parameters from the recommendation."""
    told = flags(TLru({"xi_tokens": 1130, "next_prompt_tokens": 99}), 16)
    assert told.vllm == f"{VLLM_PLUGIN} --block-size 16 --num-gpu-blocks-override 2"
    assert told.vllm_needs_plugin
    assert told.built_in
    assert told.sglang is not None
    assert flags(TLru({"xi_percentile": 0.9}), 16).sglang is None


@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: one.name)
def test_vllm_has_flags_for_what_the_plugin_takes(policy: type) -> None:
    """No flags lead to an engine that refuses them."""
    told = flags(policy(), 16).vllm
    try:
        lane_policy(policy())
    except UsageError:
        assert told is None
    else:
        assert told is not None
