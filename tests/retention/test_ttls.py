"""Blocks held by TTLs, and curves: equal to plain Python, and to `ttl` without a limit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.policies.ttl import Ttl
from kvscope.replay.replay import replay
from kvscope.replay.traffic import Traffic
from kvscope.retention import ttls
from kvscope.retention.ttls import NOT_HELD, ttl_curves
from tests.oracles import ttls as oracle
from tests.policies.traffics import CATEGORIES, traffics

TTLS = st.sampled_from((0.0, 1.0, 2.0, 5.0, float("inf"), NOT_HELD))


@settings(deadline=None, max_examples=100)
@given(st.data(), traffics(), st.booleans())
def test_held_blocks_equal_the_oracle(
    data: st.DataObject, traffic: Traffic, compiled: bool
) -> None:
    """Each request has a TTL of its own."""
    requests = len(traffic.leaf)
    ttl_s = data.draw(st.lists(TTLS, min_size=requests, max_size=requests))
    expected = oracle.replay_ttls(traffic, ttl_s)
    with pytest.MonkeyPatch.context() as patched:
        if not compiled:
            patched.setattr(ttls, "_hold", ttls._hold.py_func)
        found = ttls.replay_ttls(traffic, np.array(ttl_s))
    assert found.hit_blocks.tolist() == expected.hit_blocks
    assert found.block_seconds == pytest.approx(expected.block_seconds)
    assert found.peak_blocks == expected.peak_blocks


@settings(deadline=None, max_examples=60)
@given(traffics(), st.sampled_from((0.0, 1.0, 2.0, 5.0, float("inf"))))
def test_curve_of_one_ttl_is_exact(traffic: Traffic, ttl_s: float) -> None:
    """Hits equal the policy `ttl` in a cache that never fills, hits and memory those held."""
    curve = ttl_curves(traffic, CATEGORIES).overall
    found = ttls.replay_ttls(traffic, np.full(len(traffic.leaf), ttl_s))
    hits = replay(traffic, Ttl({"ttl_s": ttl_s}), 10**6).hit_blocks
    assert found.hit_blocks.tolist() == hits.tolist()
    assert int(curve.hits(ttl_s)) == int(hits.sum()) * traffic.block_size
    assert float(curve.held(ttl_s)) == pytest.approx(found.block_seconds)


@settings(deadline=None, max_examples=60)
@given(traffics(), st.lists(st.sampled_from((0.0, 1.0, 3.0)), min_size=3, max_size=3))
def test_blocks_hit_and_held_are_at_least_the_sum_by_category(
    traffic: Traffic, ttl_s: list[float]
) -> None:
    """The sum of the curves counts a block by its last touch alone."""
    curves = ttl_curves(traffic, CATEGORIES)
    found = ttls.replay_ttls(traffic, np.array(ttl_s)[traffic.category])
    parts = list(zip(curves.by_category, ttl_s, strict=True))
    hits = sum(int(curve.hits(ttl)) for curve, ttl in parts)
    seconds = sum(float(curve.held(ttl)) for curve, ttl in parts)
    assert int(found.hit_blocks.sum()) * traffic.block_size >= hits
    assert found.block_seconds >= seconds - 1e-9
