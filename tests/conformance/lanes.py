"""A queue of free blocks for vLLM that gives TEL-safe ones up before the others."""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance.vllm_side import FreeKVCacheBlockQueue, KVCacheBlock


class SafeFirst:
    """In the place of vLLM's FreeKVCacheBlockQueue: unhashed blocks, then safe ones, then others.

    `safe` tells of a block that is being freed whether it is safe.
    """

    def __init__(self, blocks: list[KVCacheBlock]) -> None:
        self.queues = [FreeKVCacheBlockQueue([]) for _ in range(3)]
        self.where: dict[int, int] = {}
        self.safe: Callable[[KVCacheBlock], bool] = lambda _: False
        self._add(0, blocks)

    @property
    def num_free_blocks(self) -> int:
        """Blocks in all queues."""
        return sum(queue.num_free_blocks for queue in self.queues)

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        """Take the first blocks."""
        taken: list[KVCacheBlock] = []
        for queue in self.queues:
            most = min(count - len(taken), queue.num_free_blocks)
            taken += queue.popleft_n(most)
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out from where it is."""
        self.queues[self.where[block.block_id]].remove(block)

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        """Blocks without a hash become free."""
        self.queues[0].prepend_n(blocks)
        self.where |= dict.fromkeys((block.block_id for block in blocks), 0)

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        """Blocks with a hash become free."""
        self._add(1, [block for block in blocks if self.safe(block)])
        self._add(2, [block for block in blocks if not self.safe(block)])

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """All of them, the next to be taken first."""
        return [block for queue in self.queues for block in queue.get_all_free_blocks()]

    def _add(self, queue: int, blocks: list[KVCacheBlock]) -> None:
        self.queues[queue].append_n(blocks)
        self.where |= dict.fromkeys((block.block_id for block in blocks), queue)
