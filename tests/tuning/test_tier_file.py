"""recommendation.toml of `kvscope tune --compare-tiers`: what its readers find in it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvscope.core.errors import InputError
from kvscope.replay.tier_spec import READS, SharedPool, parse_tiers
from kvscope.tuning.file import (
    AddedTier,
    EngineTable,
    MemoryTable,
    RecommendationFile,
    TierTable,
    read_recommendation,
    verdict_in,
    why_kept,
    write_recommendation,
)
from kvscope.tuning.flags import Flags
from kvscope.tuning.tiers import TierCandidate, TierOffer
from kvscope.tuning.tuner import TuningResult
from tests.tuning.answered import BLOCK_BYTES
from tests.tuning.examples import BLOCK, PROFILE
from tests.tuning.test_tiers import CHEAP_SSD, POOL, SIZES, WHOLE, result_of

WHERE = EngineTable("1 x l4", "vllm@0.33", 1, 8, 512)
FLAGS = {"vllm": "--kv-transfer-config '{}'"}


@pytest.fixture(scope="module")
def result() -> TuningResult:
    """Return a tuning that the files below take their figures from."""
    return result_of()


def offer(gpus: int = 1) -> TierOffer:
    """Return memory below the pool."""
    return TierOffer(candidates=SIZES, block_bytes=BLOCK_BYTES, gpus=gpus, prices=CHEAP_SSD)


def rounded(
    path: Path, result: TuningResult, candidate: TierCandidate, gpus: int = 1
) -> RecommendationFile:
    """Return what is read of a recommendation that was written."""
    table = TierTable.of(offer(gpus), candidate, BLOCK)
    write_recommendation(
        path,
        result,
        trace="t",
        block_size=BLOCK,
        profile=PROFILE,
        flags=Flags(None, FLAGS["vllm"]),
        deployment=WHERE,
        added=AddedTier(table, result.baseline, "do-now", None),
    )
    return read_recommendation(path)


@pytest.mark.parametrize(
    "candidate",
    [
        TierCandidate("vllm@0.33", 3 * 2**30),
        TierCandidate("vllm@0.32:eviction_policy=arc", WHOLE + 7, 2**33 + 1),
    ],
)
def test_simulate_finds_pool_and_tier(
    result: TuningResult, tmp_path: Path, candidate: TierCandidate
) -> None:
    """Sizes and times of copies are those of the tuning to the last bit, over all of its GPUs."""
    read = rounded(tmp_path / "recommendation.toml", result, candidate, gpus=3)
    assert (read.verdict, read.trace, read.deployment, read.flags) == ("switch", "t", WHERE, FLAGS)
    assert (read.target, read.profile) == (result.target, PROFILE)
    assert (read.policy.name, read.capacity_tokens) == ("lru", POOL * BLOCK)
    assert read.tier is not None
    assert read.tier.offload == candidate.offload
    assert read.tier.kv_bytes_per_token * BLOCK == BLOCK_BYTES
    pool, *below = parse_tiers(read.tier.tiers(POOL), block_bytes=BLOCK_BYTES)
    assert (pool.name, pool.capacity_blocks) == ("hbm", POOL)
    lru = pool.policy
    tuned_with = offer(3).below(candidate).tiers
    assert [replace(each, policy=lru) for each in below] == [
        replace(each, policy=lru) for each in tuned_with
    ]


def test_times_of_copies_are_exact() -> None:
    """Bandwidths that no short number stands for read back as they were."""
    memory = MemoryTable("ssd", 2**40 + 1, 6.5e9 / 3, math.pi * 1e9, 1e-4 / 3)  # type: ignore[arg-type]
    table = TierTable("vllm@0.33", 1, [MemoryTable("dram", 2**30, 25e9, 1e9 / 7, 1e-5), memory])  # type: ignore[arg-type]
    below = parse_tiers(table.tiers(9), block_bytes=1)[1:]
    for tier, stated in zip(below, table.memory, strict=True):
        assert tier.capacity_blocks == stated.bytes
        assert tier.read.bytes_per_s == stated.read_bytes_per_s
        assert tier.write_bytes_per_s == stated.write_bytes_per_s
        assert tier.read.latency_s == pytest.approx(stated.latency_s, rel=1e-15)


def test_a_pool_that_replicas_share(tmp_path: Path, result: TuningResult) -> None:
    """Its link and what leaves it are kept; the link of all is the pool's own."""
    pool = SharedPool(40e9, evicts=True)
    candidate = TierCandidate("vllm@0.33", WHOLE, 10 * WHOLE, pool)
    tier = rounded(tmp_path / "r.toml", result, candidate, gpus=4).tier
    assert tier is not None
    memory, files = tier.memory
    assert (memory.kind, memory.pool_bytes_per_s, memory.evict) == ("dram", None, None)
    assert (files.kind, files.pool_bytes_per_s, files.evict) == ("shared", 40e9, "lru")
    assert files.read_bytes_per_s == READS["remote"].bytes_per_s
    endless = replace(candidate, pool=SharedPool())
    again = rounded(tmp_path / "again.toml", result, endless).tier
    assert again is not None
    assert (again.memory[1].pool_bytes_per_s, again.memory[1].evict) == (None, None)


@pytest.mark.parametrize(("present", "stays"), [("", False), ("keep-lru", False), ("switch", True)])
def test_what_recommends_a_change_stays(tmp_path: Path, present: str, stays: bool) -> None:
    """Unless the new file recommends one too."""
    path = tmp_path / "recommendation.toml"
    if present:
        path.write_text(f'verdict = "{present}"', encoding="utf-8")
    assert verdict_in(path) == present
    assert why_kept(path, "switch") is None
    kept = why_kept(path, "keep-lru")
    assert (kept is not None) == stays
    assert kept is None or "recommends a change and was left as it is" in kept


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ('offload = "vllm@0.33"', 'offload = "vlm"', "tier.offload"),
        ('offload = "vllm@0.33"', "", "tier.offload"),
        ('kind = "dram"', 'kind = "tape"', "tier.memory[0].kind"),
        ("bytes = 427", "bytes = -427", "tier.memory[0].bytes"),
        ("read_bytes_per_s = 25", "read_bytes_per_s = -25", "tier.memory[0].read_bytes_per_s"),
        ("write_bytes_per_s = 25000000000.0", "write_bytes_per_s = inf", "write_bytes_per_s"),
        ("latency_ms = 0.01", "latency_ms = -0.01", "tier.memory[0].latency_ms"),
        ("kv_bytes_per_token = 6", "kv_bytes_per_token = 0.6", "tier.kv_bytes_per_token"),
        ("offload =", "offlaod =", "tier.offlaod"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    result: TuningResult, tmp_path: Path, old: str, new: str, where: str
) -> None:
    """The file, the key and a remedy."""
    path = tmp_path / "recommendation.toml"
    rounded(path, result, SIZES[1])
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_recommendation(path)
    assert str(caught.value).startswith(str(path))
    assert where in (caught.value.where or "")
    assert caught.value.remedy
