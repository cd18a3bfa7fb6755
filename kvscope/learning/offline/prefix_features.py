"""What each request's prompt shares with earlier requests, as known when it arrives.

What later requests carry on of an output makes no difference: it is unknown until they come.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvscope.learning.offline.refits import Ints
from kvscope.policies.base import Floats
from kvscope.replay.last_touch import Segments
from kvscope.replay.traffic import Traffic

Bools = NDArray[np.bool_]
_Numbers = TypeVar("_Numbers", Ints, Floats)


class PrefixFeatures(NamedTuple):
    """The prefixes of R prompts, in the K last-touch segments of the traffic, in their order.

    A prompt has `full` (R) full blocks. A segment was touched last by request `previous`, `wait_s`
    before `taker` came, and ends in front of depth `end`, or with the taker's prompt. Of those that
    begin in that prompt some reach as far as the `whole` prompt of the previous request, and some
    were `seen`: they did not wait for too long. `deepest` numbers each request's last one seen.
    """

    full: Ints
    previous: Ints
    taker: Ints
    end: Ints
    wait_s: Floats
    whole: Bools
    seen: Bools
    deepest: Ints

    def of_deepest(self, values: _Numbers, none: float) -> _Numbers:
        """Return each request's value (of K) in its deepest segment seen; `none` without one."""
        per_request = np.full(len(self.full), none, dtype=values.dtype)
        per_request[self.taker[self.deepest]] = values[self.deepest]
        return per_request

    def known(self) -> Ints:
        """Return the full blocks of each prompt that were touched before, and not forgotten."""
        return self.of_deepest(self.end, 0)

    def before(self, goes_on: Bools) -> Ints:
        """Return the turn before each request, -1 for none, where these segments (K) are turns."""
        return self.of_deepest(np.where(goes_on, self.previous, -1), -1)


def prefix_features(traffic: Traffic, moved: Segments, memory_s: float) -> PrefixFeatures:
    """Return what prompts begin with, where blocks not touched for `memory_s` are forgotten."""
    previous, taker = moved.previous.astype(np.int64), moved.request.astype(np.int64)
    wait_s = traffic.arrival_s[taker] - traffic.arrival_s[previous]
    full = traffic.input_tokens.astype(np.int64) // traffic.block_size
    end = np.minimum(moved.end, full[taker])
    in_prompt = moved.start < full[taker]
    whole = in_prompt & (end >= np.minimum(full, traffic.length)[previous])
    seen = in_prompt & (wait_s <= memory_s)
    some = np.flatnonzero(seen)
    deepest = some[np.append(np.diff(taker[some]) > 0, True)] if len(some) else some
    return PrefixFeatures(full, previous, taker, end, wait_s, whole, seen, deepest)


def chained(before: Ints) -> tuple[Ints, Ints]:
    """Return the number of requests before each, one `before` the other, and the first of them."""
    at = np.arange(len(before))
    first = np.where(before >= 0, before, at)
    steps = (before >= 0).astype(np.int64)
    while not np.array_equal(first, further := first[first]):
        steps += steps[first]
        first = further
    return steps, first
