"""Whom each request goes on with: what prompts tell when they arrive, and nothing else.

What later requests carry on of an output makes no difference: while there are none of them, nobody
can know it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvscope.replay.last_touch import Segments
from kvscope.replay.traffic import Traffic

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_Numbers = TypeVar("_Numbers", Ints, Floats)


class Beginnings(NamedTuple):
    """What R prompts begin with, in the K stretches that `Segments` have, in their order.

    A prompt has `full` (R) full blocks. A stretch was touched by `giver` last, `wait_s` before
    `taker` came, and ends in front of depth `end`, or with the taker's prompt. Of those that begin
    in that prompt some reach as far as the `whole` prompt of the giver, and some were `seen`: they
    did not wait for too long. `deepest` numbers the last one seen of each request.
    """

    full: Ints
    giver: Ints
    taker: Ints
    end: Ints
    wait_s: Floats
    whole: Bools
    seen: Bools
    deepest: Ints

    def of_deepest(self, values: _Numbers, none: float) -> _Numbers:
        """Of each request what `values` (K) say of its deepest stretch seen; `none` without one."""
        found = np.full(len(self.full), none, dtype=values.dtype)
        found[self.taker[self.deepest]] = values[self.deepest]
        return found

    def known(self) -> Ints:
        """Full blocks of each prompt that were touched before, and not forgotten since."""
        return self.of_deepest(self.end, 0)

    def before(self, goes_on: Bools) -> Ints:
        """The turn before each request, -1 for none, where these stretches (K) are turns."""
        return self.of_deepest(np.where(goes_on, self.giver, -1), -1)


def beginnings(traffic: Traffic, moved: Segments, memory_s: float) -> Beginnings:
    """What prompts begin with, where blocks are forgotten that were not touched for `memory_s`."""
    giver, taker = moved.previous.astype(np.int64), moved.request.astype(np.int64)
    wait_s = traffic.arrival_s[taker] - traffic.arrival_s[giver]
    full = traffic.input_tokens.astype(np.int64) // traffic.block_size
    end = np.minimum(moved.end, full[taker])
    asked = moved.start < full[taker]
    whole = asked & (end >= np.minimum(full, traffic.length)[giver])
    seen = asked & (wait_s <= memory_s)
    some = np.flatnonzero(seen)
    deepest = some[np.append(np.diff(taker[some]) > 0, True)] if len(some) else some
    return Beginnings(full, giver, taker, end, wait_s, whole, seen, deepest)


def chained(before: Ints) -> tuple[Ints, Ints]:
    """How many requests came before each one, one `before` the other, and the first of them."""
    at = np.arange(len(before))
    first = np.where(before >= 0, before, at)
    steps = (before >= 0).astype(np.int64)
    while not np.array_equal(first, further := first[first]):
        steps += steps[first]
        first = further
    return steps, first
