"""vLLM's cache manager and the model, requests one at a time: hits and free blocks are the same."""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance.conversations import TokenRequest
from tests.conformance.kvscope_side import Model
from tests.conformance.vllm_side import (
    HASHES_AHEAD,
    KVCacheManager,
    Request,
    serve_alone,
    vllm_request,
)


class Contents:
    """Which content of the model each of vLLM's hashes stands for; a group has `nodes` of them."""

    def __init__(self, nodes: int = 0) -> None:
        self.nodes = nodes
        self.node: dict[bytes, int] = {}

    def learn(self, model: Model, number: int, request: Request) -> None:
        """Pair a finished request's hashes with its path."""
        path, parent = model.machine.requests[number], model.machine.parents
        node = int(path.leaf)
        for depth in range(int(path.length) - 1, -1, -1):
            block_hash = bytes(request.block_hashes[depth])
            assert self.node.setdefault(block_hash, node) == node
            node = int(parent[node])

    def free_blocks(self, cache: KVCacheManager) -> list[tuple[int, int]]:
        """Return (number from 0, content) of vLLM's free blocks, the next to be taken first."""
        queue = cache.block_pool.free_block_queue.get_all_free_blocks()
        hashes = [(block.block_id - 1, block.block_hash) for block in queue]
        # The last four bytes of a block's hash are the number of its group.
        return [
            (at, self.node[key[:-4]] + self.nodes * int.from_bytes(key[-4:], "big") if key else 0)
            for at, key in hashes
        ]


def compared(
    trace: list[TokenRequest],
    size: int,
    cache: KVCacheManager,
    model: Model,
    *,
    every: int = 1,
    junctions: bool = False,
    before_free: Callable[[Request], None] | None = None,
    drafts: int = 0,
    hashes: int = 1,
) -> list[int]:
    """Serve the requests on both sides and compare them; return the hit tokens of those served.

    Free blocks are compared after each `every`-th request: what is off once stays off. Where vLLM
    has several `hashes` in one of the model's blocks, that is which ones they are and whether they
    have a content: blocks of the trace that differ begin alike.
    """
    requests, groups = model.machine.requests, model.settings.groups
    contents = Contents(len(model.machine.holders) // len(groups.groups) if groups else 0)
    hit_tokens = []
    for number, tokens in enumerate(trace):
        if requests.oversized[number]:
            continue
        ahead = int(drafts > 0 and HASHES_AHEAD)
        request = vllm_request(number, tokens, size // hashes, ahead=ahead)
        hits = serve_alone(cache, request, tokens, before_free, drafts)
        model.finish(number + 1)
        assert hits == requests.hits[number] * size, number
        assert not junctions or request.shared_prefix_boundary == requests.junction[number], number
        mine = model.free_blocks() if number % every == every - 1 else None
        if hashes > 1:
            queue = cache.block_pool.free_block_queue.get_all_free_blocks()
            theirs = [(block.block_id - 1, block.block_hash is not None) for block in queue]
            mine = mine and [(block, content > 0) for block, content in mine]
        else:
            contents.learn(model, number, request)
            theirs = contents.free_blocks(cache) if mine else []
        assert mine is None or mine == theirs, number
        hit_tokens.append(hits)
    assert any(hit_tokens)
    return hit_tokens
