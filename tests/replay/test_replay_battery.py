"""What every policy in the registry owes, whatever its rule: one battery for all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.hits import HitDefinition
from kvscope.policies.base import Leaves, PathPolicy, Policy, Turn
from kvscope.replay.replay import replay
from kvscope.replay.traffic import Traffic, traffic
from tests import small_traces
from tests.oracles.replay import paths
from tests.policies import drawn
from tests.policies.traffics import first, traffics

CASE = ("policy", "leaves")
EVERY_CASE = pytest.mark.parametrize(CASE, drawn.CASES, ids=drawn.case_name)
PREFIX_CLOSED = ("lru", "lfu", "slru", "threshold-lru", "ttl", "lru-retention")
"""Evict "any" block and leave no orphan all the same, as their docstrings claim."""
QUICK = settings(deadline=None, max_examples=12)


def _whole(traffic_: Traffic) -> Traffic:
    """Return the same requests with nothing anonymous, every block looked up."""
    return traffic_._replace(look=traffic_.length, anonymous=np.zeros_like(traffic_.length))


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
    assert len(drawn.left(of, done)) <= capacity
    if bound.hindsight:
        return
    before, evicted = set[int](), 0
    for at, path in enumerate(paths(of)):
        step = replay(first(of, at + 1), bound, capacity, tables=told)
        after = drawn.left(first(of, at + 1), step)
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
    left = drawn.left(of, done)
    assert {int(of.block_parent[block]) for block in left} <= left | {0}


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
    assert int(done.hit_blocks.sum()) == round(small_traces.ideal_rate(prompts, definition) * total)
