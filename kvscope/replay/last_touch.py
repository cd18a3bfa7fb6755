"""Which blocks pass from one request to another: who touched them before, and who will.

A request touches its whole path, cached or not. So who touched a block last does not depend on the
policy or the capacity: it is found once a trace, and replays never look at single blocks to know.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.core.prefix import write_path
from kvscope.policies.base import NEVER
from kvscope.replay.traffic import Traffic


class Handovers(NamedTuple):
    """From whom each of R requests takes the blocks of its path that were touched before.

    Stretch k, for k from `starts[r]` to `starts[r + 1]` - 1 and from the head on, ends in front of
    depth `end[k]` with the block `block[k]`, begins where the one before ends, and was last touched
    by `giver[k]`. What lies deeper on r's path was never touched. `owner` (N + 1 entries, the
    root's first) is who touched each block last of all, -1 for nobody.
    """

    starts: NDArray[np.int64]
    end: NDArray[np.int32]
    giver: NDArray[np.int32]
    block: NDArray[np.int32]
    owner: NDArray[np.int32]

    @property
    def taker(self) -> NDArray[np.int32]:
        """Whom each stretch goes to."""
        requests = np.arange(len(self.starts) - 1, dtype=np.int32)
        return np.repeat(requests, np.diff(self.starts))

    @property
    def start(self) -> NDArray[np.int32]:
        """The depth that each stretch begins at."""
        start = np.zeros_like(self.end)
        start[1:] = self.end[:-1]
        heads = self.starts[:-1]
        start[heads[heads < len(start)]] = 0
        return start


class Touches(NamedTuple):
    """Who will hit the blocks that each request leaves behind, when they are touched next.

    Of request r's blocks those in front of depth `stretches[k, 0]`, for k from `starts[r]` to
    `starts[r + 1]` - 1 and ascending, are hit by request `stretches[k, 1]` if they are still
    cached; NEVER where they are touched but cannot be hit, as beyond the last-token rule. Deeper
    ones are not touched again.
    """

    starts: NDArray[np.int64]
    stretches: NDArray[np.int32]


NO_TOUCHES = Touches(np.zeros(1, dtype=np.int64), np.zeros((0, 2), dtype=np.int32))


def handovers(traffic: Traffic) -> Handovers:
    """Every stretch of blocks that one request takes over from another."""
    requests, longest = len(traffic.leaf), int(traffic.length.max(initial=0))
    owner = np.full(len(traffic.block_parent), -1, dtype=np.int32)
    path = np.empty(longest + 1, dtype=np.int32)
    starts = np.zeros(requests + 1, dtype=np.int64)
    found = np.empty((3, requests + longest), dtype=np.int32)
    done = _hand_over(traffic, 0, owner, path, starts, found)
    while done < requests:
        found = np.concatenate((found, np.empty_like(found)), axis=1)
        done = _hand_over(traffic, done, owner, path, starts, found)
    end, giver, block = found[:, : starts[-1]].copy()
    return Handovers(starts, end, giver, block, owner)


def next_touches(moved: Handovers, look: NDArray[np.int32]) -> Touches:
    """Who will hit each block next: the future, for hindsight policies. `look` as in `Traffic`."""
    requests = len(moved.starts) - 1
    order = np.argsort(moved.giver, kind="stable")  # in order of time, and so of depth
    giver, taker, end = moved.giver[order], moved.taker[order], moved.end[order]
    hit_end = np.minimum(end, look[taker])
    stretches = np.empty((len(order), 2, 2), dtype=np.int32)
    stretches[:, 0, 0], stretches[:, 0, 1] = hit_end, taker
    stretches[:, 1, 0], stretches[:, 1, 1] = end, NEVER
    some = np.column_stack((hit_end > moved.start[order], end > hit_end))
    starts = np.zeros(requests + 1, dtype=np.int64)
    counts = np.bincount(giver, weights=some.sum(axis=1), minlength=requests)
    np.cumsum(counts.astype(np.int64), out=starts[1:])
    return Touches(starts, stretches[some])


@callable_in_kernels
def next_touch(
    starts: NDArray[np.int64], stretches: NDArray[np.int32], request: int, depth: int
) -> tuple[int, int]:
    """Who will hit the block at `depth` of a run next, and from which depth on that is so."""
    low, high = starts[request], starts[request + 1]
    first, end = low, high
    while low < high:
        middle = (low + high) >> 1
        if stretches[middle, 0] > depth:
            high = middle
        else:
            low = middle + 1
    begin = int(stretches[low - 1, 0]) if low > first else 0
    return int(stretches[low, 1]) if low < end else NEVER, begin


@kernel
def _hand_over(
    traffic: Traffic,
    begin: int,
    owner: NDArray[np.int32],
    path: NDArray[np.int32],
    starts: NDArray[np.int64],
    found: NDArray[np.int32],
) -> int:
    """Note what requests from `begin` on take over, as far as there is room; the next request."""
    requests, count = len(traffic.leaf), starts[begin]
    for request in range(begin, requests):
        length = traffic.length[request]
        if count + length > found.shape[1]:
            return request
        write_path(traffic.block_parent, traffic.leaf[request], path, 0, length)
        at = 0
        while at < length:
            before = owner[path[at]]
            while at < length and owner[path[at]] == before:
                owner[path[at]] = request
                at += 1
            if before >= 0:
                found[0, count] = at
                found[1, count] = before
                found[2, count] = path[at - 1]
                count += 1
        starts[request + 1] = count
    return requests
