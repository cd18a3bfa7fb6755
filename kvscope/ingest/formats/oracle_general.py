"""libCacheSim's binary format: one record per block access, with the next access of the block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.jit import kernel
from kvscope.core.prefix import paths
from kvscope.core.trace import Prompts, Trace
from kvscope.ingest.formats.exporter import REQUESTS_AT_ONCE, Advance, Exporter
from kvscope.ingest.reuse import trace_reuse
from kvscope.store.db import Store
from kvscope.store.traces import load_prompts

RECORD = np.dtype(
    [("time_s", "<u4"), ("obj_id", "<u8"), ("obj_size", "<u4"), ("next_access_vtime", "<i8")]
)
NEVER = -1


class OracleGeneralExport(Exporter):
    """Block accesses and when each block is accessed next, in whole seconds.

    Lost: which accesses make up a request, lengths, outputs, conversations, users, types, and
    fractions of a second. Objects have size 1, so capacities are in blocks; a partial last block is
    an object like any other.

    Source: libCacheSim, the trace type oracleGeneral. Its virtual times count accesses from 1.
    """

    name = "oracleGeneral"
    summary = "libCacheSim binary: a record per block access, with its next access"
    source = "libCacheSim, trace type oracleGeneral"
    is_text = False
    needs_hashes = True

    def write(self, store: Store, trace: Trace, stream: BinaryIO, advance: Advance) -> None:
        """Write the records of some thousand requests at a time."""
        prompts = load_prompts(store, trace)
        future = _future(prompts)
        for first in range(0, trace.requests, REQUESTS_AT_ONCE):
            after = min(first + REQUESTS_AT_ONCE, trace.requests)
            stream.write(_records(prompts, future, first, after).tobytes())
            advance(after - first)


@dataclass(frozen=True, slots=True)
class _Future:
    """Runs of blocks by the request that touches them next, sorted by the one that touches now.

    Blocks [depth, depth + blocks) of request[k] are touched next by next[k], at the same depths:
    a block's depth is its own. Request r's runs are those from starts[r] to starts[r + 1].
    """

    starts: Int64s
    next: Int32s
    depth: Int32s
    blocks: Int32s


def _future(prompts: Prompts) -> _Future:
    """Return the future of every block of every prompt, partial last ones included."""
    reuse = trace_reuse(
        prompts.block_parent,
        prompts.block_size,
        prompts.input_tokens,
        prompts.blocks,
        prompts.leaf,
        prompts.blocks,
    )
    order = np.argsort(reuse.prev, kind="stable")
    counts = np.bincount(reuse.prev, minlength=len(prompts.leaf))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return _Future(starts, reuse.request[order], reuse.depth[order], reuse.blocks[order])


def _records(prompts: Prompts, future: _Future, first: int, after: int) -> NDArray[np.void]:
    """Return the accesses of requests [first, after)."""
    blocks = prompts.blocks[first:after]
    starts, ids = paths(prompts.block_parent, prompts.leaf[first:after], blocks)
    records = np.empty(len(ids), dtype=RECORD)
    records["time_s"] = np.repeat(prompts.arrival_s[first:after].astype(np.uint32), blocks)
    records["obj_id"] = ids
    records["obj_size"] = 1
    vtime = np.cumsum(prompts.blocks, dtype=np.int64) - prompts.blocks + 1
    following = np.full(len(ids), NEVER, dtype=np.int64)
    _find_next_access(
        starts, vtime, first, future.starts, future.next, future.depth, future.blocks, following
    )
    records["next_access_vtime"] = following
    return records


@kernel
def _find_next_access(
    starts: Int64s,
    vtime: Int64s,
    first: int,
    run_starts: Int64s,
    run_next: Int32s,
    run_depth: Int32s,
    run_blocks: Int32s,
    following: Int64s,
) -> None:
    """Fill `following` with each block's next access; vtime[r] is that of r's first access."""
    for k in range(len(starts) - 1):
        for run in range(run_starts[first + k], run_starts[first + k + 1]):
            for depth in range(run_depth[run], run_depth[run] + run_blocks[run]):
                following[starts[k] + depth] = vtime[run_next[run]] + depth
