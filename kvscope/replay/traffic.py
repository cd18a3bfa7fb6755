"""Input of replays, as columns: the path of each request, and the facts visible to policies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s
from kvscope.core.errors import UsageError
from kvscope.core.hits import HitDefinition
from kvscope.core.prefix import paths
from kvscope.core.trace import PromptLengths, PromptPaths, Prompts
from kvscope.policies.base import ENDS


class Walk(NamedTuple):
    """The blocks that each of R requests looks up and leaves cached, in a trie of N blocks.

    Request r has the path of `length[r]` blocks that ends at `leaf[r]`. It looks up the first
    `look[r]` of them, and leaves all cached, with `anonymous[r]` further blocks that no request can
    hit, such as unrepeated outputs. `block_parent` (N + 1 entries) is the trie.
    """

    block_parent: Int32s
    leaf: Int32s
    length: Int32s
    look: Int32s
    anonymous: Int32s


class Traffic(NamedTuple):
    """A `Walk` with the facts that policies may see, R requests in order of arrival.

    `parent[r]` is the previous turn, -1 without one; `next_prompt_tokens` the tokens that the next
    turn adds, for oracles. `cuts` (R x P, ascending) are the depths that cut a path into P + 1
    parts, for policies whose table has rows for these; P is 0 for all others.
    """

    block_size: int
    block_parent: Int32s
    leaf: Int32s
    length: Int32s
    look: Int32s
    anonymous: Int32s
    arrival_s: Float64s
    input_tokens: Int32s
    history_tokens: Int64s
    category: Int32s
    parent: Int32s
    next_prompt_tokens: Int64s
    cuts: Int32s

    def of_requests(self, requests: Int64s | Bools | slice) -> Traffic:
        """Return some of the requests over the same blocks; `parent` has the old numbers."""
        columns = {
            name: column[requests]
            for name, column in self._asdict().items()
            if name not in {"block_size", "block_parent"}
        }
        return self._replace(**columns)


def walk(prompts: PromptPaths, definition: HitDefinition) -> Walk:
    """Return the paths that requests look up and leave cached, as `definition` counts them.

    Raises UsageError for a definition that contradicts itself.
    """
    if definition.partial and definition.outputs == "carried":
        raise UsageError(
            "a partial last block cannot be kept where outputs fill it",
            remedy="take outputs 'ignored' with partial blocks kept",
        )
    if definition.partial:
        leaf = prompts.leaf
    else:
        leaf = prompts.carried_leaf if definition.outputs == "carried" else prompts.full_leaf
    steps = walk_lengths(prompts, definition)
    return Walk(prompts.block_parent, np.ascontiguousarray(leaf, dtype=np.int32), *steps)


class WalkLengths(NamedTuple):
    """The lengths of a `Walk`, without the trie and the paths."""

    length: Int32s
    look: Int32s
    anonymous: Int32s


def walk_lengths(prompts: PromptLengths, definition: HitDefinition) -> WalkLengths:
    """Return the numbers of blocks that each request looks up and leaves cached."""
    size = prompts.block_size
    look = length = prompts.blocks
    anonymous = np.zeros_like(length)
    if not definition.partial:
        look = length = prompts.full_blocks
        anonymous = prompts.input_tokens // size - length
        if definition.outputs == "carried":
            length = prompts.carried_blocks
            anonymous = prompts.cached_blocks - length
    if definition.last_token_rule:
        look = np.minimum(look, (prompts.input_tokens - 1) // size)
    columns = (length, look, anonymous)
    return WalkLengths(*(np.ascontiguousarray(column, dtype=np.int32) for column in columns))


def traffic(prompts: Prompts, definition: HitDefinition) -> Traffic:
    """Return the traffic of a trace as `definition` counts its hits."""
    history = prompts.input_tokens.astype(np.int64) + prompts.output_tokens
    steps = walk(prompts, definition)
    by_request = Traffic(
        block_size=prompts.block_size,
        **steps._asdict(),
        arrival_s=prompts.arrival_s,
        input_tokens=prompts.input_tokens,
        history_tokens=history,
        category=prompts.category,
        parent=prompts.parent,
        next_prompt_tokens=next_prompts(prompts.parent, prompts.input_tokens, history),
        cuts=uncut(len(prompts.leaf)),
    )
    if not definition.flat:
        return by_request
    steps, request, _ = by_access(steps)
    facts = ("arrival_s", "input_tokens", "history_tokens", "category", "next_prompt_tokens")
    columns = {name: getattr(by_request, name)[request] for name in facts}
    return by_request._replace(
        **steps._asdict(), **columns, parent=np.full_like(request, -1), cuts=uncut(len(request))
    )


def with_named_blocks(known: Traffic) -> Traffic:
    """Return traffic whose anonymous blocks are nodes of their own, below those of the trie.

    Simulated engines need them: they allocate and evict blocks that no request can hit, too.
    """
    fresh = known.anonymous.astype(np.int64)
    nodes = len(known.block_parent)
    ends = np.cumsum(fresh)
    first = nodes + ends - fresh
    parent = np.arange(-1, nodes + int(fresh.sum()) - 1, dtype=np.int32)
    parent[:nodes] = known.block_parent
    grown = fresh > 0
    parent[first[grown]] = known.leaf[grown]
    return known._replace(
        block_parent=parent,
        leaf=np.where(grown, nodes + ends - 1, known.leaf).astype(np.int32),
        length=(known.length + fresh).astype(np.int32),
        anonymous=np.zeros_like(known.anonymous),
    )


def uncut(requests: int) -> Int32s:
    """Return cuts (R x 0) that leave the path of each of R `requests` in one part."""
    return np.zeros((requests, 0), dtype=np.int32)


def next_prompts(parent: Int32s, input_tokens: Int32s, history_tokens: Int64s) -> Int64s:
    """Return the tokens that each request's next turn adds to its history; ENDS without one.

    If several turns continue one request, the earliest counts. A truncated history adds 0.
    """
    added = np.full(len(parent), ENDS, dtype=np.int64)
    later = np.flatnonzero(parent >= 0)[::-1]  # the earliest is written last and stays
    before = parent[later]
    added[before] = np.maximum(input_tokens[later] - history_tokens[before], 0)
    return added


def by_access(steps: Walk) -> tuple[Walk, Int32s, Int32s]:
    """Return every access as a request of one block, for a cache that knows no prefixes.

    Return also the request that makes each access, and the depth of the block in its path.
    """
    accesses = steps.length + steps.anonymous
    request = np.repeat(np.arange(len(accesses), dtype=np.int32), accesses)
    starts = np.cumsum(accesses) - accesses
    depth = (np.arange(len(request)) - np.repeat(starts, accesses)).astype(np.int32)
    named = depth < steps.length[request]
    leaf = np.zeros(len(request), dtype=np.int32)
    _, leaf[named] = paths(steps.block_parent, steps.leaf, steps.length)
    alone = Walk(
        block_parent=np.zeros_like(steps.block_parent),
        leaf=leaf,
        length=named.astype(np.int32),
        look=(depth < steps.look[request]).astype(np.int32),
        anonymous=(~named).astype(np.int32),
    )
    return alone, request, depth
