"""Which engine has a policy, and how it is told."""

from __future__ import annotations

import math

import pytest

from kvscope.core.errors import UsageError
from kvscope.deployment.deployment import Deployment, resolve
from kvscope.deployment.engines import WRITE_POLICIES, parse_engine
from kvscope.deployment.kv_groups import KvGroup, KvGroups
from kvscope.policies.lfu import Slru
from kvscope.policies.lru import Lru, LruRetention
from kvscope.policies.registry import POLICIES, by_name
from kvscope.policies.tlru import TLru
from kvscope.tuning.flags import VLLM_PLUGIN, EngineLaunch, flags
from kvscope.vllm_plugin.eviction_controller import lane_policy


def test_a_retention_interval_is_vllms_own_flag() -> None:
    """A multiple of the blocks of all groups, and nothing without groups."""
    launch = EngineLaunch(groups=KvGroups((KvGroup("full", 16), KvGroup("sliding", 32, 128))))
    told = flags(LruRetention({"retention_tokens": 1000.0}), launch)
    assert told.vllm == "--prefix-cache-retention-interval 992"
    assert (told.sglang, told.vllm_needs_plugin) == (None, False)
    kept = flags(LruRetention(), launch).vllm
    assert kept is not None
    assert "--prefix-cache-retention-interval None" in kept


def test_sglang_s_waiting_order_is_a_flag() -> None:
    """Where it is not the default."""
    for order in ("fcfs", "lpm"):
        stated = Deployment(gpu="h100", model="llama3-8b", engine=f"sglang:schedule_policy={order}")
        where = resolve(stated)
        told = flags(Lru(), EngineLaunch.of(where, None)).sglang
        assert told is not None
        assert (f"--schedule-policy {order}" in told) == (order == "lpm")
        assert "--max-running-requests 2048" in told
        assert parse_engine(where.engine.text) == where.engine
        assert where.engine.order == order


@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
def test_sglang_s_host_tier_is_a_flag(write_policy: str) -> None:
    text = f"sglang:hicache_write_policy={write_policy}:hicache_ratio=2.5"
    where = resolve(Deployment(gpu="h100", model="llama3-8b", engine=text))
    written = flags(Lru(), EngineLaunch.of(where, None)).sglang or ""
    words = f"--enable-hierarchical-cache --hicache-ratio 2.5 --hicache-write-policy {write_policy}"
    assert words in written
    assert parse_engine(where.engine.text) == where.engine


def test_sglang_s_flags_are_whole_numbers() -> None:
    """In tokens; no infinite one, and those of LRU for a T-LRU that is none."""
    launch = EngineLaunch(16, 1_000)
    tlru = flags(TLru({"xi_tokens": 2048.4, "next_prompt_tokens": 255.6}), launch)
    assert tlru.sglang == (
        "--radix-eviction-policy tlru --radix-eviction-policy-config"
        """ '{"threshold":2048,"next_prompt_estimate":256}' --max-total-tokens 16000"""
    )
    slru = (
        "--radix-eviction-policy slru --radix-eviction-policy-config '{\"protected_threshold\":3}'"
    )
    assert flags(Slru({"protected_uses": 3})).sglang == slru
    assert flags(Slru({"protected_uses": math.inf})).sglang is None
    for same in (Lru(), TLru({"xi_tokens": 256, "next_prompt_tokens": 256})):
        assert flags(same, launch).sglang == "--radix-eviction-policy lru --max-total-tokens 16000"


@pytest.mark.parametrize(
    ("name", "values", "leaves"),
    [
        ("tlru", {"xi_percentile": 0.95}, None),
        ("tlru", {"ttl_s": 60.0}, None),
        ("tlru", {}, "any"),
        ("etlru", {}, None),
        ("wa", {}, None),
        ("lru", {"ttl_s": 60.0}, None),
    ],
)
def test_no_flags_for_what_sglang_does_not_have(
    name: str, values: dict[str, float], leaves: str | None
) -> None:
    """Adaptive xi, a time to live and other leaves are not what the flags would run."""
    told = flags(by_name(name)(values, leaves))  # type: ignore[arg-type]
    assert told.sglang is None
    assert "--scheduler-cls" in (told.vllm or "--scheduler-cls")  # the plugin's, or none


def test_a_pool_that_the_engine_measures_has_no_flag() -> None:
    """Only a stated pool overrides the engine's own measurement; further options come last."""
    launch = EngineLaunch(32, None, ("--max-num-seqs 8",))
    tlru = TLru({"xi_tokens": 1130, "next_prompt_tokens": 99})
    told = flags(tlru, launch)
    assert told.vllm == f"{VLLM_PLUGIN} --block-size 32 --max-num-seqs 8"
    assert told.vllm_needs_plugin
    assert told.sglang == (
        "--radix-eviction-policy tlru --radix-eviction-policy-config"
        """ '{"threshold":1130,"next_prompt_estimate":99}' --max-num-seqs 8"""
    )
    stated = flags(tlru, EngineLaunch(32, 1_000))
    assert stated.vllm == f"{VLLM_PLUGIN} --block-size 32 --num-gpu-blocks-override 1000"
    assert (stated.sglang or "").endswith(" --max-total-tokens 32000")


@pytest.mark.parametrize(
    "policy", [each for each in POLICIES if each is not LruRetention], ids=lambda one: one.name
)
def test_vllm_has_flags_for_what_the_plugin_takes(policy: type) -> None:
    """No flags lead to an engine that refuses them."""
    told = flags(policy()).vllm
    try:
        lane_policy(policy())
    except UsageError:
        assert told is None
    else:
        assert told is not None
