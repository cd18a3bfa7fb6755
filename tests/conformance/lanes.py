"""A queue of free blocks for vLLM that evicts TEL-safe blocks before the others."""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance.vllm_side import FreeKVCacheBlockQueue, KVCacheBlock


class SafeFirst:
    """Replaces vLLM's FreeKVCacheBlockQueue: unhashed blocks, then safe ones, then others.

    `safe` returns True for a block that is TEL-safe when it is freed.
    """

    def __init__(self, blocks: list[KVCacheBlock]) -> None:
        self.queues = [FreeKVCacheBlockQueue([]) for _ in range(3)]
        self.where: dict[int, int] = {}
        self.safe: Callable[[KVCacheBlock], bool] = lambda _: False
        self._add(0, blocks)

    @property
    def num_free_blocks(self) -> int:
        """Return the number of blocks in all queues."""
        return sum(queue.num_free_blocks for queue in self.queues)

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        """Take the first blocks."""
        taken: list[KVCacheBlock] = []
        for queue in self.queues:
            most = min(count - len(taken), queue.num_free_blocks)
            taken += queue.popleft_n(most)
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Remove a block from its queue."""
        self.queues[self.where[block.block_id]].remove(block)

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        """Free blocks without a hash."""
        self.queues[0].prepend_n(blocks)
        self.where |= dict.fromkeys((block.block_id for block in blocks), 0)

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        """Free blocks with a hash."""
        self._add(1, [block for block in blocks if self.safe(block)])
        self._add(2, [block for block in blocks if not self.safe(block)])

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return all free blocks, the next to be taken first."""
        return [block for queue in self.queues for block in queue.get_all_free_blocks()]

    def _add(self, queue: int, blocks: list[KVCacheBlock]) -> None:
        self.queues[queue].append_n(blocks)
        self.where |= dict.fromkeys((block.block_id for block in blocks), queue)
