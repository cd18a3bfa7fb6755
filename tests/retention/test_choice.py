"""TTLs by category: the optimum of every budget that a step ends at, by brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.replay.traffic import Traffic
from kvscope.retention import choice
from kvscope.retention.choice import best_steps, choose, rounded_up
from kvscope.retention.curves import ttl_curves
from tests.policies.traffics import CATEGORIES, traffics


@settings(deadline=None, max_examples=60)
@given(traffics(), st.integers(0, 60), st.booleans())
def test_choices_are_optimal_for_what_they_hold(
    traffic: Traffic, budget: int, compiled: bool
) -> None:
    """No TTLs hit more for what a step holds, or `unused_hits` more within a budget."""
    curves = ttl_curves(traffic, CATEGORIES).by_category
    with pytest.MonkeyPatch.context() as patched:
        if not compiled:
            patched.setattr(choice, "_write_hull", choice._write_hull.py_func)
        steps = best_steps(curves)
    chosen = choose(steps, curves, float(budget))
    figures = [
        [(float(curve.held(ttl)), int(curve.hits(ttl))) for ttl in curve.knots()]
        for curve in curves
    ]
    every = [
        (sum(held for held, _ in each), sum(hits for _, hits in each)) for each in product(*figures)
    ]
    for held, hits in zip(
        np.cumsum(steps.block_seconds), steps.hits + np.cumsum(steps.hit_tokens), strict=True
    ):
        assert hits == max(more for enough, more in every if enough <= held + 1e-9)
    assert chosen.block_seconds <= budget + 1e-9
    best = max(hits for held, hits in every if held <= budget)
    assert chosen.hit_tokens <= best <= chosen.hit_tokens + chosen.unused_hits + 1e-6
    sums = [
        (float(curve.held(ttl)), int(curve.hits(ttl)))
        for curve, ttl in zip(curves, chosen.ttl_s, strict=True)
    ]
    assert chosen.block_seconds == pytest.approx(sum(held for held, _ in sums))
    assert chosen.hit_tokens == sum(hits for _, hits in sums)


def test_stated_ttls_have_two_digits_and_are_no_shorter() -> None:
    """Rounding shortens no TTL; nothing and forever stay."""
    assert [rounded_up(ttl) for ttl in (0.0, 0.123, 7.25, 612.0, 3600.0, np.inf)] == [
        0.0,
        0.13,
        7.3,
        620.0,
        3600.0,
        np.inf,
    ]
