"""The free blocks of an engine in the order of a policy: one recency list per lane.

It replaces vLLM's own queue of free blocks and keeps its rules: blocks without a hash are taken
first, of these the last one freed; a block that is hit leaves in O(1). Among blocks with a hash,
the policy's score decides between the oldest of each lane.

Source: vLLM 0.32.0, vllm/v1/core/kv_cache_utils.py (FreeKVCacheBlockQueue). The rules are those of
`kvscope.vllm_sim`; tests hold the two to be equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from kvscope.learning.lanes import LaneHeap, LanePlan, Score, lane_at
from kvscope.learning.prefixes import Key, Prefixes

Block: TypeAlias = Any  # an engine's block: block_id, block_hash, block_hash_num_tokens, neighbours


class Ring:
    """Sentinel of a circular list, before its first block and behind its last one."""

    __slots__ = ("next_free_block", "prev_free_block")

    def __init__(self) -> None:
        self.next_free_block: Any = self
        self.prev_free_block: Any = self

    def __iter__(self) -> Iterator[Any]:
        block = self.next_free_block
        while block is not self:
            yield block
            block = block.next_free_block


def planned(plan: LanePlan, block: Block) -> int:
    """Return the lane of a block in `plan`: pairs (depth in tokens, lane), the deepest first.

    It is that of the first pair whose depth is less than the block's end, else of the last pair.
    The end is the number of tokens that its hash covers, `block_hash_num_tokens` (None: 0).
    """
    return lane_at(plan, block.block_hash_num_tokens or 0)[1]


class FreeBlocks:
    """The blocks of vLLM's FreeKVCacheBlockQueue, in the order of a policy.

    The constructor takes the free `blocks` and the `total` of the pool. `score(lane, idle_s)` is
    the score of a lane's oldest block, `next_step_s(idle_s)` the idle time at which it changes next
    (None: at any time). `prefixes` tracks cached blocks for a policy that evicts leaves (else
    None); `forget` removes a block's hash, and is then called at once for each block taken.

    The owner of this object sets three attributes. Before a request frees its blocks, `plan` (in
    tokens, see `planned`) names their lanes; while it is None, blocks go to the lanes that
    `assigned` has for them by block id, else to the lane `usual`.

    For a policy that evicts leaves, a lane's oldest block moves to the list `set_aside` if cached
    children depend on it: free, but taken only when no other block is. It returns to its lane when
    the children are gone or another block has the same hash.

    Errors leave this in an inconsistent state: `GuardedQueue` then drops it.
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
    ) -> None:
        self.num_free_blocks = 0
        self.unhashed = Ring()
        self.lanes = [Ring()]
        self.set_aside = Ring()  # free, but cached children need them
        self.plan: LanePlan | None = None
        self.usual = 0
        self.assigned: dict[int, int] = {}  # lanes of blocks whose freeing was put off
        self.now_s = 0.0
        self.evictions = 0
        self._prefixes = prefixes
        self._forget = forget
        self._aside: dict[Key, Block] = {}
        self._count = 0
        self._freed = [0] * total
        self._freed_s = [0.0] * total
        self._lane = [0] * total
        self._heap = LaneHeap(self.lanes, self._oldest, score, next_step_s)
        for block in blocks:
            _link(block, self.unhashed.prev_free_block)
            self.num_free_blocks += 1

    def at(self, now_s: float) -> None:
        """Advance the clock; scores of blocks are constant until the next call."""
        self.now_s = now_s
        self._heap.at(now_s)

    def score_anew(self) -> None:
        """Drop all scores, since the policy's table has changed."""
        self._heap.anew()

    def popleft_n(self, count: int) -> list[Block]:
        """Remove and return the `count` blocks to take first: unhashed ones, then evicted ones."""
        if count > self.num_free_blocks:
            raise ValueError(f"{count} blocks wanted, {self.num_free_blocks} are free")
        taken = self._pop_unhashed(count)
        self.evictions += count - len(taken)
        while len(taken) < count:
            self._evict(taken, count)
        self.num_free_blocks -= count
        return taken

    def _evict(self, taken: list[Block], count: int) -> None:
        """Append to `taken` the block with the lowest score, then those of its lane freed with it.

        Ends once `taken` has `count` blocks, or where a block of another lane may be the next.
        """
        block, limit = self._choose()
        heap, prefixes, freed, freed_s = self._heap, self._prefixes, self._freed, self._freed_s
        lane, since_s = self._lane[block.block_id], freed_s[block.block_id]
        while True:
            before, after = block.prev_free_block, block.next_free_block
            before.next_free_block, after.prev_free_block = after, before
            block.prev_free_block = block.next_free_block = None
            if prefixes is not None:
                self._forget(block)  # now, as the next choice depends on it
            taken.append(block)
            block = after
            if len(taken) == count or type(block) is Ring or heap.changed or heap.all_changed:
                break
            if freed[block.block_id] >= limit or freed_s[block.block_id] != since_s:
                break
            if prefixes is not None and prefixes.has_orphans(block.block_hash):
                break
        heap.changed.add(lane)

    def _pop_unhashed(self, most: int) -> list[Block]:
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
        """Remove a free block from its list, since a request hit it."""
        if block.prev_free_block is None or block.next_free_block is None:
            raise RuntimeError(f"remove() called on a block that is not free: {block}")
        key = block.block_hash
        if self._aside and self._aside.get(key) is block:
            del self._aside[key]
        if type(block.prev_free_block) is Ring:
            self._heap.changed.add(self._lane[block.block_id])
        _unlink(block)
        self.num_free_blocks -= 1

    def append_n(self, blocks: list[Block]) -> None:
        """Add freed blocks with a hash to the planned lanes; the first is to be taken first."""
        plan, now_s, count, lanes = self.plan, self.now_s, self._count, self.lanes
        for block in blocks:
            at = block.block_id
            lane = self.assigned.pop(at, self.usual) if plan is None else planned(plan, block)
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
        """Add freed blocks without a hash, to be taken before all others, the first one first."""
        for block in reversed(blocks):
            _link(block, self.unhashed)
        self.num_free_blocks += len(blocks)

    def get_all_free_blocks(self) -> list[Block]:
        """Return all blocks: those without a hash, then each lane's, then those in `set_aside`."""
        return [block for ring in self._rings() for block in ring]

    def iter_blocks_after(self, cursor: Block | None) -> Iterator[Block]:
        """Yield the blocks behind `cursor` in the order of `get_all_free_blocks`."""
        blocks = iter(self.get_all_free_blocks())
        for block in blocks if cursor is not None else ():
            if block is cursor:
                break
        yield from blocks

    def expire(self, before_s: float) -> None:
        """Remove the hashes of lanes' blocks freed before `before_s`: they are then taken first."""
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
        """Note that a block got hash `key`, after the block with hash `above` (None: first)."""
        if self._prefixes is not None:
            self._prefixes.gain(key, above)
            if self._aside:
                self._return_to_lane(key)  # the new block serves the children

    def lost(self, key: Key) -> None:
        """Note that a block has lost hash `key`."""
        if self._prefixes is not None:
            bare = self._prefixes.lose(key)
            if self._prefixes.stranded:  # some free block has become the only one
                self._prefixes.stranded = False
                self._heap.look_again()
            if self._aside:
                self._return_to_lane(bare)
                self._return_to_lane(key)

    def emptied(self, block: Block) -> None:
        """Make a block that has lost its hash the next to be taken, if it is free."""
        if block.block_hash is None and block.next_free_block is not None:
            self._heap.changed.add(self._lane[block.block_id])
            _unlink(block)
            _link(block, self.unhashed)

    def lost_all(self) -> None:
        """Note that no block has a hash any more; free blocks lose their lanes."""
        if self._prefixes is not None:
            self._prefixes.clear()
        self._aside.clear()
        self.assigned.clear()
        for ring in self._rings()[1:]:
            for block in list(ring):
                _unlink(block)
                _link(block, self.unhashed.prev_free_block)
        self._heap.anew()

    def _rings(self) -> list[Ring]:
        return [self.unhashed, *self.lanes, self.set_aside]

    def _oldest(self, lane: int) -> tuple[int, float] | None:
        """Return (free-sequence number, time freed in s) of a lane's oldest block, or None.

        Blocks are numbered in the order in which they were freed.
        """
        block = self.lanes[lane].next_free_block
        if type(block) is Ring:  # it is empty
            return None
        at = block.block_id
        return self._freed[at], self._freed_s[at]

    def _choose(self) -> tuple[Block, float]:
        """Return (block to evict, limit): of the lanes' oldest blocks, the lowest score.

        Of equals it is the block freed first. The caller may take its lane's next blocks, too,
        while these have the same score and free-sequence numbers (see `_oldest`) below the limit:
        no block of another lane goes before them.
        """
        heap = self._heap
        if self._prefixes is not None:
            self._set_aside_prefixes(self._prefixes)
        if len(self.lanes) == 1:
            heap.changed.clear()
            (ring,) = self.lanes
            if ring.next_free_block is not ring:
                return ring.next_free_block, math.inf
        elif (entry := heap.first()) is not None:
            return self.lanes[entry[2]].next_free_block, heap.limit()
        return self._oldest_set_aside(), 0.0

    def _oldest_set_aside(self) -> Block:
        """Return the block of `set_aside` that was freed first, for when no other block is free.

        Its cached children are then in `set_aside`, too, or in use by requests that hold another
        block in its place, one without a hash.
        """
        block = min(self.set_aside, key=lambda each: self._freed[each.block_id])
        del self._aside[block.block_hash]
        return block

    def _set_aside_prefixes(self, prefixes: Prefixes) -> None:
        """Move lanes' oldest blocks to `set_aside` while cached children depend on them."""
        for lane in self._heap.unsettled():
            ring = self.lanes[lane]
            block = ring.next_free_block
            while block is not ring and prefixes.has_orphans(block.block_hash):
                _unlink(block)
                _link(block, self.set_aside)
                self._aside[block.block_hash] = block
                block = ring.next_free_block

    def _return_to_lane(self, key: Key | None) -> None:
        """Move the block with hash `key`, if in `set_aside`, to its lane, in order of freeing."""
        block = self._aside.pop(key, None) if self._aside and key is not None else None
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
