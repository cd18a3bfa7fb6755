"""Replays long enough for what only shows at length: adaptive parameters, and heaps cleaned up."""

from __future__ import annotations

import pytest

from kvscope.policies.base import Leaves, Policy
from kvscope.policies.registry import by_name
from kvscope.replay.replay import replay
from tests.oracles.replay import replay as slow_replay
from tests.policies import drawn
from tests.policies.traffics import long_traffic

REQUESTS, CAPACITY = 2_600, 40
PATH_CASES = [one for one in drawn.CASES if "ttl_s" in {each.name for each in one[0].parameters}]


@pytest.mark.parametrize(("policy", "leaves"), PATH_CASES, ids=drawn.case_name)
def test_equals_the_oracle_at_length(policy: type[Policy], leaves: Leaves) -> None:
    """Thousands of requests through a small cache: hits, evictions and what is left agree."""
    _compare(policy({"xi_tokens": 9.0} if _has(policy, "xi_tokens") else {}, leaves))


@pytest.mark.parametrize("name", ["tlru", "tlru-end"])
def test_adaptive_xi_follows_what_was_computed(name: str) -> None:
    """Every 256 requests xi becomes the percentile of the last 1,024; blocks keep what they got."""
    values = {"xi_tokens": 2.0, "next_prompt_tokens": 3.0}
    adaptive = by_name(name)(values | {"xi_percentile": 0.9})
    _compare(adaptive)
    of = long_traffic(REQUESTS, seed=1)
    still = replay(of, by_name(name)(values), CAPACITY)
    assert replay(of, adaptive, CAPACITY).evictions != still.evictions


def _compare(bound: Policy) -> None:
    of = long_traffic(REQUESTS, seed=1)
    given = drawn.setting(bound, CAPACITY, drawn.plain_tables(type(bound)))
    done, expected = drawn.replayed(of, bound, given), slow_replay(of, given)
    assert done.hit_blocks.tolist() == expected.hit_blocks
    assert done.evictions == expected.evictions
    assert drawn.left(of, done) == expected.left


def _has(policy: type[Policy], name: str) -> bool:
    return name in {one.name for one in policy.parameters}
