"""The queue of free blocks that vLLM calls: the policy's order, and vLLM's own after any failure.

A record of the free blocks, one number per block, is separate from the policy's lists. It alone
decides which blocks vLLM's queue gets after a failure, so that an error in the middle of a call
neither loses a block nor returns it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, TypeVar

from kvscope.learning.observer import Observer
from kvscope.vllm_plugin.free_blocks import Block, FreeBlocks

Method = TypeVar("Method", bound=Callable[..., Any])


def _guarded(by_policy: Method) -> Method:
    """Return a method that runs `by_policy`, or after any failure vLLM's method of that name."""
    name = by_policy.__name__

    @wraps(by_policy)
    def method(self: GuardedQueue, *of: Any) -> Any:
        if not self.observer.broken:
            try:
                result = by_policy(self, *of)
            except Exception as error:  # noqa: BLE001  (vLLM goes on whatever this is)
                self.observer.fail(error)
            if not self.observer.broken:  # also by an event inside of the call
                return result
        return getattr(self.lru(), name)(*of)

    return method  # type: ignore[return-value]


class GuardedQueue:
    """Replaces vLLM's FreeKVCacheBlockQueue by `ordered`, until its `observer` is broken.

    `blocks` are all blocks of the pool in the order of their ids, `free` the free ones, the next to
    be taken first; both agree with `ordered`. `lru` makes vLLM's own queue of the free blocks in
    LRU's order; it is called when vLLM calls the queue, never inside a call of kvscope: the two
    queues link blocks through the same fields.
    """

    def __init__(
        self,
        ordered: FreeBlocks,
        blocks: Sequence[Block],
        free: Sequence[Block],
        observer: Observer,
        lru: Callable[[list[Block]], Any],
    ) -> None:
        self.observer = observer
        self._ordered, self._blocks, self._make_lru = ordered, blocks, lru
        self._lru: Any = None
        self._free_blocks = len(free)
        # A block's place in LRU's order: 0 in use, below 0 in front, where blocks without a hash go
        self._place = [0] * len(blocks)
        self._front, self._back = -len(free), 0
        for place, block in enumerate(free, start=self._front):
            self._place[block.block_id] = place

    @property
    def num_free_blocks(self) -> int:
        """Return the number of free blocks."""
        return self._free_blocks if self._lru is None else int(self._lru.num_free_blocks)

    def popleft(self) -> Block:
        """Remove and return the first block."""
        return self.popleft_n(1)[0]

    @_guarded
    def popleft_n(self, count: int) -> list[Block]:
        """Remove and return the first `count` blocks."""
        place = self._place
        taken = self._ordered.popleft_n(count)
        if self.observer.broken:
            return taken
        numbers = [block.block_id for block in taken]
        if len(set(numbers)) != count or 0 in map(place.__getitem__, numbers):
            raise RuntimeError(f"{count} blocks wanted, blocks {numbers} taken")
        for number in numbers:
            place[number] = 0
        self._free_blocks -= count
        return taken

    @_guarded
    def remove(self, block: Block) -> None:
        """Remove a free block that a request hit."""
        if not self._place[block.block_id]:
            raise RuntimeError(f"remove() called on a block that is not free: {block}")
        self._ordered.remove(block)
        if not self.observer.broken:
            self._place[block.block_id] = 0
            self._free_blocks -= 1

    def append(self, block: Block) -> None:
        """Add a freed block with a hash."""
        self.append_n([block])

    @_guarded
    def append_n(self, blocks: list[Block]) -> None:
        """Add freed blocks with a hash, in the order in which they will be taken."""
        self._ordered.append_n(blocks)
        if not self.observer.broken:
            for place, block in enumerate(blocks, start=self._back + 1):
                self._place[block.block_id] = place
            self._back += len(blocks)
            self._free_blocks += len(blocks)

    @_guarded
    def prepend_n(self, blocks: list[Block]) -> None:
        """Add freed blocks without a hash, in the order in which they will be taken."""
        self._ordered.prepend_n(blocks)
        if not self.observer.broken:
            self._front -= len(blocks)
            for place, block in enumerate(blocks, start=self._front):
                self._place[block.block_id] = place
            self._free_blocks += len(blocks)

    @_guarded
    def get_all_free_blocks(self) -> list[Block]:
        """Return all free blocks."""
        return self._ordered.get_all_free_blocks()

    @_guarded
    def iter_blocks_after(self, cursor: Block | None) -> Iterator[Block]:
        """Return the blocks behind `cursor` in the order of `get_all_free_blocks`."""
        return iter(list(self._ordered.iter_blocks_after(cursor)))

    def lru(self) -> Any:
        """Return vLLM's own queue of the free blocks, made at the first call."""
        if self._lru is None:
            place = self._place
            free = sorted(filter(place.__getitem__, range(len(place))), key=place.__getitem__)
            self._lru = self._make_lru([self._blocks[number] for number in free])
        return self._lru
