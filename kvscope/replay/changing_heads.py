"""Shared heads of prompts that change with time: a date, an hour, a counter.

The block that holds the date has one content in each period of the clock, and no content recurs.
This block and all blocks behind it are computed again in each period.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s
from kvscope.core.jit import kernel
from kvscope.core.prefix import ancestor
from kvscope.replay.traffic import Walk

_SECOND, _MINUTE, _HOUR, _DAY = 1, 60, 3600, 86400
PERIODS_S = (
    *(_SECOND, 10 * _SECOND, 30 * _SECOND),
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 20, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 4, 6, 8, 12)),
    *(_DAY, 7 * _DAY),
)
_FEWEST_BRANCHES = 4
_MOST_NODES = 500  # branch points that are looked at, those of the most requests first
_FITTING = 0.95  # of the requests: some clocks are late
_MOST_CHANGES = 200  # that a phase is fitted to, the sharpest
_SHARPEST = 1e-3  # of a period: no change is known better than that
_CHANCE = 1e-5  # that unrelated changes would fit the clock so well
NO_CHANGE = -1


class HeadChange(Struct, frozen=True):
    """A place in a shared head where the block changes with every period of a clock.

    The first `blocks` blocks stay the same; the next one had `values` different contents.
    """

    blocks: int
    period_s: int
    values: int


class ChangingHeads(Struct, frozen=True):
    """The `changes` of a trace, and the blocks that R requests would have reused without them.

    `change` is the index of the costliest change in each prompt (NO_CHANGE: none). Without it, the
    first `end` blocks (0: none) would have been computed before. Contents behind a change may
    differ too, so `end` counts leading blocks that two or more requests share, at most as many as
    in an earlier period; at least those of the previous turn, if the block has changed since.
    """

    changes: tuple[HeadChange, ...]
    change: Int32s
    end: Int32s


def changing_heads(
    steps: Walk, arrival_s: Float64s, parent: Int32s, common: Int32s
) -> ChangingHeads:
    """Return the places where shared heads change with time, and the blocks that requests lose.

    `common` is the number of leading blocks that a path shares with its previous turn (0 where
    `parent` is -1: none). As hashes do not show whether contents behind a change are equal, a
    period loses at most as many shared blocks as an earlier period had.
    """
    requests = len(steps.leaf)
    entered = np.zeros(len(steps.block_parent), dtype=np.int32)
    depth, shared_to = np.zeros_like(entered), np.zeros_like(entered)
    _count_entries(steps, common, entered, depth, shared_to)
    heads = ChangingHeads(
        (), np.full(requests, NO_CHANGE, dtype=np.int32), np.zeros(requests, dtype=np.int32)
    )
    tested = _branch_points(steps.block_parent, entered)
    if not tested.any():
        return heads
    request, block = _choices(steps, common, tested)
    at = steps.block_parent[block]
    order = np.lexsort((request, at))
    request, block, at = request[order], block[order], at[order]
    changes: dict[tuple[int, int], int] = {}
    values: list[int] = []
    for group in np.split(np.arange(len(at)), np.flatnonzero(np.diff(at)) + 1):
        chosen = request[group]
        period_s = _period(arrival_s[chosen], block[group])
        if period_s is None:
            continue
        own = int(depth[at[group[0]]])
        number = changes.setdefault((own, period_s), len(changes))
        values += [0] * (len(changes) - len(values))
        values[number] += len(np.unique(block[group]))
        end = _ends(steps, parent, common, shared_to[steps.leaf], chosen, block[group], own)
        better = end > heads.end[chosen]
        heads.end[chosen[better]] = end[better]
        heads.change[chosen[better]] = number
    places = [HeadChange(own, period_s, values[n]) for (own, period_s), n in changes.items()]
    return replace(heads, changes=tuple(places))


def _ends(
    steps: Walk,
    parent: Int32s,
    common: Int32s,
    shared: Int32s,
    request: Int32s,
    block: Int32s,
    own: int,
) -> Int32s:
    """Return the leading blocks (K) that requests would have reused if a block had not changed.

    That block has the depth `own`; `block` is its content in each `request`, by arrival (K entries
    each). `shared` has for each of all R requests the leading blocks that two or more requests
    share (`shared_to` of its last block, see `_count_entries`).
    """
    reach = np.minimum(shared[request], steps.look[request])
    _, first, value = np.unique(block, return_index=True, return_inverse=True)
    deepest = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(deepest, value, reach)
    in_order = np.argsort(first)
    before = np.zeros_like(deepest)
    before[in_order[1:]] = np.maximum.accumulate(deepest[in_order])[:-1]
    end = np.minimum(reach, before[value])
    previous = parent[request]
    repeats = (previous >= 0) & (common[request] == own)
    repeated = np.minimum(steps.length[previous], steps.look[request])
    return np.where(repeats, np.maximum(end, repeated), end).astype(np.int32)


def _branch_points(block_parent: Int32s, entered: Int32s) -> Bools:
    """Return a mask (N + 1) of up to 500 branch points, whose children may be a changing block.

    A branch point has four or more children that two or more requests entered. Those that
    most requests entered come first; the root counts with N + 1. `entered` (N + 1) is the number of
    requests with each block, except those whose previous turn has it (see `_count_entries`).
    """
    repeated = np.bincount(
        block_parent[1:][entered[1:] >= 2], minlength=len(block_parent)
    )  # 0, the root, is one of them
    candidates = np.flatnonzero(repeated >= _FEWEST_BRANCHES)
    used = entered[candidates].astype(np.int64)
    used[candidates == 0] = len(block_parent)
    tested = np.zeros(len(block_parent), dtype=np.bool_)
    tested[candidates[np.argsort(-used, kind="stable")[:_MOST_NODES]]] = True
    return tested


def _period(arrival_s: Float64s, block: Int32s) -> int | None:
    """Return the clock period (s) at which the blocks of requests change; None without a clock.

    Request k arrives at `arrival_s[k]`, in ascending order, and has `block[k]`. Each block is used
    in one period only, and changes lie so near the ends of periods that chance does not explain it.
    The phase of the clock is unknown.
    """
    _, value = np.unique(block, return_inverse=True)
    count = np.bincount(value)
    if len(count) < _FEWEST_BRANCHES or 2 * len(count) > len(block):
        return None
    by_value = np.argsort(value, kind="stable")
    ends = np.cumsum(count)
    middle = arrival_s[by_value[(ends - count + ends - 1) // 2]]
    in_order = np.argsort(middle, kind="stable")
    last = arrival_s[by_value[ends - 1]][in_order[:-1]]
    first = arrival_s[by_value[ends - count]][in_order[1:]]
    change_s, width_s = np.minimum(last, first), np.abs(first - last)
    best: tuple[float, int] | None = None
    for period_s in PERIODS_S:
        relative = np.maximum(width_s / period_s, _SHARPEST)
        known = np.argsort(relative, kind="stable")[:_MOST_CHANGES]
        known = known[relative[known] < 1]
        if len(known) < _FEWEST_BRANCHES - 1:
            continue
        begin, agreeing = _phase(change_s[known], width_s[known], period_s)
        if agreeing.sum() < _FITTING * len(agreeing):
            continue
        # The phase is free: it fits one of the changes, the sharpest, anyhow.
        chance = np.log(np.sort(relative[known][agreeing])[1:]).sum()
        if chance > np.log(_CHANCE):
            continue
        cell = np.floor((arrival_s - begin) / period_s).astype(np.int64)
        purity = min(_purity(value, cell), _purity(cell, value))
        if purity >= _FITTING and (best is None or purity > best[0]):
            best = purity, period_s
    return None if best is None else best[1]


def _phase(change_s: Float64s, width_s: Float64s, period_s: float) -> tuple[float, Bools]:
    """Return the clock phase (s) that fits the most changes, and a mask of the changes that fit.

    Change k happened at most `width_s[k]` s after `change_s[k]`; it fits if the clock ticks then.
    """
    start = change_s % period_s
    candidates = np.concatenate((start, (start + width_s) % period_s))
    inside = (candidates[:, None] - start[None, :]) % period_s <= width_s[None, :] + 1e-9
    chosen = int(np.argmax(inside.sum(axis=1)))
    fitting = inside[chosen]
    # In the middle of what all of them allow.
    offset = (candidates[chosen] - start[fitting]) % period_s
    earlier, later = offset.min(), (width_s[fitting] - offset).min()
    return float(candidates[chosen] + (later - earlier) / 2), fitting


def _purity(group: Int64s, label: Int64s) -> float:
    """Return the share of entries that have their group's commonest label; 1 if all do."""
    pairs, count = np.unique(np.stack((group, label)), axis=1, return_counts=True)
    most = np.zeros(len(np.unique(group)), dtype=np.int64)
    np.maximum.at(most, np.unique(pairs[0], return_inverse=True)[1], count)
    return float(most.sum() / len(group))


def _choices(steps: Walk, common: Int32s, tested: Bools) -> tuple[Int32s, Int32s]:
    """Return pairs (request, block): the content that a request has right behind a branch point.

    The block is a child of a branch point (mask `tested`, N + 1) on the request's path, not among
    its `common` leading blocks. `changing_heads` tests if a branch point's pairs follow a clock.
    """
    nothing = np.empty(0, dtype=np.int32)
    count = _write_choices(steps, common, tested, nothing, nothing)
    request, block = np.empty((2, count), dtype=np.int32)
    _write_choices(steps, common, tested, request, block)
    return request, block


@kernel
def _write_choices(
    steps: Walk, common: Int32s, tested: Bools, request: Int32s, block: Int32s
) -> int:
    """Fill `request` and `block` with the pairs of `_choices`, as far as they fit.

    Return the number of all pairs; other arguments are as in `_choices`.
    """
    block_parent, leaf, length, _, _ = steps
    count = 0
    for number in range(len(leaf)):
        at = leaf[number]
        for _ in range(length[number] - common[number]):
            above = block_parent[at]
            if tested[above]:
                if count < len(request):
                    request[count] = number
                    block[count] = at
                count += 1
            at = above
    return count


@kernel
def _count_entries(
    steps: Walk, common: Int32s, entered: Int32s, depth: Int32s, shared_to: Int32s
) -> None:
    """Fill three counts of each block (N + 1 entries each, 0 at first; the root's stay 0).

    `entered`: the requests with the block, except those whose previous turn has it too. `depth`:
    the blocks from the head to this one, itself included. `shared_to`: the `depth` of the deepest
    block on the path to this one that two or more requests `entered`, 0 without one.
    """
    block_parent, leaf, length, _, _ = steps
    for number in range(len(leaf)):
        new = length[number] - common[number]
        if new > 0:
            entered[leaf[number]] += 1
            entered[ancestor(block_parent, leaf[number], new)] -= 1
    for block in range(len(block_parent) - 1, 0, -1):  # parents have lower numbers
        entered[block_parent[block]] += entered[block]
    for block in range(1, len(block_parent)):
        above = block_parent[block]
        depth[block] = depth[above] + 1
        shared_to[block] = depth[block] if entered[block] >= 2 else shared_to[above]
