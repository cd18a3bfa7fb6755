"""Reuse in an infinite cache: which earlier request last touched the blocks of each path."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.arrays import Int32s, UInt32s, unsigned
from kvscope.core.jit import kernel
from kvscope.core.prefix import write_path


class ReusedRuns(Struct, frozen=True):
    """Reuse along the paths of R requests, as K runs of blocks in order of request and depth.

    Run k: blocks [depth[k], depth[k] + blocks[k]) of the path of request[k] were last touched by
    request previous[k]. Runs are few because a request touches a whole path, so the blocks that it
    was the last to touch are contiguous in any later path.
    """

    request: Int32s
    previous: Int32s
    depth: Int32s
    blocks: Int32s

    def within(self, length: Int32s) -> ReusedRuns:
        """Return the part of the runs in the first `length[r]` blocks of each path."""
        blocks = np.minimum(self.depth + self.blocks, length[self.request]) - self.depth
        kept = blocks > 0
        return ReusedRuns(self.request[kept], self.previous[kept], self.depth[kept], blocks[kept])

    def counts(self, requests: int) -> Int32s:
        """Return, for each of `requests` paths, how many leading blocks were touched before."""
        return np.bincount(self.request, self.blocks, minlength=requests).astype(np.int32)


class TraceReuse(Struct, frozen=True):
    """Reuse in an infinite cache, for a trace with R requests and N blocks.

    `touched`: runs over all blocks that requests leave cached, `runs`: over their prompts' blocks.
    Per block (N + 1 entries, the root's first): the `first` and `last` request that touched it (-1:
    never a full block), and `reuses`, the number of prompts that found it cached. Per request:
    `ideal_blocks`, the number of leading blocks hit.
    """

    touched: ReusedRuns
    runs: ReusedRuns
    first: Int32s
    last: Int32s
    reuses: Int32s
    ideal_blocks: Int32s

    def groups(self) -> dict[str, NDArray[Any]]:
        """Return groups of blocks with equal first request, last request and reuses, as columns.

        The columns are `first_request`, `last_request`, `reuses`, and `blocks`: the group's number
        of blocks. A group is a run of block numbers, so several groups may be equal but for
        `blocks`. Blocks that were never a full block of a prompt are left out.
        """
        differs = np.ones(len(self.first), dtype=np.bool_)
        differs[1:] = False
        for column in (self.first, self.last, self.reuses):
            differs[1:] |= column[1:] != column[:-1]
        begins = np.flatnonzero(differs)
        blocks = np.diff(begins, append=len(self.first))
        cacheable = self.first[begins] >= 0
        at = begins[cacheable]
        return {
            "first_request": self.first[at],
            "last_request": self.last[at],
            "reuses": self.reuses[at],
            "blocks": blocks[cacheable],
        }


def touches(block_parent: Int32s, leaf: Int32s, length: Int32s) -> ReusedRuns:
    """Return which earlier request last touched the blocks of each path.

    Path r has `length[r]` blocks and ends at `leaf[r]`, in a trie whose N blocks have their parents
    in `block_parent` (N + 1 entries, the root's first).
    """
    last = np.full(len(block_parent), -1, dtype=np.int32)
    uncounted = np.zeros(0, dtype=np.int32)
    return _followed(block_parent, leaf, length, length, last, uncounted, uncounted)


def trace_reuse(
    block_parent: Int32s,
    block_size: int,
    input_tokens: Int32s,
    full_blocks: Int32s,
    carried_leaf: Int32s,
    carried_blocks: Int32s,
) -> TraceReuse:
    """Return the reuse of a trace, by following each request down its path in order of arrival.

    Request r leaves `carried_blocks[r]` blocks cached, a path that ends at `carried_leaf[r]`; the
    first `full_blocks[r]` of them are its prompt's full blocks.
    """
    first, last = (np.full(len(block_parent), -1, dtype=np.int32) for _ in range(2))
    reuses = np.zeros(len(block_parent), dtype=np.int32)
    touched = _followed(
        block_parent, carried_leaf, carried_blocks, full_blocks, last, first, reuses
    )
    leading = np.minimum(touched.counts(len(full_blocks)), full_blocks)
    return TraceReuse(
        touched=touched,
        runs=touched.within(full_blocks),
        first=first,
        last=last,
        reuses=reuses,
        ideal_blocks=np.minimum(leading, (input_tokens - 1) // block_size),
    )


def _followed(
    block_parent: Int32s,
    leaf: Int32s,
    length: Int32s,
    full_blocks: Int32s,
    last: Int32s,
    first: Int32s,
    reuses: Int32s,
) -> ReusedRuns:
    """Return the runs of all paths; fill `last`, and `first` and `reuses` if they have entries."""
    requests, longest = len(leaf), int(length.max(initial=0))
    above, end = unsigned(block_parent), unsigned(leaf)
    path = np.empty(longest + 1, dtype=np.uint32)
    runs = np.empty((4, 2 * requests + longest), dtype=np.int32)
    done, count = 0, 0
    while True:
        done, count = _follow(
            above, end, length, full_blocks, done, count, last, first, reuses, path, runs
        )
        if done == requests:
            return ReusedRuns(*runs[:, :count].copy())
        runs = np.concatenate((runs, np.empty_like(runs)), axis=1)


@kernel
def _follow(
    block_parent: UInt32s,
    leaf: UInt32s,
    length: Int32s,
    full_blocks: Int32s,
    begin: int,
    count: int,
    last: Int32s,
    first: Int32s,
    reuses: Int32s,
    path: UInt32s,
    runs: Int32s,
) -> tuple[int, int]:
    """Follow requests from `begin` on while `runs` has room; return (next request, run count)."""
    for request in range(begin, len(leaf)):
        end = length[request]
        if count + end > runs.shape[1]:
            return request, count
        write_path(block_parent, leaf[request], path, 0, end)
        counted = full_blocks[request] if len(reuses) else 0
        at = 0
        while at < end and last[path[at]] >= 0:
            previous = last[path[at]]
            start = at
            while at < end and last[path[at]] == previous:
                last[path[at]] = request
                if at < counted:
                    reuses[path[at]] += 1
                at += 1
            runs[0, count] = request
            runs[1, count] = previous
            runs[2, count] = start
            runs[3, count] = at - start
            count += 1
        for fresh in range(at, end):
            last[path[fresh]] = request
            if len(first):
                first[path[fresh]] = request
    return len(leaf), count
