from __future__ import annotations

import pytest

from kvscope.characterize.stability import stability
from tests.characterize.tiny import CHAT_1, CHAT_2, REQUESTS, SEARCH_1, tiny_store


def test_between_windows() -> None:
    """Ten windows of 10 s, the first and the last left out: r1, r2 and r3 remain."""
    with tiny_store() as (store, trace):
        found = stability(store, trace)
    assert found.window_s == 10
    assert found.between_days == ()
    of = {(row.quantity, row.category): row for row in found.between_windows}
    hits = of["ideal_hit_rate", None]
    rates = [12 / 17, 4 / 8, 8 / 9]
    mean = sum(rates) / 3
    deviation = (sum((rate - mean) ** 2 for rate in rates) / 3) ** 0.5
    assert hits.windows == 3
    assert (hits.mean, hits.deviation) == pytest.approx((mean, deviation))
    assert hits.variation == pytest.approx(deviation / mean)
    # chat 2's blocks are reused after 10 s by r2 and after 30 s by r3.
    gaps = of["reuse_gap_p50_s", CHAT_2]
    assert (gaps.windows, gaps.mean, gaps.deviation, gaps.variation) == (2, 20, 10, 0.5)
    # chat 1's after 10 s by r1; its reuse by r4 lies in the last window.
    assert (of["reuse_gap_p80_s", CHAT_1].windows, of["reuse_gap_p80_s", CHAT_1].mean) == (1, 10)
    followed = of["next_turn_probability", SEARCH_1]
    assert (followed.windows, followed.mean, followed.variation) == (1, 0, None)


def test_between_days() -> None:
    """Stretched to two days, r0 to r3 are the first and r4 the second."""
    stretch = 2 * 864.0
    requests = {**REQUESTS, "arrival_s": [at * stretch for at in REQUESTS["arrival_s"]]}
    with tiny_store(requests) as (store, trace):
        found = stability(store, trace)
    of = {(row.quantity, row.category): row for row in found.between_days}
    hits = of["ideal_hit_rate", None]
    assert (hits.windows, hits.mean) == (2, pytest.approx((24 / 43 + 0) / 2))
    assert of["reuse_gap_p50_s", CHAT_1].windows == 2
    assert of["reuse_gap_p50_s", CHAT_1].mean == pytest.approx((10 + 60) / 2 * stretch)
    assert of["next_turn_probability", CHAT_1].mean == 1 / 2
