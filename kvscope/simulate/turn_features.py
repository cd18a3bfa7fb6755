"""What is known of each request when it has been served, and how long its next turn took."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.policies.chances import FEATURES, NOTHING, SHARED_HEAD
from kvscope.simulate.handovers import Handovers
from kvscope.simulate.traffic import Traffic

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class TurnFeatures(NamedTuple):
    """Of R requests: `known` (R × F) as FEATURES says, and the wait for the turn after each.

    `next_s` is infinite where none comes. A request goes on with the latest one that is its whole
    beginning, unless that path had gone on in as many ways before as a shared head does.
    """

    known: Floats
    next_s: Floats


def turn_features(
    traffic: Traffic, moved: Handovers, memory_s: float, *, by_prompts: bool = False
) -> TurnFeatures:
    """From the blocks that requests share; those not touched for `memory_s` count as new.

    The whole of a request is what later ones may carry on of it, its output too. `by_prompts` it is
    its prompt alone, and so is what parts behind a head: an engine cannot know what of an output
    later requests will carry on.
    """
    requests, size = len(traffic.leaf), traffic.block_size
    giver, taker = moved.giver.astype(np.int64), moved.taker.astype(np.int64)
    wait_s = traffic.arrival_s[taker] - traffic.arrival_s[giver]
    full = traffic.input_tokens.astype(np.int64) // size
    seen = (wait_s <= memory_s) & (moved.start < full[taker])
    if by_prompts:
        goes_on = _goes_on_by_prompts(traffic, moved, full, seen)
    else:
        last = np.zeros(len(taker), dtype=np.bool_)
        last[moved.starts[1:][np.diff(moved.starts) > 0] - 1] = True
        parts = last & (moved.end < traffic.length[taker])
        shared = _ways_before(moved.block, taker, parts, requests) >= SHARED_HEAD
        goes_on = (moved.end == traffic.length[giver]) & ~shared
    next_s = np.full(requests, np.inf)
    np.minimum.at(next_s, giver[goes_on], wait_s[goes_on])

    known = np.zeros(requests, dtype=np.int64)
    known[taker[seen]] = np.minimum(moved.end[seen], full[taker[seen]])  # the deepest stays
    before = np.full(requests, -1)
    before[taker[seen]] = np.where(goes_on[seen], giver[seen], -1)
    head = np.full(requests, -1)
    first = seen & (moved.start == 0)
    head[taker[first]] = giver[first]

    turns, began = _chain(before)
    later = turns > 0
    since_s = np.where(later, traffic.arrival_s - traffic.arrival_s[before], NOTHING)
    mean_gap_s = (traffic.arrival_s - traffic.arrival_s[began]) / np.maximum(turns, 1)
    columns = {
        "new_tokens": (full - known) * size,
        "input_tokens": traffic.input_tokens,
        "output_tokens": traffic.history_tokens - traffic.input_tokens,
        "shared_share": known / np.maximum(full, 1),
        "turns": turns,
        "since_s": since_s,
        "mean_gap_s": np.where(later, mean_gap_s, NOTHING),
        "head_requests": _chain(head)[0],
    }
    stacked = np.stack([columns[name].astype(np.float64) for name in FEATURES], axis=1)
    return TurnFeatures(stacked, next_s)


def _goes_on_by_prompts(
    traffic: Traffic, moved: Handovers, full: Ints, seen: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which stretches are all of a prompt before, as far as an engine can tell from prompts."""
    giver, taker = moved.giver.astype(np.int64), moved.taker.astype(np.int64)
    whole = np.minimum(full, traffic.length)
    end = np.minimum(moved.end, full[taker])
    block, beyond = moved.block, moved.end - end
    while beyond.any():  # up from an output to the prompt's end
        block = np.where(beyond > 0, traffic.block_parent[block], block)
        beyond = np.maximum(beyond - 1, 0)
    deepest = np.full(len(full), -1)
    deepest[taker[seen]] = np.flatnonzero(seen)
    last = np.zeros(len(taker), dtype=np.bool_)
    last[deepest[deepest >= 0]] = True
    parts = last & (end < whole[taker])
    return (end >= whole[giver]) & (_ways_before(block, taker, parts, len(full)) < SHARED_HEAD)


def _ways_before(
    block: NDArray[np.int32], taker: Ints, parts: NDArray[np.bool_], requests: int
) -> Ints:
    """In how many ways the path to the end of each stretch had gone on before it was taken.

    Those are the requests that part there: that went on with a block of their own right behind it.
    """
    at = block.astype(np.int64) * (requests + 1)
    new = np.sort((at + taker)[parts])
    return np.searchsorted(new, at + taker) - np.searchsorted(new, at)


def _chain(before: Ints) -> tuple[Ints, Ints]:
    """How many requests came before each one, one `before` the other, and the first of them."""
    at = np.arange(len(before))
    first = np.where(before >= 0, before, at)
    steps = (before >= 0).astype(np.int64)
    while not np.array_equal(first, first[first]):
        steps += steps[first]
        first = first[first]
    return steps, first
