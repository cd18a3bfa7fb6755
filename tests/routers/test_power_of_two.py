"""The less busy of two."""

from __future__ import annotations

import numpy as np

from kvscope.routers.power_of_two import PowerOfTwo
from tests.routers.views import choices, load, path, view


def test_the_busiest_of_all_is_never_chosen() -> None:
    seen = view(4, own=load(4, in_flight=[5, 2, 9, 0]))
    counts = np.bincount(choices(PowerOfTwo(), path(1), seen, 6000), minlength=4)
    # Of the 6 pairs the least busy replica is in 3, the next then wins 2, the third 1.
    assert counts[2] == 0
    assert np.all(np.abs(counts[[3, 1, 0]] - [3000, 2000, 1000]) < 200)


def test_equals_are_drawn_evenly_and_one_needs_no_draw() -> None:
    counts = np.bincount(choices(PowerOfTwo(), path(1), view(5), 5000), minlength=5)
    assert np.all(np.abs(counts - 1000) < 160)
    assert set(choices(PowerOfTwo(), path(1), view(1), 5)) == {0}
