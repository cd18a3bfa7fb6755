"""What every policy in the registry owes, whatever its rule: one battery for all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.hits import HitDefinition
from kvscope.policies.base import Leaves, PathPolicy, Policy, Turn
from kvscope.replay.misses import ideal_rate
from kvscope.replay.replay import Replay, replay
from kvscope.replay.traffic import Traffic, traffic
from tests import small_traces
from tests.oracles.replay import left_behind, paths
from tests.policies import drawn
from tests.policies.traffics import traffics

CASE = ("policy", "leaves")
EVERY_CASE = pytest.mark.parametrize(CASE, drawn.CASES, ids=drawn.case_name)
PREFIX_CLOSED = ("lru", "lfu", "slru", "threshold-lru", "ttl", "lru-retention")
"""Evict "any" block and leave no orphan all the same, as their docstrings claim."""
BY_THE_CLOCK = ("ttl", "wa", "etlru", "gittins", "trtllm-priority")
QUICK = settings(deadline=None, max_examples=12)


def _whole(traffic_: Traffic) -> Traffic:
    """Return the same requests with nothing anonymous, every block looked up."""
    return traffic_._replace(look=traffic_.length, anonymous=np.zeros_like(traffic_.length))


def _up_to(traffic_: Traffic, requests: int) -> Traffic:
    kept = ("block_size", "block_parent")
    columns = {name: one[:requests] for name, one in traffic_._asdict().items() if name not in kept}
    return traffic_._replace(**columns)


def _lasting(policy: type[Policy], bound: Policy) -> Policy:
    """Return the same policy, under which nothing expires."""
    values = dict(bound.values)
    return policy(values | ({"ttl_s": float("inf")} if "ttl_s" in values else {}), bound.evicts)


def _admitted(bound: Policy, of: Traffic, at: int) -> bool:
    if not isinstance(bound, PathPolicy):
        return True
    turn = Turn(at, 0.0, int(of.history_tokens[at]), 0, 0)
    return bool(bound.admits(turn, bound.settings(), np.zeros((1, 1))))


@EVERY_CASE
@QUICK
@given(st.data())
def test_every_step_adds_up(policy: type[Policy], leaves: Leaves, data: st.DataObject) -> None:
    """After each request: inserted - evicted = left <= capacity, and hits are what was there.

    A replay of the first requests alone shows the cache after them; what a policy does cannot
    depend on what is yet to come, unless it is told.
    """
    of = _whole(data.draw(traffics(most=8)))
    bound = _lasting(policy, data.draw(drawn.policies(policy, leaves)))
    told = data.draw(drawn.tables(policy.name))
    capacity = data.draw(drawn.capacities(of))
    done = replay(of, bound, capacity, tables=told)
    assert len(drawn.left(done)) <= capacity
    if bound.hindsight:
        return
    before, evicted = set[int](), 0
    for at, path in enumerate(paths(of)):
        step = replay(_up_to(of, at + 1), bound, capacity, tables=told)
        after = drawn.left(step)
        entered = set(path) - before if _admitted(bound, of, at) else set[int]()
        assert step.hit_blocks.tolist() == done.hit_blocks[: at + 1].tolist()
        assert after <= before | entered
        assert len(after) <= capacity
        assert len(before) + len(entered) - (step.evictions - evicted) == len(after)
        leading = next((d for d, block in enumerate(path) if block not in before), len(path))
        assert step.hit_blocks[at] == leading
        before, evicted = after, step.evictions


@pytest.mark.parametrize(
    CASE,
    [one for one in drawn.CASES if one[1] == "leaf" or one[0].name in PREFIX_CLOSED],
    ids=drawn.case_name,
)
@QUICK
@given(st.data())
def test_keeps_no_orphans(policy: type[Policy], leaves: Leaves, data: st.DataObject) -> None:
    """With leaves alone leaving, and with those that claim it anyway, every parent is cached."""
    of = data.draw(traffics())
    bound = data.draw(drawn.policies(policy, leaves))
    done = replay(
        of,
        bound,
        data.draw(drawn.capacities(of)),
        tables=data.draw(drawn.tables(policy.name)),
        mandatory=data.draw(st.booleans()),
    )
    left = drawn.left(done)
    assert {int(of.block_parent[block]) for block in left} <= left | {0}


@EVERY_CASE
@QUICK
@given(st.data())
def test_same_input_same_result(policy: type[Policy], leaves: Leaves, data: st.DataObject) -> None:
    """A policy and its traffic can be replayed again: neither remembers the run before."""
    of = data.draw(traffics())
    bound = data.draw(drawn.policies(policy, leaves))
    capacity = data.draw(drawn.capacities(of))
    told = data.draw(drawn.tables(policy.name))
    first, second = (replay(of, bound, capacity, tables=told) for _ in range(2))
    assert _same(first, second)


@pytest.mark.parametrize(
    CASE, [one for one in drawn.CASES if one[0].name not in BY_THE_CLOCK], ids=drawn.case_name
)
@QUICK
@given(st.data())
def test_time_matters_to_few(policy: type[Policy], leaves: Leaves, data: st.DataObject) -> None:
    """All but policies that go by the clock do the same when every request arrives at once."""
    of = data.draw(traffics())
    bound = _lasting(policy, data.draw(drawn.policies(policy, leaves)))
    capacity = data.draw(drawn.capacities(of))
    at_once = of._replace(arrival_s=np.zeros_like(of.arrival_s))
    told = data.draw(drawn.tables(policy.name))
    assert _same(*(replay(one, bound, capacity, tables=told) for one in (of, at_once)))


@EVERY_CASE
@QUICK
@given(st.data())
def test_no_room(policy: type[Policy], leaves: Leaves, data: st.DataObject) -> None:
    """A cache of no blocks hits nothing, keeps nothing, and evicts all that comes."""
    of = data.draw(traffics())
    bound = data.draw(drawn.policies(policy, leaves))
    done = replay(of, bound, 0, tables=data.draw(drawn.tables(policy.name)))
    came = [len(blocks) for at, blocks in enumerate(left_behind(of)) if _admitted(bound, of, at)]
    assert not done.hit_blocks.any()
    assert not done.cached.any()
    assert done.evictions == sum(came)


@EVERY_CASE
@QUICK
@given(st.data())
def test_room_for_all(policy: type[Policy], leaves: Leaves, data: st.DataObject) -> None:
    """In an infinite cache nothing is evicted, and hits are the ideal ones of LRU's curve."""
    prompts = small_traces.prompts(small_traces.built(data.draw(small_traces.requests(2)), 2))
    definition = HitDefinition("blocks", weight="block")
    of = traffic(prompts, definition)._replace(category=np.zeros(len(prompts.leaf), np.int32))
    bound = drawn.everything_kept(policy, leaves)
    done = replay(of, bound, drawn.INFINITE, tables=drawn.plain_tables(policy))
    total = int(prompts.full_blocks.sum())
    assert done.evictions == 0
    assert int(done.hit_blocks.sum()) == round(ideal_rate(prompts, definition) * total)


def _same(one: Replay, other: Replay) -> bool:
    return (
        one.hit_blocks.tolist() == other.hit_blocks.tolist()
        and one.evictions == other.evictions
        and drawn.left(one) == drawn.left(other)
    )
