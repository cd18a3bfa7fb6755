"""Tiers as people write them: what is understood, what follows, what is refused and how."""

from __future__ import annotations

import math

import pytest

from kvscope.core.errors import UsageError
from kvscope.replay.tier_spec import IN_PLACE, READS, Read, parse_tiers

BLOCK_BYTES = 2 * 2**20


def test_a_hierarchy() -> None:
    """Sizes become blocks, and what a read takes follows from the name."""
    hbm, dram, ssd = parse_tiers("hbm=40GiB, dram=128GiB, ssd=1TiB", block_bytes=BLOCK_BYTES)
    assert (hbm.name, dram.name, ssd.name) == ("hbm", "dram", "ssd")
    assert (hbm.capacity_blocks, dram.capacity_blocks, ssd.capacity_blocks) == (
        20_480,
        65_536,
        524_288,
    )
    assert (hbm.read, dram.read, ssd.read) == (IN_PLACE, READS["dram"], READS["ssd"])
    assert [tier.write_bytes_per_s for tier in (hbm, dram, ssd)] == [math.inf, 25e9, 3.5e9]


def test_everything_can_be_said() -> None:
    """Options in any order, blocks instead of bytes, a tier of one's own."""
    first, pool = parse_tiers("dram=5k blocks,pool=70blocks:latency=2ms:read=5GB/s:write=2GB/s")
    assert (first.capacity_blocks, first.read) == (5_000, IN_PLACE)
    assert (pool.capacity_blocks, pool.read) == (70, Read(0.002, 5e9))
    assert pool.write_bytes_per_s == 2e9


def test_one_of_the_defaults_can_be_changed() -> None:
    """What is not said stays as the name has it; writes are then no faster than reads."""
    (_, ssd) = parse_tiers("hbm=1blocks,ssd=1blocks:read=12GB/s")
    assert (ssd.read, ssd.write_bytes_per_s) == (Read(READS["ssd"].latency_s, 12e9), 3.5e9)
    (_, slow, own) = parse_tiers("hbm=1blocks,ssd=1blocks:read=1GB/s,pool=1blocks:read=9GB/s")
    assert [tier.write_bytes_per_s for tier in (slow, own)] == [1e9, 9e9]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--tiers: '' is no tier; write for example hbm=40GiB,dram=128GiB"),
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
        ("hbm=1GiB:read", "--tiers hbm: 'read' is no option; write for example read=10GB/s"),
        ("hbm=1GiB:reed=1m", "--tiers hbm: a tier has no option 'reed'; did you mean read?"),
        ("hbm=1GiB:ttl=1m", "--tiers hbm: a tier has no option 'ttl'; it has read, write, latency"),
        ("hbm=1GiB:policy=lru", "--tiers hbm: a tier has no option 'policy'; it has read, write"),
        ("hbm=1GiB:latency=1s:latency=2s", "--tiers hbm: latency is there twice; leave one out"),
        ("hbm=1GiB:latency=600", "--tiers hbm: '600' is not a duration; write for example 200ms"),
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
