"""SGLang's prefix tree and its eviction, ported to plain Python; a page is a block.

Source: SGLang 0.5.23, srt/mem_cache/unified_cache/unified_tree_core.py, unified_cache/components/
full.py, unified_radix_cache.py (checkpoint_into_tree), allocation.py and evict_policy.py. Left out:
KV slots, KV events, priorities of requests, namespaces, HiCache.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

PROTECTED_THRESHOLD = 2  # SLRUStrategy's default

Priority = tuple[float, ...]


@dataclass(eq=False)
class Node:
    """A run of blocks that were inserted together, up to the next branch."""

    key: list[Hashable]
    parent: Node | None
    priority: float
    last_access_time: float
    creation_time: float
    hit_count: int = 0
    lock_ref: int = 0
    depth: int = 0  # of its end, in blocks
    history: int = 0
    children: dict[Hashable, Node] = field(default_factory=dict)


@dataclass(eq=False)
class Request:
    """A request of `prompt` tokens, `end` with the KV of its outputs, and what it holds."""

    blocks: list[Hashable]
    prompt: int
    end: int
    node: Node
    shared: int
    inserted: int = 0
    owned: int = 0

    @property
    def hit(self) -> int:
        """The blocks that it found, until it inserts its own."""
        return self.shared


class RadixTree:
    """A prefix cache of `capacity` blocks of `block_size` tokens.

    `threshold` and `next_prompt` are tokens for tlru, `protected` touches for slru. With `ready` a
    free block is kept for the next page. With `paged` a node holds one block, as after a split at
    every block: eviction then stops at the block that makes enough room.
    """

    def __init__(
        self,
        strategy: str,
        capacity: int,
        *,
        block_size: int = 1,
        protected: float = PROTECTED_THRESHOLD,
        threshold: float = 0,
        next_prompt: float = 0,
        chunk: float = float("inf"),
        ready: bool = False,
        paged: bool = False,
    ) -> None:
        self.capacity, self.block_size, self.paged = capacity, block_size, paged
        self.protected, self.threshold, self.next_prompt = protected, threshold, next_prompt
        self.chunk, self.ready = chunk, int(ready)
        self.key: Callable[[Node], Priority] = getattr(self, f"_{strategy}")
        self.size, self.owned, self.time, self.evictions = 0, 0, 0.0, 0
        self.root = Node([], None, 0, 0, 0, lock_ref=1)

    def serve(self, prompt: Sequence[Hashable], output: Sequence[Hashable]) -> int:
        """Run one request of whole blocks to its end; return the blocks that it hits."""
        whole, size = [*prompt, *output], self.block_size
        request = self.look_up(whole, len(prompt) * size, len(whole) * size, len(prompt))
        hit = request.hit
        self.prefill(request)
        self.finish(request)
        return hit

    def look_up(self, blocks: Sequence[Hashable], prompt: int, end: int, look: int) -> Request:
        """Return a request that begins, with what it hits locked."""
        request = Request(list(blocks), prompt, end, self._match(blocks[:look]), 0)
        request.shared = request.node.depth
        self._lock(request.node, 1)
        return request

    def prefill(self, request: Request) -> None:
        """Compute the prompt in chunks, and insert each."""
        computed = request.shared * self.block_size
        while computed < request.prompt:
            computed += min(request.prompt - computed, int(min(self.chunk, request.prompt)))
            self._take(request, computed, self.ready)
            if computed < request.end:
                self._share(request, computed // self.block_size)

    def finish(self, request: Request) -> None:
        """Compute the outputs, insert all, and give back the rest."""
        for tokens in range(request.prompt + 1, request.end + 1):
            self._evict(self.ready)
            self._take(request, tokens, 0)
        self._share(request, len(request.blocks))
        whole = request.prompt // self.block_size
        if 0 < whole < len(request.blocks):
            self._insert(request.blocks[:whole], whole, 1)
        self.owned -= request.owned
        self._lock(request.node, -1)

    def abandon(self, request: Request) -> None:
        """Unlock what a request hit that does not begin yet."""
        self._lock(request.node, -1)

    def locked(self) -> int:
        """Return the blocks of the tree that requests have locked."""
        nodes, stack = [], [self.root]
        while stack:
            nodes.append(stack.pop())
            stack += nodes[-1].children.values()
        return sum(len(node.key) for node in nodes if node.lock_ref)

    def _take(self, request: Request, tokens: int, ready: int) -> None:
        needed = -(-tokens // self.block_size) - request.shared - request.owned
        self._evict(needed + ready)
        request.owned += needed
        self.owned += needed

    def _share(self, request: Request, blocks: int) -> None:
        node = self._insert(request.blocks[:blocks], request.inserted, 0)
        request.owned -= blocks - request.shared
        self.owned -= blocks - request.shared
        request.shared = blocks
        request.inserted = max(request.inserted, blocks)
        self._lock(node, 1)
        self._lock(request.node, -1)
        request.node = node

    def _tick(self) -> float:
        self.time += 1
        return self.time

    def _new(self, key: Sequence[Hashable], parent: Node, priority: float) -> Node:
        node = Node(list(key), parent, priority, self._tick(), self._tick())
        node.depth = parent.depth + len(key)
        return node

    def _match(self, key: Sequence[Hashable]) -> Node:
        node, rest = self.root, list(key)
        while rest and rest[0] in node.children:
            child = node.children[rest[0]]
            length = _common(child.key, rest)
            if length < len(child.key):
                node = self._split(child, length)
                break
            node, rest = child, rest[length:]
        if key:
            now, above = self._tick(), node
            while above is not None:
                above.last_access_time = now
                now -= 0.00001
                above = above.parent  # type: ignore[assignment]
        return node

    def _insert(self, key: Sequence[Hashable], inserted: int, priority: float) -> Node:
        node, rest = self.root, list(key)
        while rest and rest[0] in node.children:
            node = node.children[rest[0]]
            node.last_access_time = self._tick()
            length = _common(node.key, rest)
            rest = rest[length:]
            if length < len(node.key):
                node = self._split(node, length)
            node.priority = max(node.priority, priority)
            node.hit_count += node.depth > inserted  # what it inserted before was counted then
        self.size += len(rest)
        for part in ([block] for block in rest) if self.paged else ([rest] if rest else []):
            child = self._new(part, node, priority)
            node.children[part[0]] = child
            child.hit_count += child.depth > inserted
            node = child
        above: Node | None = node
        while above is not None and above.history < node.depth:
            above.history = node.depth
            above = above.parent
        return node

    def _split(self, child: Node, length: int) -> Node:
        parent = child.parent
        assert parent is not None
        head = self._new(child.key[:length], parent, child.priority)
        head.creation_time, head.history = child.creation_time, child.history
        head.hit_count, head.lock_ref = child.hit_count, child.lock_ref
        head.children[child.key[length]] = child
        child.parent, child.key = head, child.key[length:]
        parent.children[head.key[0]] = head
        child.last_access_time = self._tick()
        return head

    def _lock(self, node: Node, change: int) -> None:
        while node.parent is not None:
            node.lock_ref += change
            node = node.parent

    def _evict(self, free: int) -> None:
        """Evict the first leaves until so many blocks are free."""
        while self.capacity - self.size - self.owned < free:
            leaf = min(self._leaves(), key=self.key)
            assert leaf.parent is not None
            del leaf.parent.children[leaf.key[0]]
            self.size -= len(leaf.key)
            self.evictions += len(leaf.key)

    def _leaves(self) -> list[Node]:
        leaves, stack = [], [self.root]
        while stack:
            node = stack.pop()
            stack += node.children.values()
            if not node.children and node.lock_ref == 0:
                leaves.append(node)
        return leaves

    def _lru(self, node: Node) -> Priority:
        return (node.last_access_time,)

    def _fifo(self, node: Node) -> Priority:
        return (node.creation_time,)

    def _lfu(self, node: Node) -> Priority:
        return (node.hit_count, node.last_access_time)

    def _slru(self, node: Node) -> Priority:
        return (node.hit_count >= self.protected, node.last_access_time)

    def _priority(self, node: Node) -> Priority:
        return (node.priority, node.last_access_time)

    def _tlru(self, node: Node) -> Priority:
        history = node.history * self.block_size
        budget = max(history + self.next_prompt - self.threshold, 0)
        safe = (node.depth - len(node.key)) * self.block_size >= budget
        return (-1 if safe else 0, node.last_access_time)


def _common(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))
