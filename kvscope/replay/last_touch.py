"""Which request touched each block last, and which one will touch it next.

A request touches its whole path, cached or not. So the last touch of a block does not depend on the
policy or the capacity: it is found once per trace, and replays need not look at single blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.core.prefix import write_path
from kvscope.policies.base import NEVER
from kvscope.replay.traffic import Traffic


class Segments(NamedTuple):
    """The paths of R requests, cut where the request that last touched the blocks changes.

    The segments of request r are numbered k, from `starts[r]` to `starts[r + 1]` - 1 and from the
    head of its path on. Segment k begins where the previous one ends; its last block is `block[k]`
    at depth `end[k]` - 1; request `previous[k]` touched it last. Deeper blocks of the path were
    never touched before. `owner` (N + 1 entries, the root's first) is the last request of the trace
    to touch each block, or -1.
    """

    starts: Int64s
    end: Int32s
    previous: Int32s
    block: Int32s
    owner: Int32s

    @property
    def request(self) -> Int32s:
        """The request on whose path each segment lies."""
        requests = np.arange(len(self.starts) - 1, dtype=np.int32)
        return np.repeat(requests, np.diff(self.starts))

    @property
    def start(self) -> Int32s:
        """The depth at which each segment begins."""
        start = np.zeros_like(self.end)
        start[1:] = self.end[:-1]
        heads = self.starts[:-1]
        start[heads[heads < len(start)]] = 0
        return start


class NextTouches(NamedTuple):
    """The next request to touch each block that a request leaves cached.

    Blocks of request r in front of depth `end[k]`, for k from `starts[r]` to `starts[r + 1]` - 1
    and ascending, are touched next by `request[k]`. Deeper ones are not touched again.
    """

    starts: Int64s
    end: Int32s
    request: Int32s


NO_NEXT_TOUCHES = NextTouches(
    np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32)
)


def last_touch_segments(traffic: Traffic) -> Segments:
    """Return the segments of every request's path by the previous request that touched them."""
    requests, longest = len(traffic.leaf), int(traffic.length.max(initial=0))
    owner = np.full(len(traffic.block_parent), -1, dtype=np.int32)
    path = np.empty(longest + 1, dtype=np.int32)
    starts = np.zeros(requests + 1, dtype=np.int64)
    columns = np.empty((3, requests + longest), dtype=np.int32)
    done = _find_segments(traffic, 0, owner, path, starts, columns)
    while done < requests:
        columns = np.concatenate((columns, np.empty_like(columns)), axis=1)
        done = _find_segments(traffic, done, owner, path, starts, columns)
    end, previous, block = columns[:, : starts[-1]].copy()
    return Segments(starts, end, previous, block, owner)


def next_touches(segments: Segments) -> NextTouches:
    """Return the next touches of all blocks, for policies that know the future."""
    order = np.argsort(segments.previous, kind="stable")  # in order of time, and so of depth
    starts = np.zeros(len(segments.starts), dtype=np.int64)
    np.cumsum(np.bincount(segments.previous, minlength=len(starts) - 1), out=starts[1:])
    return NextTouches(starts, segments.end[order], segments.request[order])


@callable_in_kernels
def next_touch(future: NextTouches, request: int, depth: int) -> tuple[int, int]:
    """Return the next request to touch a block that `request` leaves cached, else NEVER.

    The block is at `depth` of the path of `request`. Return also the depth at which the segment of
    blocks with the same answer begins.
    """
    low, high = future.starts[request], future.starts[request + 1]
    first, end = low, high
    while low < high:
        middle = (low + high) >> 1
        if future.end[middle] > depth:
            high = middle
        else:
            low = middle + 1
    begin = int(future.end[low - 1]) if low > first else 0
    return int(future.request[low]) if low < end else NEVER, begin


@kernel
def _find_segments(
    traffic: Traffic, begin: int, owner: Int32s, path: Int32s, starts: Int64s, columns: Int32s
) -> int:
    """Fill the rows of `columns` (3 x room): end, previous and block of segments, as in `Segments`.

    Begin with request `begin`; return the request to continue from once there is no more room, or
    R. `owner` (N + 1) is the last request with each block so far, -1 for none, and must be kept
    for the next call; `path`, with room for the longest path, is scratch space.
    """
    requests, count = len(traffic.leaf), starts[begin]
    for request in range(begin, requests):
        length = traffic.length[request]
        if count + length > columns.shape[1]:
            return request
        write_path(traffic.block_parent, traffic.leaf[request], path, 0, length)
        at = 0
        while at < length:
            before = owner[path[at]]
            while at < length and owner[path[at]] == before:
                owner[path[at]] = request
                at += 1
            if before >= 0:
                columns[0, count] = at
                columns[1, count] = before
                columns[2, count] = path[at - 1]
                count += 1
        starts[request + 1] = count
    return requests
