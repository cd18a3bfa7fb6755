"""The free blocks of an engine in the order of a policy: one recency list a lane.

It takes the place of vLLM's own queue of free blocks and keeps its rules: blocks without a hash are
taken first, the last one freed in front; a block that is hit leaves in O(1). Of the blocks with a
hash the policy's score decides between the oldest of each lane.

Source: vLLM 0.32.0, vllm/v1/core/kv_cache_utils.py (FreeKVCacheBlockQueue). The rules are those of
`kvscope.vllm_sim`, which are held to this in tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from kvscope.learning.lane_heap import LaneHeap, Ring, Score
from kvscope.learning.prefixes import Key, Prefixes

Block: TypeAlias = Any  # an engine's block: block_id, block_hash, block_hash_num_tokens, neighbours


class Plan(NamedTuple):
    """Which lane a request's blocks go to: those that end beyond so many tokens, and the others."""

    beyond_tokens: int
    deep: int
    shallow: int

    def lane(self, block: Block) -> int:
        """The lane of one block."""
        return (
            self.deep if (block.block_hash_num_tokens or 0) > self.beyond_tokens else self.shallow
        )


class FreeBlocks:
    """In the place of vLLM's FreeKVCacheBlockQueue.

    `score` tells what a lane's oldest block is worth after so many idle seconds. Before a request
    frees its blocks, `plan` says where they go; without one they go where they are `assigned`, or
    to the lane `usual`. `prefixes`, for policies that evict leaves, has to be told what is cached;
    then `forget` is called for each block that is taken, at once. `failed` is told of an error in
    `score`, and has to call `fall_back`. `next_step_s` is a `stepwise` policy's.
    """

    def __init__(
        self,
        blocks: Iterable[Block],
        total: int,
        score: Score,
        *,
        next_step_s: Callable[[float], float] | None = None,
        prefixes: Prefixes | None = None,
        forget: Callable[[Block], object] = lambda _: None,
        failed: Callable[[Exception], object] | None = None,
    ) -> None:
        self.num_free_blocks = 0
        self.unhashed = Ring()
        self.lanes = [Ring()]
        self.set_aside = Ring()  # free, but cached children need them
        self.plan: Plan | None = None
        self.usual = 0
        self.assigned: dict[int, int] = {}  # lanes of blocks whose freeing was put off
        self.now_s = 0.0
        self.evictions = 0
        self._prefixes = prefixes
        self._forget = forget
        self._failed = failed
        self._parked: dict[Key, Block] = {}
        self._count = 0
        self._freed = [0] * total
        self._freed_s = [0.0] * total
        self._lane = [0] * total
        self._heap = LaneHeap(self.lanes, self._freed, self._freed_s, score, next_step_s)
        for block in blocks:
            _link(block, self.unhashed.prev_free_block)
            self.num_free_blocks += 1

    def at(self, now_s: float) -> None:
        """It is now so late; worths are the same until this is called again."""
        self.now_s = now_s
        self._heap.at(now_s)

    def score_anew(self) -> None:
        """What was scored until now does not count any more."""
        self._heap.anew()

    def popleft(self) -> Block:
        """Take the first block."""
        return self.popleft_n(1)[0]

    def popleft_n(self, count: int) -> list[Block]:
        """Take the first `count` blocks."""
        if count > self.num_free_blocks:
            raise ValueError(f"{count} blocks wanted, {self.num_free_blocks} are free")
        taken = self._unhashed(count)
        for _ in range(count - len(taken)):
            block = self._oldest_of_least_worth()
            self._heap.changed.add(self._lane[block.block_id])
            _unlink(block)
            self.evictions += 1
            if self._prefixes is not None:
                self._forget(block)  # now, as the next choice depends on it
            taken.append(block)
        self.num_free_blocks -= count
        return taken

    def _unhashed(self, most: int) -> list[Block]:
        """Take so many blocks without a hash, or all there are."""
        taken: list[Block] = []
        ring = self.unhashed
        block = ring.next_free_block
        while len(taken) < most and block is not ring:
            taken.append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
        ring.next_free_block, block.prev_free_block = block, ring
        return taken

    def remove(self, block: Block) -> None:
        """Take a block out from where it is: it was hit."""
        if block.prev_free_block is None or block.next_free_block is None:
            raise RuntimeError(f"remove() called on a block that is not free: {block}")
        key = block.block_hash
        if self._parked and self._parked.get(key) is block:
            del self._parked[key]
        if type(block.prev_free_block) is Ring:
            self._heap.changed.add(self._lane[block.block_id])
        _unlink(block)
        self.num_free_blocks -= 1

    def append(self, block: Block) -> None:
        """A block with a hash becomes free."""
        self.append_n([block])

    def append_n(self, blocks: list[Block]) -> None:
        """Blocks with a hash become free, the first one to be taken first; `plan` says where."""
        plan, now_s, count, lanes = self.plan, self.now_s, self._count, self.lanes
        for block in blocks:
            at = block.block_id
            lane = self.assigned.pop(at, self.usual) if plan is None else plan.lane(block)
            while lane >= len(lanes):
                lanes.append(Ring())
            ring = lanes[lane]
            behind = ring.prev_free_block
            if behind is ring:
                self._heap.changed.add(lane)
            behind.next_free_block = ring.prev_free_block = block
            block.prev_free_block, block.next_free_block = behind, ring
            count += 1
            self._freed[at], self._freed_s[at], self._lane[at] = count, now_s, lane
        self._count = count
        self.num_free_blocks += len(blocks)

    def prepend_n(self, blocks: list[Block]) -> None:
        """Blocks without a hash become free, the first one to be taken first."""
        for block in reversed(blocks):
            _link(block, self.unhashed)
        self.num_free_blocks += len(blocks)

    def get_all_free_blocks(self) -> list[Block]:
        """All of them: those without a hash, then lane by lane, then those set aside."""
        return [block for ring in self._rings() for block in ring]

    def iter_blocks_after(self, cursor: Block | None) -> Iterator[Block]:
        """Those behind `cursor` in the order of `get_all_free_blocks`."""
        blocks = iter(self.get_all_free_blocks())
        for block in blocks if cursor is not None else ():
            if block is cursor:
                break
        yield from blocks

    def expire(self, before_s: float) -> None:
        """Forget what was freed before then; such blocks are the first to be taken now."""
        for lane, ring in enumerate(self.lanes):
            block = ring.next_free_block
            while block is not ring and self._freed_s[block.block_id] < before_s:
                _unlink(block)
                self._forget(block)
                self.evictions += 1
                self._heap.changed.add(lane)
                _link(block, self.unhashed)
                block = ring.next_free_block

    def gained(self, key: Key, above: Key | None) -> None:
        """Some block holds `key` now, whose prefix is `above`."""
        if self._prefixes is not None:
            self._prefixes.gain(key, above)
            if self._parked:
                self._unpark(key)  # the new one does for the children

    def lost(self, key: Key) -> None:
        """A block that held `key` no longer does."""
        if self._prefixes is not None:
            bare = self._prefixes.lose(key)
            if self._prefixes.stranded:  # some free block has become the only one
                self._prefixes.stranded = False
                self._heap.look_again()
            if self._parked:
                self._unpark(bare)
                self._unpark(key)

    def lost_all(self) -> None:
        """Nothing is cached any more."""
        if self._prefixes is not None:
            self._prefixes.clear()
        for key in list(self._parked):
            self._unpark(key)

    def fall_back(self) -> None:
        """From now on the order is plain LRU, as if it had always been."""
        hashed = [block for ring in self._rings()[1:] for block in ring]
        hashed.sort(key=lambda block: self._freed[block.block_id])
        self._prefixes = None
        self._parked.clear()
        self.assigned.clear()
        self.plan, self.usual = None, 0
        self.lanes, self.set_aside = [Ring()], Ring()
        self._lane = [0] * len(self._lane)
        self._heap = LaneHeap(
            self.lanes, self._freed, self._freed_s, lambda *_: 0.0, lambda _: math.inf
        )
        for block in hashed:
            _link(block, self.lanes[0].prev_free_block)

    def _rings(self) -> list[Ring]:
        return [self.unhashed, *self.lanes, self.set_aside]

    def _oldest_of_least_worth(self) -> Block:
        try:
            chosen = self._choose()
        except Exception as error:
            if self._failed is None:
                raise
            self._failed(error)
            chosen = self._choose()
        if chosen is None:  # all are set aside, which no sound book-keeping leads to
            self.fall_back()
            chosen = self._choose()
        return chosen

    def _choose(self) -> Block | None:
        """The oldest block of the lane where that one is worth least; of equals the oldest."""
        if self._prefixes is not None:
            self._pass_over(self._prefixes)
        if len(self.lanes) == 1:
            (ring,) = self.lanes
            return None if ring.next_free_block is ring else ring.next_free_block
        return self._heap.first()

    def _pass_over(self, prefixes: Prefixes) -> None:
        """Set lanes' oldest blocks aside that cached ones are found through."""
        for lane in self._heap.unsettled():
            ring = self.lanes[lane]
            block = ring.next_free_block
            while block is not ring and prefixes.has_orphans(block.block_hash):
                self._park(block)
                block = ring.next_free_block

    def _park(self, block: Block) -> None:
        """Set a lane's oldest block aside until it has no cached child any more."""
        _unlink(block)
        _link(block, self.set_aside)
        self._parked[block.block_hash] = block

    def _unpark(self, key: Key | None) -> None:
        """Put a block that was set aside back to its place by age, which is near the front."""
        block = self._parked.pop(key, None) if self._parked and key is not None else None
        if block is None:
            return
        _unlink(block)
        freed, lane = self._freed, self._lane[block.block_id]
        self._heap.changed.add(lane)
        ring = self.lanes[lane]
        behind: Any = ring
        while (
            behind.next_free_block is not ring
            and freed[behind.next_free_block.block_id] < freed[block.block_id]
        ):
            behind = behind.next_free_block
        _link(block, behind)


def _link(block: Block, behind: Block) -> None:
    following = behind.next_free_block
    behind.next_free_block = block
    block.prev_free_block = behind
    block.next_free_block = following
    following.prev_free_block = block


def _unlink(block: Block) -> None:
    before, after = block.prev_free_block, block.next_free_block
    before.next_free_block = after
    after.prev_free_block = before
    block.prev_free_block = block.next_free_block = None
