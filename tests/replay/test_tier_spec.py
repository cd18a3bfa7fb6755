"""Tiers as people write them: what is understood, what follows, what is refused and how."""

from __future__ import annotations

import math

import pytest

from kvscope.core.errors import UsageError
from kvscope.policies.base import Policy
from kvscope.policies.tlru import TLru
from kvscope.replay.tier_spec import IN_PLACE, READS, Read, parse_tiers

BLOCK_BYTES = 2 * 2**20


def test_a_hierarchy() -> None:
    """Sizes become blocks, what a read takes follows from the name, lru is the policy."""
    hbm, dram, ssd = parse_tiers(
        "hbm=40GiB, dram=128GiB:ttl=10m, ssd=1TiB", block_bytes=BLOCK_BYTES
    )
    assert (hbm.name, dram.name, ssd.name) == ("hbm", "dram", "ssd")
    assert (hbm.capacity_blocks, dram.capacity_blocks, ssd.capacity_blocks) == (
        20_480,
        65_536,
        524_288,
    )
    assert (hbm.ttl_s, dram.ttl_s, ssd.ttl_s) == (math.inf, 600, math.inf)
    assert [tier.policy.name for tier in (hbm, dram, ssd)] == ["lru"] * 3
    assert (hbm.read, dram.read, ssd.read) == (IN_PLACE, READS["dram"], READS["ssd"])
    assert [tier.write_bytes_per_s for tier in (hbm, dram, ssd)] == [math.inf, 25e9, 3.5e9]


def test_everything_can_be_said() -> None:
    """Options in any order, blocks instead of bytes, a tier of one's own."""
    first, pool = parse_tiers(
        "dram=5k blocks:policy=tlru,pool=70blocks:latency=2ms:read=5GB/s:write=2GB/s"
    )
    assert (first.capacity_blocks, first.policy.name, first.read) == (5_000, "tlru", IN_PLACE)
    assert (pool.capacity_blocks, pool.read) == (70, Read(0.002, 5e9))
    assert pool.write_bytes_per_s == 2e9


def test_one_of_the_defaults_can_be_changed() -> None:
    """What is not said stays as the name has it; writes are then no faster than reads."""
    (_, ssd) = parse_tiers("hbm=1blocks,ssd=1blocks:read=12GB/s")
    assert (ssd.read, ssd.write_bytes_per_s) == (Read(READS["ssd"].latency_s, 12e9), 3.5e9)
    (_, slow, own) = parse_tiers("hbm=1blocks,ssd=1blocks:read=1GB/s,pool=1blocks:read=9GB/s")
    assert [tier.write_bytes_per_s for tier in (slow, own)] == [1e9, 9e9]


def test_policies_are_bound_by_the_caller() -> None:
    """Parameters come from whoever knows them; a tier's ttl is its own."""

    def bind(policy: type[Policy]) -> Policy:
        return policy({"xi_tokens": 77, "ttl_s": 5}, "any") if policy is TLru else policy()

    first, below = parse_tiers("hbm=9blocks:policy=tlru,dram=9blocks:policy=tlru:ttl=1m", bind=bind)
    assert (first.policy.values["xi_tokens"], first.ttl_s, first.policy.evicts) == (77, 5, "any")
    assert (below.policy.values["xi_tokens"], below.ttl_s, below.policy.evicts) == (77, 60, "any")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--tiers: '' is no tier; write for example hbm=40GiB,dram=128GiB:ttl=10m"),
        ("hbm", "--tiers: 'hbm' is no tier; write"),
        ("hbm=1GiB,", "--tiers: '' is no tier"),
        ("hbm=1GiB,hbm=2GiB:read=1GB/s", "--tiers: 'hbm' is there twice; rename one"),
        ("hbm=many", "--tiers hbm: 'many' is not a size; write for example 16GiB"),
        (
            "hbm=xblocks",
            "--tiers hbm: 'xblocks' is not a number of blocks; write for example 5000blocks",
        ),
        ("hbm=0blocks", "--tiers hbm: 0blocks holds not one block; a block takes"),
        ("hbm=1MiB", "--tiers hbm: 1MiB holds not one block; a block takes 2 MiB"),
        ("hbm=1GiB:ttl", "--tiers hbm: 'ttl' is no option; write for example ttl=10m"),
        ("hbm=1GiB:tll=1m", "--tiers hbm: a tier has no option 'tll'; did you mean ttl?"),
        ("hbm=1GiB:zz=1m", "--tiers hbm: a tier has no option 'zz'; it has ttl, policy, read"),
        ("hbm=1GiB:ttl=1m:ttl=2m", "--tiers hbm: ttl is there twice; leave one out"),
        ("hbm=1GiB:ttl=600", "--tiers hbm: '600' is not a duration; write for example 200ms"),
        ("hbm=1GiB:policy=fifo:ttl=1m", "--tiers hbm: fifo has no time to live; leave out ttl"),
        ("hbm=1GiB:policy=lrv", "--tiers hbm: unknown policy 'lrv'; did you mean lru?"),
        ("hbm=1GiB,ssd=1GiB:read=5Gb/s", "--tiers ssd: '5Gb/s' is in bits; write 5GB/s"),
        ("hbm=1GiB,dran=1GiB", "--tiers dran: nothing says what a read takes; did you mean dram?"),
        ("hbm=1GiB,pool=1GiB", "what a read takes; write for example read=10GB/s:latency=1ms"),
    ],
)
def test_refused(text: str, message: str) -> None:
    """Each refusal says where, what and what to do about it, in one line."""
    with pytest.raises(UsageError) as refusal:
        parse_tiers(text, block_bytes=BLOCK_BYTES)
    assert message in str(refusal.value)
    assert refusal.value.remedy
    assert "\n" not in str(refusal.value)


def test_bytes_need_a_model() -> None:
    """Without the size of a block only blocks can be counted."""
    with pytest.raises(UsageError, match=r"--tiers hbm: .*model.*5000blocks"):
        parse_tiers("hbm=1GiB")
    assert parse_tiers("hbm=5000blocks")[0].capacity_blocks == 5_000
