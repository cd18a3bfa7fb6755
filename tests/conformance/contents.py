"""The contents of vLLM's free blocks in the words of kvscope's model."""

from __future__ import annotations

from tests.conformance.kvscope_side import Model
from tests.conformance.vllm_side import KVCacheManager, Request


class Contents:
    """Which content of the model each of vLLM's hashes stands for; a group has `nodes` of them."""

    def __init__(self, nodes: int = 0) -> None:
        self.nodes = nodes
        self.node: dict[bytes, int] = {}

    def learn(self, model: Model, number: int, request: Request) -> None:
        """Pair a finished request's hashes with its path."""
        path, parent = model.machine.requests[number], model.machine.nodes.parent
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
