"""Files that all replicas of a fleet share: what one wrote, another one reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.core.trace import Prompts
from kvscope.fleet.engines import replay_engines
from kvscope.fleet.replay import FleetReplay
from kvscope.policies.lru import Lru
from kvscope.routers.balancers import LeastRequests, RoundRobin
from kvscope.vllm_sim import EngineSettings, StepCost
from kvscope.vllm_sim.settings import OffloadSettings, StorageSettings, Transfers
from tests.fleet.test_engines import COST, SETTINGS, Spy, a_trace
from tests.oracles.engines import simulate
from tests.oracles.shared_pool import SharedFiles, hits
from tests.small_traces import built, prompts, requests

COPIES = Transfers(0.002, 0.004)


def above(tier: int = 200, pool: int = 100_000, **storage: Any) -> EngineSettings:
    """Return a replica above a CPU tier of so many chunks, and shared files of so many."""
    files = StorageSettings(pool, **{"read": COPIES, "write": COPIES, "shared": True, **storage})
    offload = OffloadSettings(tier, load=COPIES, store=COPIES, storage=files)
    return replace(SETTINGS, usable_blocks=150, offload=offload)


def replayed(trace: Prompts, limits: EngineSettings, replicas: int = 3) -> FleetReplay:
    """Return what replicas in turn do."""
    return replay_engines(trace, Lru(), RoundRobin(), replicas, limits, COST)


def check_equal(done: FleetReplay, expected: FleetReplay) -> None:
    """Check all that a fleet did, to the last bit."""
    for name in FleetReplay.__struct_fields__:
        np.testing.assert_array_equal(getattr(done, name), getattr(expected, name), err_msg=name)


@pytest.mark.parametrize("pool", [60, 100_000])
def test_a_pool_of_one_replica_is_its_own(pool: int) -> None:
    trace, limits = a_trace(), above(pool=pool)
    done = replayed(trace, limits, 1)
    own = replayed(trace, above(pool=pool, shared=False), 1)
    assert done.pool is not None
    assert done.read_blocks is not None
    assert done.read_blocks.any()
    check_equal(replace(done, pool=None), own)


def test_replicas_read_what_others_wrote() -> None:
    """In turn, a conversation's replica has seen none of its last turn: the pool has it."""
    trace = a_trace(3_000.0)
    shared, private = (replayed(trace, above(shared=each)) for each in (True, False))
    alone = replayed(trace, above(), 1)  # which has outputs too, in its pool
    hit = [int(done.hit_blocks.sum()) for done in (private, shared, alone)]
    assert hit[0] < 0.6 * hit[1] < 0.6 * hit[2]
    assert shared.read_blocks is not None
    assert shared.read_blocks.sum() > 1_000


def test_one_bandwidth_for_all_links_slows_them_down() -> None:
    """To what the pool carries; a link of its own each is at most as slow."""
    trace, medians_s = a_trace(100.0), []
    for every_s in (0.0, 0.004, 0.05):
        limits = above(tier=90, pool_read_s=every_s, pool_write_s=every_s)
        medians_s.append(float(np.median(replayed(trace, limits).ttft_s)))
    assert medians_s[0] < medians_s[1] < medians_s[2]


@given(
    trace=requests(4, chats=True, whole=True),
    replicas=st.integers(1, 3),
    capacity=st.integers(1, 12),
    evicts=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_equals_files_in_plain_python(
    trace: list[Any], replicas: int, capacity: int, evicts: bool
) -> None:
    """Requests far apart: hits of each, those from files, and what the pool did in the end."""
    for number, request in enumerate(trace):
        request.arrival_s, request.output_tokens = 1_000.0 * number, 0
    limits = replace(above(200, capacity, evicts=evicts), max_num_batched_tokens=10_000)
    done = replay_engines(
        prompts(built(trace, 4)), Lru(), RoundRobin(), replicas, limits, StepCost(base_s=1.0)
    )
    pool = SharedFiles(capacity, evicts)
    asked = [
        ((each.input_tokens - 1) // 4, each.hash_ids[: each.input_tokens // 4]) for each in trace
    ]
    found = hits(asked, pool, replicas)
    assert done.read_blocks is not None
    assert list(zip(done.hit_blocks.tolist(), done.read_blocks.tolist(), strict=True)) == found
    assert done.pool is not None
    assert done.pool.held == len(pool.files)
    assert (done.pool.evictions, done.pool.refused) == (pool.evictions, pool.refused)


@given(
    seed=st.integers(0, 10_000),
    seconds=st.sampled_from([20.0, 150.0, 900.0]),
    tier=st.integers(150, 300),
    pool=st.sampled_from([40, 150, 100_000]),
    storage=st.fixed_dictionaries(
        {
            "evicts": st.booleans(),
            "pool_read_s": st.sampled_from([0.0, 0.01]),
            "pool_write_s": st.sampled_from([0.0, 0.01]),
            "write": st.sampled_from([COPIES, Transfers(0.0, 0.0), Transfers(0.5, 0.3)]),
        }
    ),
    lag_s=st.sampled_from([0.0, 0.4]),
    closed=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_equals_the_oracle(
    seed: int,
    seconds: float,
    tier: int,
    pool: int,
    storage: dict[str, Any],
    lag_s: float,
    closed: bool,
) -> None:
    """To the last bit, each engine a kernel of its own on the same files, a step at a time."""
    trace = a_trace(seconds, seed, 60)
    think_s = np.where(trace.parent >= 0, 0.5, -1.0) if closed else None
    limits = above(tier, pool, **storage)
    fleet = trace, Lru(), Spy({"event_lag_s": lag_s}), 3, limits, COST
    done = replay_engines(*fleet, think_s=think_s)
    check_equal(done, simulate(*fleet, think_s=think_s))
    assert done.pool is not None
    assert done.pool.held <= pool
    assert storage["evicts"] or done.pool.evictions == 0


@given(seed=st.integers(0, 10_000), replicas=st.integers(2, 4))
@settings(max_examples=15, deadline=None)
def test_shared_files_hit_what_private_ones_hit(seed: int, replicas: int) -> None:
    """Where nothing is evicted or refused, and requests do not overlap: each hits as much."""
    trace = a_trace(80 * 600.0, seed, 80)
    trace = replace(trace, arrival_s=600.0 * np.arange(len(trace.leaf), dtype=float))
    shared, private = (
        replayed(trace, above(tier=4_000, shared=each), replicas) for each in (True, False)
    )
    assert np.all(shared.hit_blocks >= private.hit_blocks)
    assert shared.pool is not None
    assert (shared.pool.evictions, shared.pool.refused) == (0, 0)
    one = replayed(trace, above(tier=4_000), 1)
    assert one.pool is not None
    assert shared.pool.held == one.pool.held  # each chunk once, whichever replica wrote it


def test_a_router_that_sees_loads_shares_too() -> None:
    done = replay_engines(a_trace(), Lru(), LeastRequests(), 2, above(tier=90, pool=50), COST)
    assert done.pool is not None
    assert done.pool.held == 50
    assert done.pool.refused > 0
