"""What an engine's tiers give and cost: hand-worked, on a sample trace, and adding up."""

from __future__ import annotations

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
from kvscope.ingest.formats.base import Request
from kvscope.ingest.pipeline import ingest
from kvscope.latency.file import load_profile
from kvscope.policies.lru import Lru
from kvscope.replay.metrics import summarize
from kvscope.replay.settings import engine_setting, run_setting, with_tiers
from kvscope.replay.sweep import ServedReplay, serve_replay
from kvscope.replay.tier_spec import Read, Tier, setting_tiers
from kvscope.replay.tiers import TieredReplay, transfer_s
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from tests import small_traces

PROFILE = load_profile("llama2-7b-a100")
BLOCK_BYTES = 917_504  # Qwen2-7B in fp16, 16 tokens


@pytest.fixture(scope="module")
def sample() -> Workload:
    """Return the sample of a chat product, ready to be replayed."""
    with open_store(MEMORY) as store:
        path = str(data_folder("sample_traces") / "to-c.jsonl.gz")
        prompts = load_prompts(store, ingest(store, path).trace)
    return Workload(prompts, engine_setting(run_setting(standard(), PROFILE)), Windows(600.0, 11))


def test_a_tier_saves_more_than_it_costs(sample: Workload) -> None:
    """DRAM below the pool adds hits, and reading them is far quicker than computing them."""
    alone = serve_replay(sample, ReplayRequest(Lru(), 8 * 2**30 // BLOCK_BYTES))
    below = tiered(sample, "hbm=8GiB,dram=64GiB", BLOCK_BYTES)
    before, after = summarize(alone.served), summarize(below.served)
    assert after.token_hit_rate > before.token_hit_rate + 0.1
    assert after.ttft_ms.p95 < before.ttft_ms.p95
    assert all(tier.read_bytes == BLOCK_BYTES * tier.hit_blocks for tier in below.tiers)


def test_a_read_takes_latency_then_bandwidth() -> None:
    """5 blocks of 1,000 bytes at 10,000 bytes/s after 3 s take 3.5 s, no blocks take nothing."""
    tiers = (
        Tier("hbm", 9),
        Tier("dram", 9, Read(3.0, 1e4)),
        Tier("ssd", 9, Read(50.0, 1e3)),
    )
    hits = np.array([[7, 0, 0], [7, 5, 0], [0, 5, 2], [0, 0, 0]], dtype=np.int32)
    done = TieredReplay(tiers, ("lru",) * 3, hits, (0,) * 3)
    assert transfer_s(done, 1_000).tolist() == [0.0, 3.5, 55.5, 0.0]
    with pytest.raises(UsageError, match=r"tier dram: .*; name a model with --model"):
        transfer_s(done, None)


@settings(deadline=None, max_examples=40)
@given(st.data(), st.sampled_from([0.0, 0.5]))
def test_tiers_add_up_to_the_cache(data: st.DataObject, warmup: float) -> None:
    """The tiers' blocks, tokens and rates are those of the whole."""
    trace = data.draw(small_traces.requests(3, chats=True, whole=True))
    pool, below = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    workload = _workload(trace, standard(warmup=warmup))
    found = tiered(workload, f"hbm={pool}blocks,dram={below}blocks", 10)
    outcome = summarize(found.served)
    counted = found.served.hit_blocks[found.served.first :]
    assert sum(tier.hit_blocks for tier in found.tiers) == counted.sum()
    assert sum(tier.hit_tokens for tier in found.tiers) == outcome.hit_tokens
    assert all(tier.hit_tokens <= 3 * tier.hit_blocks for tier in found.tiers)
    rates = sum(tier.token_hit_rate for tier in found.tiers)
    assert rates == pytest.approx(outcome.token_hit_rate)


def tiered(workload: Workload, tiers: str, block_bytes: int) -> ServedReplay:
    """Return the workload served from these tiers."""
    other = copy(workload)
    other.setting = replace(with_tiers(workload.setting, tiers), block_bytes=block_bytes)
    return serve_replay(other, ReplayRequest.over(Lru(), setting_tiers(other.setting)))


def _workload(trace: list[Request], definition: HitDefinition) -> Workload:
    prompts = small_traces.prompts(small_traces.built(trace, 3))
    return Workload(prompts, engine_setting(run_setting(definition, PROFILE)), Windows(2.0, 3))
