"""What tiers give and cost: hand-worked, on a sample trace, and adding up."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.characterize.distributions import Windows
from kvscope.core.errors import UsageError
from kvscope.core.files import data_folder
from kvscope.core.hits import HitDefinition, standard
from kvscope.core.runs import TierMode
from kvscope.ingest.formats.base import Request
from kvscope.ingest.pipeline import ingest
from kvscope.latency.file import load_profile
from kvscope.policies.lru import Lru
from kvscope.replay.metrics import summarize
from kvscope.replay.settings import run_setting
from kvscope.replay.sweep import ServedReplay, serve_replay
from kvscope.replay.tier_spec import Read, Tier, parse_tiers
from kvscope.replay.tiers import TieredReplay, transfer_s
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from tests import small_traces

PROFILE = load_profile("llama2-7b-a100")
BLOCK_BYTES = 917_504  # Qwen2-7B in fp16, 16 tokens
SPECIFICATION = "hbm=8GiB:policy=tlru,dram=16GiB:ttl=10m,ssd=64GiB"

# Hits by tier and what left each (blocks) on sample_traces/to-c.jsonl.gz.
GOLDEN = {
    "exclusive": ([73341, 115521, 41128], [358865, 224620, 108594], [358865, 224620, 0]),
    "write-through": ([73341, 84332, 71850], [358865, 265171, 137147], [0, 0, 0]),
}


@pytest.fixture(scope="module")
def sample() -> Workload:
    """Return the sample of a chat product, ready to be replayed."""
    with open_store(MEMORY) as store:
        path = str(data_folder("sample_traces") / "to-c.jsonl.gz")
        prompts = load_prompts(store, ingest(store, path).trace)
    return Workload(prompts, run_setting(standard(), PROFILE), Windows(600.0, 11))


@pytest.mark.parametrize("mode", ["exclusive", "write-through"])
def test_golden(sample: Workload, mode: TierMode) -> None:
    """The sample trace over three tiers gives what it gave before."""
    tiers = parse_tiers(SPECIFICATION, block_bytes=BLOCK_BYTES)
    found = tiered(sample, tiers, mode, block_bytes=BLOCK_BYTES).tiers
    hits, evictions, demotions = GOLDEN[mode]
    assert [tier.hit_blocks for tier in found] == hits
    assert [tier.evictions for tier in found] == evictions
    assert [tier.demotions for tier in found] == demotions
    assert [tier.read_bytes for tier in found] == [BLOCK_BYTES * blocks for blocks in hits]


def test_more_tiers_save_more_than_they_cost(sample: Workload) -> None:
    """DRAM below HBM adds hits, and reading them is far quicker than computing them."""
    small = parse_tiers("hbm=8GiB", block_bytes=BLOCK_BYTES)
    both = parse_tiers("hbm=8GiB,dram=64GiB", block_bytes=BLOCK_BYTES)
    one = tiered(sample, small, "exclusive", block_bytes=BLOCK_BYTES)
    two = tiered(sample, both, "exclusive", block_bytes=BLOCK_BYTES)
    before, after = summarize(one.served), summarize(two.served)
    assert after.token_hit_rate > before.token_hit_rate + 0.1
    assert after.ttft_ms.p95 < before.ttft_ms.p95
    free = tiered(
        sample, [both[0], replace(both[1], read=Read(0, 1e30))], "exclusive", block_bytes=1
    )
    assert (free.served.ttft_s <= two.served.ttft_s).all()
    assert (free.served.ttft_s < two.served.ttft_s).any()


def test_a_read_takes_latency_then_bandwidth() -> None:
    """5 blocks of 1,000 bytes at 10,000 bytes/s after 3 s take 3.5 s, no blocks take nothing."""
    tiers = (
        Tier("hbm", 9, Lru()),
        Tier("dram", 9, Lru(), Read(3.0, 1e4)),
        Tier("ssd", 9, Lru(), Read(50.0, 1e3)),
    )
    hits = np.array([[7, 0, 0], [7, 5, 0], [0, 5, 2], [0, 0, 0]], dtype=np.int32)
    done = TieredReplay(tiers, hits, (0,) * 3, (0,) * 3, np.zeros((3, 1), dtype=bool))
    assert transfer_s(done, 1_000).tolist() == [0.0, 3.5, 55.5, 0.0]
    with pytest.raises(UsageError, match=r"tier dram: .*; name a model with --model"):
        transfer_s(done, None)


@settings(deadline=None, max_examples=40)
@given(st.data(), st.sampled_from(["exclusive", "write-through"]), st.sampled_from([0.0, 0.5]))
def test_tiers_add_up_to_the_cache(data: st.DataObject, mode: TierMode, warmup: float) -> None:
    """The tiers' blocks, tokens and rates are those of the whole, partial last blocks included."""
    trace = data.draw(small_traces.requests(3, chats=True, whole=True))
    definition = data.draw(st.sampled_from([standard(warmup=warmup), _partial(warmup)]))
    blocks = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    names = ("hbm", "dram", "ssd")[: len(blocks)]
    text = ",".join(f"{name}={count}blocks" for name, count in zip(names, blocks, strict=True))
    found = tiered(_workload(trace, definition), parse_tiers(text), mode, block_bytes=10)
    outcome = summarize(found.served)
    counted = found.served.hit_blocks[found.served.first :]
    assert sum(tier.hit_blocks for tier in found.tiers) == counted.sum()
    assert sum(tier.hit_tokens for tier in found.tiers) == outcome.hit_tokens
    assert all(tier.hit_tokens <= 3 * tier.hit_blocks for tier in found.tiers)
    rates = sum(tier.token_hit_rate for tier in found.tiers)
    assert rates == pytest.approx(outcome.token_hit_rate)


def tiered(
    workload: Workload, tiers: Sequence[Tier], mode: TierMode, *, block_bytes: int | None = None
) -> ServedReplay:
    """Return the workload served from these tiers."""
    other = copy(workload)
    other.setting = replace(workload.setting, tier_mode=mode, block_bytes=block_bytes)
    return serve_replay(other, ReplayRequest(Lru(), 0, tuple(tiers)))


def _partial(warmup: float) -> HitDefinition:
    return HitDefinition(
        "partial", warmup=warmup, partial=True, last_token_rule=False, outputs="ignored"
    )


def _workload(trace: list[Request], definition: HitDefinition) -> Workload:
    prompts = small_traces.prompts(small_traces.built(trace, 3))
    return Workload(prompts, run_setting(definition, PROFILE), Windows(2.0, 3))
