"""Reuse in an infinite cache: which earlier request last touched the blocks of each prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.arrays import Int32s
from kvscope.core.jit import kernel
from kvscope.core.prefix import write_path


class TraceReuse(Struct, frozen=True):
    """What an infinite cache sees of a trace with R requests, N blocks and K runs.

    Run k: blocks [depth[k], depth[k] + blocks[k]) of request[k]'s prompt were last touched by
    prev[k]. Runs need few rows because a request touches a whole path, so the blocks that one
    request touched last are contiguous in any later path. `first` and `last` are each block's
    first and last request (-1: never a full block), `reuses` the prompts that found it written;
    these have N + 1 entries, 0 being the root. `ideal_blocks` has R: leading blocks hit.
    """

    request: Int32s
    prev: Int32s
    depth: Int32s
    blocks: Int32s
    first: Int32s
    last: Int32s
    reuses: Int32s
    ideal_blocks: Int32s

    def groups(self) -> dict[str, NDArray[Any]]:
        """Return the blocks that were a full block of some prompt, counted in G groups.

        The `blocks` of a group have the same first and last request and reuses; several groups may
        have the same.
        """
        columns = {"first_request": self.first, "last_request": self.last, "reuses": self.reuses}
        begins = np.zeros(len(self.first), dtype=np.bool_)
        begins[0] = True
        for each in columns.values():
            begins[1:] |= each[1:] != each[:-1]
        at = np.flatnonzero(begins)
        blocks = np.diff(at, append=len(begins))
        cacheable = self.first[at] >= 0
        grouped = {name: each[at[cacheable]] for name, each in columns.items()}
        return {**grouped, "blocks": blocks[cacheable]}


def trace_reuse(
    block_parent: Int32s,
    block_size: int,
    input_tokens: Int32s,
    full_blocks: Int32s,
    carried_leaf: Int32s,
    carried_blocks: Int32s,
) -> TraceReuse:
    """Follow every request down its path and return the earlier requests that touched it."""
    requests, longest = len(full_blocks), int(carried_blocks.max(initial=0))
    first = np.full(len(block_parent), -1, dtype=np.int32)
    last = np.full(len(block_parent), -1, dtype=np.int32)
    reuses = np.zeros(len(block_parent), dtype=np.int32)
    ideal = np.zeros(requests, dtype=np.int32)
    path = np.empty(longest + 1, dtype=np.int32)
    runs = np.empty((4, requests + longest), dtype=np.int32)
    done, count = 0, 0
    while True:
        done, count = _follow(
            block_parent, block_size, input_tokens, full_blocks, carried_leaf, carried_blocks,
            done, count, first, last, reuses, ideal, path, runs,
        )  # fmt: skip
        if done == requests:
            request, prev, depth, blocks = runs[:, :count].copy()
            return TraceReuse(request, prev, depth, blocks, first, last, reuses, ideal)
        runs = np.concatenate((runs, np.empty_like(runs)), axis=1)


@kernel
def _follow(
    block_parent: Int32s,
    block_size: int,
    input_tokens: Int32s,
    full_blocks: Int32s,
    carried_leaf: Int32s,
    carried_blocks: Int32s,
    begin: int,
    count: int,
    first: Int32s,
    last: Int32s,
    reuses: Int32s,
    ideal: Int32s,
    path: Int32s,
    runs: Int32s,
) -> tuple[int, int]:
    """Continue from request `begin` and run `count` while there is room; return both at the end."""
    for request in range(begin, len(full_blocks)):
        length = carried_blocks[request]
        if count + length > runs.shape[1]:
            return request, count
        write_path(block_parent, carried_leaf[request], path, 0, length)
        full = full_blocks[request]
        at = 0
        while at < length and last[path[at]] >= 0:
            prev = last[path[at]]
            start = at
            while at < length and last[path[at]] == prev:
                last[path[at]] = request
                if at < full:
                    reuses[path[at]] += 1
                at += 1
            if start < full:
                runs[0, count] = request
                runs[1, count] = prev
                runs[2, count] = start
                runs[3, count] = min(at, full) - start
                count += 1
        ideal[request] = min(at, full, (input_tokens[request] - 1) // block_size)
        for fresh in range(at, length):
            first[path[fresh]] = request
            last[path[fresh]] = request
    return len(full_blocks), count
