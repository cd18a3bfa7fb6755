"""What each request's prompt shares with earlier requests, as known when it arrives.

What later requests carry on of an output makes no difference: it is unknown until they come.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from kvscope.core.arrays import Bools, Int64s
from kvscope.policies.base import Floats
from kvscope.replay.last_touch import Segments
from kvscope.replay.traffic import Traffic

_Numbers = TypeVar("_Numbers", Int64s, Floats)


class PrefixFeatures(NamedTuple):
    """The prefixes of R prompts, in the K last-touch segments of the traffic, in their order.

    A prompt has `full` (R) full blocks. A segment was touched last by request `previous`, `wait_s`
    before `request` came, and ends in front of depth `end`, or with the request's prompt. Of those
    that begin in that prompt some reach as far as the `whole` prompt of the previous request, and
    some are `recent`: not too many requests came in between. `deepest` numbers each request's last
    recent one.
    """

    full: Int64s
    previous: Int64s
    request: Int64s
    end: Int64s
    wait_s: Floats
    whole: Bools
    recent: Bools
    deepest: Int64s

    def of_deepest(self, values: _Numbers, none: float) -> _Numbers:
        """Return each request's value (of K) in its deepest recent segment; `none` without one."""
        per_request = np.full(len(self.full), none, dtype=values.dtype)
        per_request[self.request[self.deepest]] = values[self.deepest]
        return per_request

    def known(self) -> Int64s:
        """Return the full blocks of each prompt that were touched before, and not forgotten."""
        return self.of_deepest(self.end, 0)

    def before(self, goes_on: Bools) -> Int64s:
        """Return the turn before each request, -1 for none, where these segments (K) are turns."""
        return self.of_deepest(np.where(goes_on, self.previous, -1), -1)


def prefix_features(traffic: Traffic, segments: Segments, memory: int) -> PrefixFeatures:
    """Return what prompts begin with, where blocks not touched by `memory` requests are forgotten.

    That is by the latest ones before.
    """
    previous, request = segments.previous.astype(np.int64), segments.request.astype(np.int64)
    wait_s = traffic.arrival_s[request] - traffic.arrival_s[previous]
    full = traffic.input_tokens.astype(np.int64) // traffic.block_size
    end = np.minimum(segments.end, full[request])
    in_prompt = segments.start < full[request]
    whole = in_prompt & (end >= np.minimum(full, traffic.length)[previous])
    recent = in_prompt & (request - previous <= memory)
    some = np.flatnonzero(recent)
    deepest = some[np.append(np.diff(request[some]) > 0, True)] if len(some) else some
    return PrefixFeatures(full, previous, request, end, wait_s, whole, recent, deepest)


def chained(before: Int64s) -> tuple[Int64s, Int64s]:
    """Return the number of requests before each, one `before` the other, and the first of them."""
    at = np.arange(len(before))
    first = np.where(before >= 0, before, at)
    steps = (before >= 0).astype(np.int64)
    while not np.array_equal(first, further := first[first]):
        steps += steps[first]
        first = further
    return steps, first
