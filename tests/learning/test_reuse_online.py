"""What the plugin learns of reuse from the requests it serves is what the simulator estimates."""

from __future__ import annotations

import numpy as np
import pytest

from kvscope.core.arrays import Float64s
from kvscope.core.hits import standard
from kvscope.core.prefix import paths
from kvscope.learning.reuse.offline import ReuseOffline
from kvscope.learning.reuse.online import ReuseEstimator
from kvscope.policies.wa import LIFE_S, RATE_PER_S, REUSE_PROBABILITY
from kvscope.replay.traffic import Traffic, traffic
from tests.golden.samples import SAMPLES, sample
from tests.long import long

REFIT_S = 120.0


def served(
    of: Traffic, categories: int, most_keys: int = 1 << 30
) -> tuple[list[int], list[Float64s]]:
    """(first request, table) of every period, as an engine that serves the trace learns them."""
    learned = ReuseEstimator(REFIT_S, categories, most_keys)
    _, blocks = paths(of.block_parent, of.leaf, of.length)
    ends = np.cumsum(of.length)
    since, tables = [0], [learned.table]
    for number, arrival_s in enumerate(of.arrival_s.tolist()):
        if learned.at(arrival_s):
            since.append(number)
            tables.append(learned.table)
        path = blocks[ends[number] - of.length[number] : ends[number]].tolist()
        alone = [(number, place) for place in range(of.anonymous[number])]
        learned.touch([*path, *alone], int(of.category[number]), arrival_s)
    return since, tables


@pytest.mark.parametrize("name", ["to-c", "regime-change", *map(long, SAMPLES)])
def test_the_tables_are_the_simulators(name: str) -> None:
    """Request by request or from the whole trace: the same tables from the same request on."""
    of = traffic(sample(name), standard())
    expected = ReuseOffline().tables(of, REFIT_S)
    categories = expected.categories
    since, tables = served(of, categories)
    assert since == expected.since.tolist()
    for found, table in zip(tables, expected.values[expected.rows], strict=True):
        np.testing.assert_allclose(found, table, rtol=1e-9, atol=1e-12)


def test_more_categories_than_are_met_change_nothing() -> None:
    """Rows for categories that nobody is of yet leave the others as they are."""
    of = traffic(sample("to-c"), standard())
    expected = ReuseOffline().tables(of, REFIT_S)
    categories = expected.categories
    _, tables = served(of, categories + 9)
    np.testing.assert_allclose(tables[-1][:categories], expected.at(-1), rtol=1e-9, atol=1e-12)


def test_a_sample_of_the_blocks_does_in_little_memory() -> None:
    """With an eighth of the blocks at most, estimates over all categories stay near."""
    of = traffic(sample("to-c"), standard())
    of = of._replace(category=np.zeros_like(of.category))
    keys = int(of.length.sum() // 8)
    exact, near = (served(of, 1, most)[1][-1][0] for most in (1 << 30, keys // 8))
    assert near[REUSE_PROBABILITY] == pytest.approx(exact[REUSE_PROBABILITY], rel=0.15)
    assert near[RATE_PER_S] == pytest.approx(exact[RATE_PER_S], rel=0.3)
    assert near[LIFE_S] == pytest.approx(exact[LIFE_S], rel=0.3)


def test_what_nobody_touched_for_a_window_is_forgotten() -> None:
    """However long an engine runs, it remembers no more than two windows of blocks, all of them."""
    long, late = (ReuseEstimator(REFIT_S, 1, most_keys=1500) for _ in range(2))
    for number in range(300):
        at_s, places = number * REFIT_S, range(50)
        for one in (long, late) if number >= 280 else (long,):
            one.at(at_s)
            one.touch([("new", number, place) for place in places], 0, at_s)
            one.touch([("again", number % 2, place) for place in places], 0, at_s)
    assert long.every == 1
    assert long.keys <= (2 * 6 + 2) * 50
    np.testing.assert_allclose(long.table, late.table, rtol=1e-12)
