"""Prefill and decode apart: each replica is an engine that gets its share of one stage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.core.hits import standard
from kvscope.fleet.disaggregated import (
    DisaggregatedFleet,
    Link,
    Stages,
    arrived_s,
    decode_cost,
    decoding,
    with_first_tokens,
)
from kvscope.fleet.outcome import Slo
from kvscope.fleet.sweep import Fleet, FleetSweep
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.replay.curve import lru_curve
from kvscope.replay.derived_traces import retimed, select
from kvscope.replay.settings import setting_profile, timed_by
from kvscope.replay.workload import Workload
from kvscope.routers.balancers import LeastRequests, Random, RoundRobin, Session
from kvscope.routers.base import Router
from kvscope.vllm_sim import StepCost, replay_engine
from tests.fleet.test_engines import SETTINGS, a_trace
from tests.tuning.examples import ENGINE, WINDOWS

SETTING = timed_by(ENGINE, replace(setting_profile(ENGINE), request_s=0.002))
COST = StepCost.of(setting_profile(SETTING))
LINK = Link(1e9, 10**6)  # a millisecond a block


def stages(
    seconds: float = 300.0,
    router: Router | None = None,
    policy: Policy | None = None,
    blocks: int = 300,
    slo: Slo = Slo(1.0),  # noqa: B008 - frozen
) -> tuple[FleetSweep, Stages]:
    """Return both stages of 300 requests that come within so many seconds."""
    engine = replace(SETTINGS, usable_blocks=blocks)
    trace = a_trace(seconds)
    tokens = trace.input_tokens + 3  # no whole blocks
    cached = np.maximum(tokens, tokens + trace.output_tokens - 1) // trace.block_size
    trace = replace(trace, input_tokens=tokens, cached_blocks=cached.astype(np.int32))
    sweep = FleetSweep(Workload(trace, SETTING, WINDOWS), blocks, slo, engine=engine)
    fleet = Fleet(router or RoundRobin(), policy or Lru(), 3)
    return sweep, Stages(sweep, fleet, LINK, slo.tpot_s)


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(0, 2)),
        min_size=1,
        max_size=30,
    ),
    st.integers(0, 29),
)
def test_a_link_moves_one_prompt_after_the_other(
    sent: list[tuple[int, int, int]], rejected: int
) -> None:
    """Each begins when it is ready and the one before, of the same replica, has moved."""
    ready_s, each_s, replica = (np.array(column, dtype=float) for column in zip(*sent, strict=True))
    ready_s[rejected % len(sent)] = np.nan
    moved_s = arrived_s(ready_s, each_s, replica.astype(np.int32))
    free_s = [0.0, 0.0, 0.0]
    for at in np.argsort(ready_s, kind="stable"):
        if np.isnan(ready_s[at]):
            assert np.isnan(moved_s[at])
            continue
        number = int(replica[at])
        free_s[number] = max(free_s[number], ready_s[at]) + each_s[at]
        assert moved_s[at] == pytest.approx(free_s[number])


@pytest.mark.parametrize("router", [RoundRobin(), Session(), LeastRequests()], ids=str)
@pytest.mark.parametrize("policy", [Lru(), TLru({"xi_tokens": 64})], ids=lambda each: each.name)
def test_each_replica_is_an_engine(router: Router, policy: Policy) -> None:
    """That prefills its prompts for one token, or decodes what has got to it."""
    sweep, both = stages(40.0, router, policy)
    first, sent_s, busy = both.prefilled(2)
    trace = with_first_tokens(sweep.prompts)
    assert trace.output_tokens.tolist() == [1] * len(trace.leaf)
    for number in range(2):
        own = np.flatnonzero(first.replica == number)
        part = replay_engine(select(trace, own), policy, SETTINGS, COST)
        assert first.hit_blocks[own].tolist() == part.hit_blocks.tolist()
        ttft_s = first.token_s[own] - first.arrival_s[own] - 0.002
        np.testing.assert_allclose(ttft_s, part.ttft_s, rtol=1e-9)
    each_s = -(-trace.input_tokens // trace.block_size) * 1e-3
    assert np.all(sent_s >= first.token_s + each_s - 1e-9)
    longest = max(each_s[first.replica == number].sum() for number in range(2))
    assert busy == pytest.approx(longest / (sent_s.max() - trace.arrival_s[0]))
    done = both.replayed(2, 1)
    decoded, order = retimed(sweep.prompts, sent_s)
    alone = replay_engine(decoded, Lru(), decoding(SETTINGS), decode_cost(COST))
    np.testing.assert_allclose(
        done.token_s[order], decoded.arrival_s + alone.ttft_s + 0.002, rtol=1e-9
    )
    np.testing.assert_allclose(done.end_s[order], alone.finish_s + 0.002, rtol=1e-9)
    waited_s = done.begin_s - first.begin_s
    np.testing.assert_allclose(waited_s[order], alone.queue_s, atol=1e-9)
    assert waited_s.max() > 0
    assert both.replayed(2, 3).end_s.sum() < done.end_s.sum()


def test_a_request_alone_takes_what_is_written_down() -> None:
    """Ten minutes apart: a prefill, its KV's way, and steps of a decode replica."""
    sweep, both = stages(180_000.0, Session())
    done, trace = both.replayed(1, 1), sweep.prompts
    uncached = trace.input_tokens - 16 * done.hit_blocks
    steps = np.ceil(uncached / SETTINGS.max_num_batched_tokens)
    prefill_s = steps * 0.008 + uncached * 0.001
    moved_s = -(-trace.input_tokens // 16) * 1e-3
    ttft_s = prefill_s + 0.002 + moved_s + 0.005 + 0.002
    within = np.abs(done.ttft_s - ttft_s) < 0.002  # a decoded token's own time
    assert within.all()
    later = trace.output_tokens > 1
    tpot_s = (done.end_s - done.token_s)[later] / (trace.output_tokens[later] - 1)
    np.testing.assert_allclose(tpot_s, 0.006, rtol=1e-6)


def test_prefill_replicas_hold_no_answers() -> None:
    """One with room for all hits what an infinite cache does that sees prompts alone."""
    sweep, both = stages(180_000.0, blocks=20_000)
    split = both.split(1, 1)
    prompts_alone = standard(outputs="ignored")
    assert split.outcome.taken == pytest.approx(lru_curve(sweep.prompts, prompts_alone).ideal)
    together = sweep.run(Fleet(RoundRobin(), Lru(), 1)).outcome
    assert split.outcome.taken < together.taken


def test_steps_of_a_decode_replica_compute_no_prompt() -> None:
    cost = StepCost(0.008, 0.001, 1e-6, 0.002, 1e-5, floor_s=0.01, decode_base_s=0.005)
    assert decode_cost(cost) == StepCost(0.005, 0, 0, 0.002, 1e-5, 0, 0.005, launch_s=0.005)
    without = StepCost(0.008, 0.001, decode_token_s=0.002)
    assert decode_cost(without) == StepCost(0.008, 0, decode_token_s=0.002, launch_s=0.008)


def test_a_router_draws_by_the_seed() -> None:
    sweep, _ = stages(60.0)
    fleet = Fleet(Random(), Lru(), 3)
    drawn = [Stages(sweep, fleet, LINK, seed=seed).prefilled(3).done.replica for seed in (0, 1)]
    assert not np.array_equal(*drawn)
    assert np.array_equal(drawn[1], sweep.replay(fleet, 1).replica)


def test_what_fits_no_replica_is_rejected_once() -> None:
    sweep, both = stages(blocks=60)
    done, needed = both.replayed(1, 1), sweep.prompts.input_tokens // 16
    assert np.isnan(done.token_s[needed > 60]).all()
    assert np.isnan(done.token_s).any()
    rejected = both.split(1, 1).outcome.latencies.rejected
    assert rejected == np.isnan(done.token_s).sum() < len(needed)


@pytest.mark.parametrize(("ttft_s", "tpot_s"), [(0.5, 0.02), (0.45, 0.007), (0.415, 0.007)])
def test_the_fewest_are_those_of_all_splits(ttft_s: float, tpot_s: float) -> None:
    slo = Slo(ttft_s, 0.9, tpot_s)
    sweep, both = stages(60.0, slo=slo)
    answer = sweep.run(Fleet(RoundRobin(), Lru(), 3))
    made = DisaggregatedFleet.of(sweep, answer, LINK, 7)
    every = [both.split(each, total - each) for total in range(2, 8) for each in range(1, total)]
    meets = [split for split in every if split.outcome.meets]
    assert made.fewest is not None
    assert made.fewest.replicas == min(split.replicas for split in meets) > 2
    assert [(split.prefill, split.decode) for split in made.alike] == [(1, 2), (2, 1)]
    assert made.tpot_s == tpot_s
    one = replace(answer, fleet=replace(answer.fleet, replicas=1))
    assert DisaggregatedFleet.of(sweep, one, LINK, 1).fewest is None


def test_without_a_tpot_of_its_own_it_is_to_be_as_together() -> None:
    sweep, both = stages(120.0, slo=Slo(0.5, 0.9))
    answer = sweep.run(Fleet(RoundRobin(), Lru(), 3))
    made = DisaggregatedFleet.of(sweep, answer, LINK, 5)
    assert made.tpot_s == answer.outcome.target_tpot_s is not None
    assert made.fewest is not None
    tpot_s = made.fewest.outcome.target_tpot_s
    assert tpot_s is not None
    assert tpot_s <= made.tpot_s
    least = both.fewest(5)  # whatever the TPOT
    assert least is not None
    assert least.replicas < made.fewest.replicas
