"""Requests on the simulated prefix tree in a given order, as a test states it, without times."""

from __future__ import annotations

import numpy as np

from kvscope.core.arrays import Bools, Int64s, Records
from kvscope.core.jit import by_reference, callable_in_kernels, kernel
from kvscope.policies.base import Policy
from kvscope.replay.replay import Replay
from kvscope.replay.traffic import Traffic
from kvscope.sglang_sim.cache import make_room
from kvscope.sglang_sim.replay import CHUNK_TOKENS, empty_server
from kvscope.sglang_sim.requests import begin, blocks_of, checkpoint, leave, take
from kvscope.sglang_sim.tree import NONE, PrefixTree

START, FINISH = 0, 1


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
    SGLang does not have, and ValueError where those that run at once do not fit.
    """
    tree, requests = empty_server(traffic, policy, capacity_blocks)
    page = traffic.block_size if paged else 1
    order = np.arange(2 * len(requests)) if order is None else order
    chunk = max(chunk_tokens // page, 1) * page
    if run(tree, requests, order, chunk, page) < len(order):
        raise ValueError(f"those that run at once do not fit into {capacity_blocks:,} blocks")
    hits, evictions = requests.hit.astype(np.int32), int(tree.state[0].evictions)
    return Replay(policy, capacity_blocks, hits, evictions, _cached(tree))


def _cached(tree: PrefixTree) -> Bools:
    """Return which blocks of the trie the tree holds."""
    cached = np.zeros(len(tree.parents), dtype=np.bool_)
    for node in set(tree.at[tree.at != NONE].tolist()):
        block = int(tree.nodes[node].bottom)
        for _ in range(int(tree.nodes[node].length)):
            cached[block] = True
            block = int(tree.parents[block])
    return cached


@kernel
def run(
    tree: PrefixTree,
    requests: Records,
    order: Int64s,
    chunk: int,
    page: int,
) -> int:
    """Start and finish requests, and write their hits; return how many events took place."""
    tree = by_reference(tree)
    for at in range(len(order)):
        request = order[at] >> 1
        if order[at] & 1 == FINISH:
            if requests[request].node != NONE and not finish(tree, requests, request, page):
                return at
        elif blocks_of(tree, requests[request].end) + ready(page) <= tree.state[0].capacity:
            begin(tree, requests, request, requests[request].look)
            requests[request].hit = requests[request].shared
            if not prefill(tree, requests, request, chunk, page):
                return at
    return len(order)


@callable_in_kernels
def ready(page: int) -> int:
    """Return the blocks that are kept free for the next page."""
    return 1 if page > 1 else 0


@callable_in_kernels
def prefill(
    tree: PrefixTree,
    requests: Records,
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
        if not make_room(tree, needed + ready(page)):
            return False
        take(tree, requests, request, needed)
        computed = end
        if computed < record.end:  # else it finishes with this chunk
            blocks = min(computed // size, record.blocks)
            checkpoint(tree, requests, request, blocks)
    return True


@callable_in_kernels
def finish(tree: PrefixTree, requests: Records, request: int, page: int) -> bool:
    """Compute the outputs of a request, insert and unlock it; return False if there is no room."""
    record, size = requests[request], tree.state[0].block_size
    needed = blocks_of(tree, record.end) - record.shared - record.owned
    if record.end > record.prompt:
        if not make_room(tree, needed + (ready(page) if (record.end - 1) % size > 0 else 0)):
            return False
        take(tree, requests, request, needed)
    checkpoint(tree, requests, request, record.blocks)
    leave(tree, requests, request)
    return True
