"""Where earlier prompts leave the path of a request: its surroundings in the prefix trie."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Int32s
from kvscope.core.jit import kernel
from kvscope.core.prefix import write_path
from kvscope.replay.traffic import Walk


class Branch(Struct, frozen=True):
    """Earlier requests that share the first `blocks` blocks with a request and no more.

    `latest` is the number of the last one.
    """

    blocks: int
    requests: int
    latest: int


def branches(steps: Walk, request: int, most: int) -> tuple[Branch, ...]:
    """Return where earlier paths leave that of `request`, head first; those of most requests."""
    length = int(steps.length[request])
    path = np.empty(length, dtype=np.int32)
    write_path(steps.block_parent, int(steps.leaf[request]), path, 0, length)
    common = np.zeros(len(steps.block_parent), dtype=np.int32)
    common[path] = np.arange(1, length + 1)
    _inherit(steps.block_parent, common)
    shared = common[steps.leaf[:request]]
    requests = np.bincount(shared, minlength=length + 1)
    latest = np.zeros(length + 1, dtype=np.int64)
    latest[shared] = np.arange(request)  # the last one stays
    used = np.flatnonzero(requests[1:]) + 1
    chosen = np.sort(used[np.argsort(-requests[used], kind="stable")[:most]])
    return tuple(Branch(int(at), int(requests[at]), int(latest[at])) for at in chosen)


@kernel
def _inherit(block_parent: Int32s, common: Int32s) -> None:
    """Fill each block's entry from its parent's, unless it has one of its own."""
    for block in range(1, len(block_parent)):  # parents have lower numbers
        if common[block] == 0:
            common[block] = common[block_parent[block]]
