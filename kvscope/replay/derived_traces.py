"""Traces derived from a trace: some of its requests, other arrival times, isolated tenants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s
from kvscope.core.errors import InputError
from kvscope.core.jit import kernel
from kvscope.core.prefix import paths
from kvscope.core.runs import Tenant
from kvscope.core.trace import Prompts
from kvscope.ingest.clocks import SessionStarts, placed
from kvscope.ingest.lineage import conversations
from kvscope.ingest.trie import Trie

_BY_REQUEST = ("arrival_s", "input_tokens", "output_tokens", "user", "category", "clock")
_LENGTHS = ("blocks", "full_blocks", "cached_blocks", "carried_blocks")


def select(prompts: Prompts, requests: Int64s) -> Prompts:
    """Return the requests with these numbers (ascending), over the blocks that they need.

    Blocks, requests and conversations are numbered anew, in the same order; times, users,
    categories and measurements stay. A parent that was not selected becomes -1.
    """
    needed = needed_blocks(prompts, requests)
    block = (np.cumsum(needed) - 1).astype(np.int32)
    request = np.full(len(prompts.leaf) + 1, -1, dtype=np.int32)  # the last entry: no parent
    request[requests] = np.arange(len(requests), dtype=np.int32)
    _, first, conversation = np.unique(
        prompts.conversation[requests], return_index=True, return_inverse=True
    )
    columns = {name: getattr(prompts, name)[requests] for name in (*_BY_REQUEST, *_LENGTHS)}
    return replace(
        prompts,
        conversation=first[conversation].astype(np.int32),
        parent=request[prompts.parent[requests]],
        leaf=block[prompts.leaf[requests]],
        carried_leaf=block[prompts.carried_leaf[requests]],
        block_parent=block[prompts.block_parent[needed]],
        measurements=prompts.measurements and prompts.measurements.select(requests),
        directives=prompts.directives and prompts.directives.select(requests),
        **columns,
    )


def needed_blocks(prompts: Prompts, requests: Int64s) -> Bools:
    """Return a mask of the blocks on the paths of these requests (N + 1 entries, root first)."""
    needed = np.zeros(len(prompts.block_parent), dtype=np.bool_)
    needed[0] = True
    _mark_needed(prompts.block_parent, prompts.leaf[requests], needed)
    _mark_needed(prompts.block_parent, prompts.carried_leaf[requests], needed)
    return needed


def at_rate(prompts: Prompts, factor: float) -> Prompts:
    """Return the trace with requests that arrive `factor` times as fast."""
    return replace(prompts, arrival_s=prompts.arrival_s / factor) if factor != 1 else prompts


def begun(prompts: Prompts, starts: SessionStarts) -> Prompts:
    """Return the trace with new start times, by `starts`, for sessions with unknown start times.

    These are the sessions numbered in `Prompts.clock`, of which there must be one at least. Gaps
    within a session stay; requests are numbered anew in order of arrival.
    """
    return retimed(
        prompts,
        placed(prompts.arrival_s, prompts.clock, starts.sessions_per_s, starts.seed),
    )[0]


def retimed(prompts: Prompts, arrival_s: Float64s) -> tuple[Prompts, Int64s]:
    """Return the trace with other arrivals, renumbered in their order, and the old numbers."""
    order = np.argsort(arrival_s, kind="stable")
    request = np.full(len(order) + 1, -1, dtype=np.int32)  # the last entry: no parent
    request[order] = np.arange(len(order), dtype=np.int32)
    parent = request[prompts.parent[order]]
    names = (*_BY_REQUEST, *_LENGTHS, "leaf", "carried_leaf")
    columns = {name: getattr(prompts, name)[order] for name in names}
    columns |= {"arrival_s": arrival_s[order], "parent": parent}
    made = replace(
        prompts,
        conversation=conversations(parent)[0],
        measurements=prompts.measurements and prompts.measurements.select(order),
        directives=prompts.directives and prompts.directives.select(order),
        **columns,
    )
    return made, order


@kernel
def _mark_needed(block_parent: Int32s, leaf: Int32s, needed: Bools) -> None:
    """Mark in `needed` the blocks from each leaf up to the first marked one; the root is marked."""
    for last in leaf:
        block = last
        while not needed[block]:
            needed[block] = True
            block = block_parent[block]


_AT_A_TIME = 1 << 14  # requests whose paths are written out together: bounds the memory


def isolate(prompts: Prompts, by: Tenant) -> Prompts:
    """Return the requests over a new trie in which no two tenants share a block.

    vLLM's `cache_salt` does the same: it enters the hash of a prompt's first block and so all
    hashes after it. Requests without a user share one tenant, as do requests without a salt. Raises
    InputError where the trace names no users at all.
    """
    ends = (prompts.leaf, prompts.blocks), (prompts.carried_leaf, prompts.carried_blocks)
    salt = (_tenants(prompts, by) + np.int64(1)) * len(prompts.block_parent)
    block_parent, (leaf, carried_leaf) = salted(prompts.block_parent, ends, salt)
    return replace(prompts, leaf=leaf, carried_leaf=carried_leaf, block_parent=block_parent)


def salted(
    block_parent: Int32s,
    ends: Sequence[tuple[Int32s, Int32s]],
    salt: Int64s,
    ids: Int64s | None = None,
) -> tuple[Int32s, list[Int32s]]:
    """Return a trie in which R requests with different salts share no blocks, and its `ends`.

    `ends` are pairs: the last blocks of R paths (which are returned for the new trie), and their
    lengths in blocks. Children of a block with equal `ids` (N + 1 entries, the root's first) become
    one: hash ids merge blocks; by default, the blocks' own numbers merge none. The salt is added to
    the id of a path's first block.
    """
    trie, leaves = Trie(), [np.zeros_like(leaf) for leaf, _ in ends]
    for start in range(0, len(salt), _AT_A_TIME):
        part = slice(start, start + _AT_A_TIME)
        for new, (leaf, length) in zip(leaves, ends, strict=True):
            starts, blocks = paths(block_parent, leaf[part], length[part])
            named = blocks.astype(np.int64) if ids is None else ids[blocks]
            has_blocks = length[part] > 0
            named[starts[:-1][has_blocks]] += salt[part][has_blocks]
            new[part] = trie.intern(starts, named)
    return trie.parent.copy(), leaves


def _tenants(prompts: Prompts, by: Tenant) -> Int32s:
    if by == "conversation":
        return prompts.conversation
    if not (prompts.user >= 0).any():
        raise InputError(
            "the trace names no users",
            where="--isolate user",
            remedy="keep conversations apart with `--isolate conversation`",
        )
    return prompts.user
