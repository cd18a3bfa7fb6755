"""Requests on SGLang's prefix tree, in the order in which they start and finish.

A request looks up all but its last token, locks what it found, gets room for its prompt chunk by
chunk, and inserts each chunk once it is computed. Outputs take their room as they come, and join
the tree when the request finishes, as a node of their own. A request that inserts blocks which the
tree has already frees its own. With pages of several tokens a free one is kept ready at all times.

Source: SGLang 0.5.23, srt/managers/schedule_policy.py (PrefillAdder), srt/mem_cache/allocation.py
(alloc_for_extend, alloc_for_decode), unified_radix_cache.py (checkpoint_into_tree) and common.py
(release_kv_cache).
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s, Records, record_type
from kvscope.core.errors import UsageError
from kvscope.core.jit import by_reference, callable_in_kernels, kernel
from kvscope.core.prefix import Paths, paths
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.base import GUARD, TTL, Policy
from kvscope.policies.tlru import NEXT_PROMPT_TOKENS, XI_PERCENTILE, XI_TOKENS
from kvscope.replay.costs import Costs, costs, decode_s, prefill_s
from kvscope.replay.kernels.keys import Heap, drop_lowest, empty_heap, put
from kvscope.replay.replay import Replay
from kvscope.replay.traffic import Traffic, with_named_blocks
from kvscope.sglang_sim.tree import (
    FIFO,
    LFU,
    LRU,
    NONE,
    PRIORITY,
    SLRU,
    TLRU,
    PrefixTree,
    empty_tree,
    insert,
    lock,
    look_up,
    make_room,
)

CHUNK_TOKENS = 8192
"""Tokens of a prompt that are computed at once, as SGLang chooses on GPUs of 60 to 90 GiB."""
START, FINISH = 0, 1
_POLICIES = {
    "lru": LRU, "fifo": FIFO, "lfu": LFU, "slru": SLRU, "tlru": TLRU, "priority": PRIORITY
}  # fmt: skip
_ABSENT = {TTL.name: math.inf, GUARD.name: 0.0, XI_PERCENTILE.name: 0.0}
"""Parameters that SGLang does not have, and their values that do nothing."""

REQUEST = record_type("prompt end look blocks node shared inserted owned")
"""A request of `prompt` tokens, `end` with the KV of its outputs; it leaves `blocks` cached.

Its first look-up finds at most `look` blocks. It runs with a lock on `node`, NONE where it does
not run; its `shared` first blocks are in the tree, of which it `inserted` as many, and it has
`owned` blocks beside it.
"""


def sglang_has(policy: Policy) -> bool:
    """Return whether SGLang has the policy, with these values of its parameters."""
    return policy.name in _POLICIES and all(
        policy.values.get(name, nothing) == nothing for name, nothing in _ABSENT.items()
    )


class TreeService(Struct, frozen=True):
    """How a server with SGLang's cache serves R requests: what they hit, and when.

    A request's prefill begins at `begin_s`, its first token comes at `token_s` and its last at
    `end_s`, in seconds of the trace; all are NaN for rejected requests.
    """

    hit_blocks: Int32s
    begin_s: Float64s
    token_s: Float64s
    end_s: Float64s
    evictions: int


class _Server(NamedTuple):
    """An empty cache, and requests that wait for it."""

    tree: PrefixTree
    requests: Records
    parents: Int32s
    prompts: Paths

    @classmethod
    def of(cls, traffic: Traffic, policy: Policy, capacity_blocks: int) -> _Server:
        """Return an empty cache of so many blocks. Raises UsageError for policies it lacks."""
        if not sglang_has(policy):
            raise UsageError(f"SGLang has no {policy.name} of these parameters")
        traffic, values = with_named_blocks(traffic), policy.values
        tree = empty_tree(
            len(traffic.block_parent),
            min(capacity_blocks, len(traffic.block_parent)) + 1,
            policy=_POLICIES[policy.name],
            block_size=traffic.block_size,
            capacity=capacity_blocks,
            protected_uses=values.get("protected_uses", 0.0),
            xi_tokens=values.get(XI_TOKENS.name, 0.0),
            next_prompt_tokens=values.get(NEXT_PROMPT_TOKENS.name, 0.0),
        )
        requests = np.zeros(len(traffic.leaf), dtype=REQUEST).view(np.recarray)
        requests.prompt, requests.node = traffic.input_tokens, NONE
        requests.end = np.maximum(traffic.input_tokens, traffic.history_tokens - 1)
        requests.look, requests.blocks = traffic.look, traffic.length
        prompts = paths(traffic.block_parent, traffic.leaf, traffic.length)
        return cls(tree, requests, traffic.block_parent, prompts)


def serve_tree(
    traffic: Traffic,
    policy: Policy,
    capacity_blocks: int,
    profile: LatencyProfile,
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    rate_scale: float = 1.0,
) -> TreeService:
    """Serve traffic with SGLang's cache of so many blocks, which running requests share.

    Prefills run first come, first served, one at a time, and requests decode while none runs. One
    begins once there is room for all that it and the running ones still need. What a request takes
    outside of the engine's steps keeps no other one waiting. Requests longer than the cache are
    rejected. Pages have one token. Raises UsageError for a policy that SGLang lacks.
    """
    server = _Server.of(traffic, policy, capacity_blocks)
    hits = np.zeros(len(server.requests), dtype=np.int32)
    begin_s, token_s, end_s = np.full((3, len(hits)), np.nan)
    running = empty_heap(len(hits))
    arrival_s = traffic.arrival_s / rate_scale
    outside_s = profile.request_s
    cost = costs(replace(profile, base_s=profile.base_s - outside_s, request_s=0.0))
    _serve(*server, arrival_s, cost, running, chunk_tokens, hits, begin_s, token_s, end_s)
    evictions = int(server.tree.state[0].evictions)
    return TreeService(hits, begin_s, token_s + outside_s, end_s + outside_s, evictions)


def replay_tree(
    traffic: Traffic,
    policy: Policy,
    capacity_blocks: int,
    *,
    paged: bool = False,
    chunk_tokens: int = CHUNK_TOKENS,
    order: Int64s | None = None,
) -> Replay:
    """Replay traffic in SGLang's cache of so many blocks, in a given order.

    A block is one page if `paged`, else as many pages of one token as it has tokens. `order` lists
    what happens, 2 r + START or 2 r + FINISH of request r; by default requests run one by one.
    Requests that are longer than the cache are rejected. Raises UsageError for a policy that
    SGLang does not have, and where those that run at once do not fit.
    """
    server = _Server.of(traffic, policy, capacity_blocks)
    page = traffic.block_size if paged else 1
    hits = np.zeros(len(server.requests), dtype=np.int32)
    order = np.arange(2 * len(hits)) if order is None else order
    chunk = max(chunk_tokens // page, 1) * page
    if _run(*server, order, chunk, page, hits) < len(order):
        raise UsageError(
            f"the requests that run at once do not fit into {capacity_blocks:,} blocks",
            remedy="let fewer run at once",
        )
    tree = server.tree
    find_cached = partial(_cached, tree, server.parents)
    return Replay(policy, capacity_blocks, hits, int(tree.state[0].evictions), find_cached)


def _cached(tree: PrefixTree, block_parent: Int32s) -> Bools:
    """Return which blocks of the trie the tree holds."""
    cached = np.zeros(len(block_parent), dtype=np.bool_)
    for node in set(tree.at[tree.at != NONE].tolist()):
        block = int(tree.nodes[node].bottom)
        for _ in range(int(tree.nodes[node].length)):
            cached[block] = True
            block = int(block_parent[block])
    return cached


@kernel
def _run(
    tree: PrefixTree,
    requests: Records,
    parents: Int32s,
    prompts: Paths,
    order: Int64s,
    chunk: int,
    page: int,
    hits: Int32s,
) -> int:
    """Start and finish requests, and write their hits; return how many events took place."""
    tree, prompts = by_reference(tree), by_reference(prompts)
    for at in range(len(order)):
        request = order[at] >> 1
        if order[at] & 1 == FINISH:
            if requests[request].node != NONE and not finish(
                tree, requests, parents, prompts, request, page
            ):
                return at
        elif blocks_of(tree, requests[request].end) + ready(page) <= tree.state[0].capacity:
            hits[request] = begin(tree, requests, parents, prompts, request)
            if not prefill(tree, requests, parents, prompts, request, chunk, page):
                return at
    return len(order)


@kernel
def _serve(
    tree: PrefixTree,
    requests: Records,
    parents: Int32s,
    prompts: Paths,
    arrival_s: Float64s,
    cost: Costs,
    running: Heap,
    chunk: int,
    hits: Int32s,
    begin_s: Float64s,
    token_s: Float64s,
    end_s: Float64s,
) -> None:
    """Serve requests one prefill at a time, and write what each hits and when it is computed.

    The lowest of `running` finishes once requests have decoded for so many seconds.
    """
    tree, prompts, running = by_reference(tree), by_reference(prompts), by_reference(running)
    state, free_s, decoded_s = tree.state[0], 0.0, 0.0
    for request in range(len(hits)):
        record = requests[request]
        needed = blocks_of(tree, record.end)
        if needed > state.capacity:
            continue
        start_s = max(arrival_s[request], free_s)
        decoded_s += start_s - free_s
        while running.size[0] > 0 and running.keys[0] <= decoded_s:
            end_s[running.requests[0]] = start_s - (decoded_s - running.keys[0])
            finish_first(tree, requests, parents, prompts, running)
        hit = begin(tree, requests, parents, prompts, request)
        while state.locked + state.owned + state.promised + needed - hit > state.capacity:
            lock(tree, record.node, -1)
            record.node = NONE
            start_s += running.keys[0] - decoded_s
            decoded_s = running.keys[0]
            end_s[running.requests[0]] = start_s
            finish_first(tree, requests, parents, prompts, running)
            hit = begin(tree, requests, parents, prompts, request)
        hits[request], begin_s[request] = hit, start_s
        prefill(tree, requests, parents, prompts, request, chunk, 1)
        state.promised += needed - record.shared - record.owned
        cached = min(hit * state.block_size, record.prompt)
        free_s = start_s + prefill_s(cost, record.prompt - cached, cached)
        token_s[request] = free_s
        each_s = decode_s(cost, running.size[0] + 1, record.prompt)
        put(running, decoded_s + (record.end - record.prompt) * each_s, request)
    while running.size[0] > 0:
        end_s[running.requests[0]] = free_s + running.keys[0] - decoded_s
        finish_first(tree, requests, parents, prompts, running)


@callable_in_kernels
def finish_first(
    tree: PrefixTree, requests: Records, parents: Int32s, prompts: Paths, running: Heap
) -> None:
    """Finish the running request that has the least left to decode."""
    request = running.requests[0]
    drop_lowest(running)
    record = requests[request]
    tree.state[0].promised -= blocks_of(tree, record.end) - record.shared - record.owned
    finish(tree, requests, parents, prompts, request, 1)


@callable_in_kernels
def blocks_of(tree: PrefixTree, tokens: int) -> int:
    """Return the blocks that hold so many tokens."""
    return -(-tokens // tree.state[0].block_size)  # type: ignore[no-any-return]


@callable_in_kernels
def ready(page: int) -> int:
    """Return the blocks that are kept free for the next page."""
    return 1 if page > 1 else 0


@callable_in_kernels
def begin(
    tree: PrefixTree, requests: Records, parents: Int32s, prompts: Paths, request: int
) -> int:
    """Look a request up, and lock what it hits; return how many blocks."""
    record = requests[request]
    record.node = look_up(tree, parents, prompts.blocks, prompts.starts[request], record.look)
    hit = tree.nodes[record.node].start + tree.nodes[record.node].length
    lock(tree, record.node, 1)
    record.shared = hit
    record.inserted = record.owned = 0
    return hit  # type: ignore[no-any-return]


@callable_in_kernels
def prefill(
    tree: PrefixTree,
    requests: Records,
    parents: Int32s,
    prompts: Paths,
    request: int,
    chunk: int,
    page: int,
) -> bool:
    """Compute a prompt in chunks of so many tokens at most; return False if there is no room."""
    record, size = requests[request], tree.state[0].block_size
    computed = record.shared * size
    while computed < record.prompt:
        end = record.prompt
        if end - computed > chunk:
            end = (computed + chunk) // page * page
        needed = blocks_of(tree, end) - record.shared - record.owned
        if not take(tree, requests, request, needed, ready(page)):
            return False
        computed = end
        if computed < record.end:  # else it finishes with this chunk
            blocks = min(computed // size, record.blocks)
            share(tree, requests, parents, prompts, request, blocks)
    return True


@callable_in_kernels
def finish(
    tree: PrefixTree, requests: Records, parents: Int32s, prompts: Paths, request: int, page: int
) -> bool:
    """Compute the outputs of a request, insert and unlock it; return False if there is no room.

    Its prompt is inserted again, with a higher priority: outputs are a node of their own.
    """
    record, size = requests[request], tree.state[0].block_size
    kept_ready = ready(page) if (record.end - 1) % size > 0 else 0
    needed = blocks_of(tree, record.end) - record.shared - record.owned
    if record.end > record.prompt and not take(tree, requests, request, needed, kept_ready):
        return False
    share(tree, requests, parents, prompts, request, record.blocks)
    whole = record.prompt // size
    if 0 < whole < record.blocks:
        first = prompts.starts[request]
        insert(tree, parents, prompts.blocks, first, whole, whole, 1)
    tree.state[0].owned -= record.owned
    lock(tree, record.node, -1)
    record.node = NONE
    return True


@callable_in_kernels
def take(tree: PrefixTree, requests: Records, request: int, blocks: int, kept_ready: int) -> bool:
    """Give a request so many blocks; return False if others need them."""
    if not make_room(tree, blocks + kept_ready):
        return False
    requests[request].owned += blocks
    tree.state[0].owned += blocks
    return True


@callable_in_kernels
def share(
    tree: PrefixTree, requests: Records, parents: Int32s, prompts: Paths, request: int, blocks: int
) -> None:
    """Insert the first blocks of a running request, which locks them in the tree from then on."""
    record = requests[request]
    node = insert(
        tree, parents, prompts.blocks, prompts.starts[request], blocks, record.inserted, 0
    )
    record.owned -= blocks - record.shared
    tree.state[0].owned -= blocks - record.shared
    record.shared = blocks
    record.inserted = max(record.inserted, blocks)
    lock(tree, node, 1)
    lock(tree, record.node, -1)
    record.node = node
