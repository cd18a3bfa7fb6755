"""libCacheSim's binary format: one record per block access, with the next access of the block."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.jit import kernel
from kvscope.core.prefix import paths
from kvscope.core.trace import Trace
from kvscope.ingest.formats.exporter import REQUESTS_AT_ONCE, Advance, Exporter
from kvscope.ingest.reuse import touches
from kvscope.store.db import Store
from kvscope.store.traces import load_prompts

RECORD = np.dtype(
    [("time_s", "<u4"), ("obj_id", "<u8"), ("obj_size", "<u4"), ("next_access_vtime", "<i8")]
)
NEVER = -1


class OracleGeneralExport(Exporter):
    """Export of block accesses: time in whole seconds, block, and number of its next access.

    Lost: which accesses make up a request, lengths, outputs, conversations, users, types, and
    fractions of a second. Objects have size 1, so capacities are in blocks; a partial last block is
    an object like any other. Accesses (virtual times) are numbered from 1.

    Source: libCacheSim, the trace type oracleGeneral.
    """

    name = "oracleGeneral"
    summary = "libCacheSim binary: a record per block access, with its next access"
    source = "libCacheSim, trace type oracleGeneral"
    is_text = False
    needs_hashes = True

    def write(self, store: Store, trace: Trace, stream: BinaryIO, advance: Advance) -> None:
        """Write the records of some thousand requests at a time."""
        prompts = load_prompts(store, trace)
        parent, blocks = prompts.block_parent, prompts.blocks
        # Partial last blocks are objects, too.
        reused = touches(parent, prompts.leaf, blocks)
        # Runs by the request that touches them now; request r's are runs[r] to runs[r + 1].
        order = np.argsort(reused.previous, kind="stable")
        runs = np.searchsorted(reused.previous[order], np.arange(trace.requests + 1))
        request, depth, length = (
            column[order] for column in (reused.request, reused.depth, reused.blocks)
        )
        vtime = np.cumsum(blocks, dtype=np.int64) - blocks + 1
        for first in range(0, trace.requests, REQUESTS_AT_ONCE):
            part = slice(first, min(first + REQUESTS_AT_ONCE, trace.requests))
            starts, ids = paths(parent, prompts.leaf[part], blocks[part])
            following = np.full(len(ids), NEVER, dtype=np.int64)
            _find_next_access(starts, vtime, runs[first:], request, depth, length, following)
            records = np.empty(len(ids), dtype=RECORD)
            records["time_s"] = np.repeat(prompts.arrival_s[part].astype(np.uint32), blocks[part])
            records["obj_id"] = ids
            records["obj_size"] = 1
            records["next_access_vtime"] = following
            stream.write(records.tobytes())
            advance(part.stop - first)


@kernel
def _find_next_access(
    starts: Int64s,
    vtime: Int64s,
    runs: Int64s,
    request: Int32s,
    depth: Int32s,
    length: Int32s,
    following: Int64s,
) -> None:
    """Write to `following`, for each access to a block, the number of the next access to it.

    Entries of blocks that are not accessed again stay as they are (NEVER). Of the k-th path, the
    accesses begin at following[starts[k]], and the runs are runs[k] to before runs[k + 1]. A run is
    `length` blocks from `depth` on that a later `request` (a number in the trace) touches next, at
    the same depths. vtime[r] is the number of the first access of request r of the trace.
    """
    for k in range(len(starts) - 1):
        for run in range(runs[k], runs[k + 1]):
            for at in range(depth[run], depth[run] + length[run]):
                following[starts[k] + at] = vtime[request[run]] + at
