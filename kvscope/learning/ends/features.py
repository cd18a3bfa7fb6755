"""What is known of each request when it has been served, and how long its next turn took."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.learning.chances import FEATURES, NOTHING, SHARED_HEAD
from kvscope.learning.offline.prefix_features import Beginnings, Bools, Floats, beginnings, chained
from kvscope.replay.last_touch import Segments
from kvscope.replay.traffic import Traffic


class TurnFeatures(NamedTuple):
    """Of R requests: `known` (R × F) as FEATURES says, and the wait for the turn after each.

    `next_s` is infinite where none comes. A request goes on with the latest one whose whole prompt
    it begins with, unless prompts had parted there in as many ways before as behind a shared head.
    """

    known: Floats
    next_s: Floats


def turn_features(traffic: Traffic, moved: Segments, memory_s: float) -> TurnFeatures:
    """From the blocks that requests share; those not touched for `memory_s` count as new."""
    requests, arrival_s = len(traffic.leaf), traffic.arrival_s
    found = beginnings(traffic, moved, memory_s)
    goes_on = _goes_on(traffic, moved, found)
    next_s = np.full(requests, np.inf)
    np.minimum.at(next_s, found.giver[goes_on], found.wait_s[goes_on])

    known, before = found.known(), found.before(goes_on)
    head = np.full(requests, -1)
    first = found.seen & (moved.start == 0)
    head[found.taker[first]] = found.giver[first]

    turns, began = chained(before)
    later = turns > 0
    columns = {
        "new_tokens": (found.full - known) * traffic.block_size,
        "input_tokens": traffic.input_tokens,
        "output_tokens": traffic.history_tokens - traffic.input_tokens,
        "shared_share": known / np.maximum(found.full, 1),
        "turns": turns,
        "since_s": np.where(later, arrival_s - arrival_s[before], NOTHING),
        "mean_gap_s": np.where(
            later, (arrival_s - arrival_s[began]) / np.maximum(turns, 1), NOTHING
        ),
        "head_requests": chained(head)[0],
    }
    stacked = np.stack([columns[name].astype(np.float64) for name in FEATURES], axis=1)
    return TurnFeatures(stacked, next_s)


def _goes_on(traffic: Traffic, moved: Segments, found: Beginnings) -> Bools:
    """Which stretches are turns: all of a prompt before, and no head that many share.

    The path to a stretch's end had gone on in so many ways as there were requests before that
    parted there: whose prompt went on with a block of its own right behind it.
    """
    requests, whole = len(found.full), np.minimum(found.full, traffic.length)
    deepest = found.deepest
    own = deepest[found.end[deepest] < whole[found.taker[deepest]]]
    parted = np.sort(moved.block[own].astype(np.int64) * (requests + 1) + found.taker[own])
    goes_on = found.whole.copy()
    some = np.flatnonzero(goes_on)
    block, above = moved.block[some], (moved.end - found.end)[some]
    while len(far := np.flatnonzero(above)):  # up from an output to the prompt's end
        block[far] = traffic.block_parent[block[far]]
        above[far] -= 1
    at = block.astype(np.int64) * (requests + 1)
    ways = np.searchsorted(parted, at + found.taker[some]) - np.searchsorted(parted, at)
    goes_on[some] = ways < SHARED_HEAD
    return goes_on
