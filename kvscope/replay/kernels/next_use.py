"""Replay of next-use policies (oracles): one queue of runs, by the request that hits them next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Int32s
from kvscope.core.jit import callable_in_kernels
from kvscope.policies.base import NEVER
from kvscope.replay.kernels.loop import EvictionOrder, Now, do_nothing, replay_loop
from kvscope.replay.last_touch import NextTouches, next_touch
from kvscope.replay.structures.bitset import add, discard, empty_sets, least, words_for
from kvscope.replay.structures.runs import (
    END,
    FIRST,
    NAMED,
    CachedRuns,
    empty_runs,
    may_shrink,
    release,
    shrink,
)
from kvscope.replay.traffic import Traffic

_RANK, _SINCE = range(2)


class NextUses(NamedTuple):
    """The state of a next-use policy over R requests.

    Request q can hit its first `look[q]` blocks; the policy wants to keep the first `needed[q]`.
    `waits` (R x 2) has the rank of each run's deepest block, and the depth from which on blocks
    have that rank. If request q touches a block of request r's run next, its rank is 3 R - 1 - q
    if q needs it, else 2 R - 1 - q if q can hit it, else r, as for blocks never touched again.
    `queue` is a set (bitset.py) of ranks: the least is evicted first; `run_of` has their requests.
    """

    runs: CachedRuns
    future: NextTouches
    look: Int32s
    needed: Int32s
    waits: Int32s
    queue: NDArray[np.uint64]
    run_of: Int32s


def empty_next_uses(traffic: Traffic, needed: Int32s, future: NextTouches) -> NextUses:
    """Return an empty cache; `needed` (R) is as in `NextUses`."""
    requests = len(traffic.leaf)
    return NextUses(
        empty_runs(traffic, leaf=True, climb=True),
        future,
        traffic.look,
        needed,
        np.zeros((requests, 2), dtype=np.int32),
        empty_sets(1, 3 * requests),
        np.zeros(3 * requests, dtype=np.int32),
    )


@callable_in_kernels
def _admits(state: NextUses, traffic: Traffic, request: int, now: Now) -> bool:
    """Return True: blocks that no request hits again enter, too, and are evicted first."""
    return True


@callable_in_kernels
def _enqueue(state: NextUses, request: int) -> None:
    """Queue a run that may shrink, by the rank of its deepest block."""
    deepest, named = state.runs.of[request, END] - 1, state.runs.of[request, NAMED]
    requests = len(state.waits)
    rank, since = request, named
    if deepest < named:
        awaited, since = next_touch(state.future, request, deepest)
        if awaited != NEVER:
            look, needed = int(state.look[awaited]), int(state.needed[awaited])
            if deepest < look:
                rank = 2 * requests - 1 - awaited
                if deepest < needed:
                    rank += requests
                else:
                    since = max(since, needed)
            else:
                since = max(since, look)
    state.waits[request, _RANK], state.waits[request, _SINCE] = rank, since
    state.run_of[rank] = request
    add(state.queue, words_for(len(state.run_of)), 0, rank)


@callable_in_kernels
def _join(state: NextUses, traffic: Traffic, request: int, now: Now) -> None:
    _enqueue(state, request)


@callable_in_kernels
def _lowest(state: NextUses) -> int:
    """Return the request whose run evicts the next block, -1 if there is none."""
    of, queue = state.runs.of, state.queue
    words = words_for(len(state.run_of))
    rank = least(queue, words, 0)
    while rank >= 0:
        request = int(state.run_of[rank])
        if of[request, FIRST] < of[request, END]:
            return request
        discard(queue, words, 0, rank)  # its blocks were taken over
        rank = least(queue, words, 0)
    return -1


@callable_in_kernels
def _evict_from(state: NextUses, request: int, most: int) -> int:
    """Evict up to `most` of a queued run's blocks that have the rank of its deepest block."""
    runs = state.runs
    first = runs.of[request, FIRST]
    words = words_for(len(state.run_of))
    discard(state.queue, words, 0, state.waits[request, _RANK])
    stop = max(first, state.waits[request, _SINCE])
    count = shrink(runs, request, most, stop)
    joining = request
    if runs.of[request, END] == first:
        joining = release(runs, request)
    elif not may_shrink(runs, request):
        joining = -1
    if joining >= 0:
        _enqueue(state, joining)
    return count


@callable_in_kernels
def _evict(state: NextUses, traffic: Traffic, request: int, now: Now, most: int) -> int:
    victim = _lowest(state)
    return _evict_from(state, victim, most) if victim >= 0 else 0


@callable_in_kernels
def _expire(state: NextUses, traffic: Traffic, request: int, now: Now) -> int:
    blocks = max(state.runs.of[request, END] - state.runs.of[request, FIRST], 0)
    left = blocks
    while left > 0:
        left -= _evict_from(state, request, left)
    return int(blocks)


next_uses_kernel = replay_loop(
    EvictionOrder(_admits, enter=do_nothing, join=_join, evict=_evict, expire=_expire)
)
"""The kernel that replays every next-use policy: arguments and result as in `replay_loop`.

The queue holds the runs that may shrink, by their deepest block. No two runs wait for the same
request: both would lie on its path, and the shallower could not shrink before the deeper.
Source: Belady, IBM Systems Journal 1966; that the blocks of one next use are one segment of its
path, and so need no heap, is kvscope's own.
"""
