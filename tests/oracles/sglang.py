"""SGLang's radix tree and its eviction, ported line by line to plain Python; a page is a block.

Source: SGLang 0.5.23, srt/mem_cache/radix_cache.py (match_prefix, insert, evict, inc_lock_ref) and
evict_policy.py. Left out: KV slots, KV events, priorities, namespaces, HiCache.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

PROTECTED_THRESHOLD = 2  # SLRUStrategy's default

Priority = tuple[float, ...]
STRATEGIES: dict[str, Callable[[Node, int], Priority]] = {
    "lru": lambda node, _: (node.last_access_time,),
    "lfu": lambda node, _: (node.hit_count, node.last_access_time),
    "slru": lambda node, threshold: (node.hit_count >= threshold, node.last_access_time),
}


@dataclass(eq=False)
class Node:
    """A run of blocks that were inserted together, up to the next branch."""

    key: list[Hashable]
    parent: Node | None
    last_access_time: int
    hit_count: int = 0
    lock_ref: int = 0
    children: dict[Hashable, Node] = field(default_factory=dict)

    def __lt__(self, other: Node) -> bool:
        """Compare nodes of one priority by their last access."""
        return self.last_access_time < other.last_access_time


class RadixTree:
    """A prefix cache of `capacity` blocks.

    With `paged` a node holds one block, as after a split at every block: eviction then stops at the
    block that makes enough room, where SGLang drops the whole of a node.
    """

    def __init__(
        self, strategy: str, capacity: int, *, threshold: int = PROTECTED_THRESHOLD, paged: bool
    ) -> None:
        self.strategy, self.capacity, self.threshold = STRATEGIES[strategy], capacity, threshold
        self.paged, self.size, self.time, self.evictions = paged, 0, 0, 0
        self.root = Node([], None, 0, lock_ref=1)

    def serve(self, prompt: Sequence[Hashable], output: Sequence[Hashable]) -> int:
        """Run one request to its end; return the blocks that it hits.

        It is inserted twice, after its prefill and when it ends, and counts as one hit.
        """
        hit, node = self._match(list(prompt))
        whole = [*prompt, *output]
        for known, total, inserted_len in ((hit, [*prompt], 0), (len(prompt), whole, len(prompt))):
            self._lock(node, 1)
            self._evict(len(total) - known - (self.capacity - self.size))
            last = self._insert(total, inserted_len)
            self._lock(node, -1)
            node = last
        return hit

    def _tick(self) -> int:
        self.time += 1
        return self.time

    def _match(self, key: list[Hashable]) -> tuple[int, Node]:
        now, node, matched = self._tick(), self.root, 0
        while key and key[0] in node.children:
            child = node.children[key[0]]
            child.last_access_time = now
            length = _common(child.key, key)
            matched += length
            if length < len(child.key):
                return matched, self._split(child, length)
            node, key = child, key[length:]
        return matched, node

    def _insert(self, key: list[Hashable], inserted_len: int) -> Node:
        now, node, total = self._tick(), self.root, 0
        while key and key[0] in node.children:
            node = node.children[key[0]]
            node.last_access_time = now
            length = _common(node.key, key)
            total += length
            key = key[length:]
            if length < len(node.key):
                node = self._split(node, length)
            if total > inserted_len:  # what this request inserted before was counted then
                node.hit_count += 1
        self.size += len(key)
        for part in ([block] for block in key) if self.paged else ([key] if key else []):
            total += len(part)
            node.children[part[0]] = Node(part, node, self._tick())
            node = node.children[part[0]]
            node.hit_count += total > inserted_len
        return node

    def _split(self, child: Node, length: int) -> Node:
        parent = child.parent
        assert parent is not None
        head = Node(child.key[:length], parent, self._tick(), child.hit_count, child.lock_ref)
        head.children[child.key[length]] = child
        child.parent, child.key = head, child.key[length:]
        parent.children[head.key[0]] = head
        return head

    def _lock(self, node: Node, change: int) -> None:
        while node.parent is not None:
            node.lock_ref += change
            node = node.parent

    def _evict(self, blocks: int) -> None:
        heap = [(self.strategy(leaf, self.threshold), leaf) for leaf in self._leaves()]
        heapq.heapify(heap)
        while blocks > 0 and heap:
            _, leaf = heapq.heappop(heap)
            assert leaf.parent is not None
            del leaf.parent.children[leaf.key[0]]
            blocks -= len(leaf.key)
            self.size -= len(leaf.key)
            self.evictions += len(leaf.key)
            if not leaf.parent.children and leaf.parent.lock_ref == 0:
                heapq.heappush(heap, (self.strategy(leaf.parent, self.threshold), leaf.parent))

    def _leaves(self) -> list[Node]:
        leaves, stack = [], [self.root]
        while stack:
            node = stack.pop()
            stack += node.children.values()
            if not node.children and node.lock_ref == 0:
                leaves.append(node)
        return leaves


def _common(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))
