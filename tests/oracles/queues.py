"""The policies that are queues, on deques and lists, from their papers: insert, then evict."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from typing import Protocol


class Queue(Protocol):
    """A policy that keeps its own order of what is cached."""

    def __init__(self, capacity: int, values: Mapping[str, float]) -> None: ...

    def touch(self, block: Hashable) -> None:
        """Note that a cached block is accessed again."""

    def insert(self, block: Hashable) -> None:
        """Insert a block."""

    def victim(self) -> Hashable:
        """Remove and return the block to evict."""


class Fifo:
    """First in, first out."""

    def __init__(self, capacity: int, values: Mapping[str, float]) -> None:
        self.queue: deque[Hashable] = deque()

    def touch(self, block: Hashable) -> None:
        """Change nothing."""

    def insert(self, block: Hashable) -> None:
        """Goes to the end."""
        self.queue.append(block)

    def victim(self) -> Hashable:
        """Remove and return the first block."""
        return self.queue.popleft()


class S3Fifo:
    """SOSP'23, Algorithm 1: S, M and G; uses up to 3, cleared on the way from S to M."""

    def __init__(self, capacity: int, values: Mapping[str, float]) -> None:
        self.small_size = max(int(capacity * values["small_share"]), 1)
        self.ghost_size = max(capacity - self.small_size, 0)
        self.small: deque[Hashable] = deque()
        self.main: deque[Hashable] = deque()
        self.ghost: deque[Hashable] = deque()
        self.uses: dict[Hashable, int] = {}

    def touch(self, block: Hashable) -> None:
        """One use more."""
        self.uses[block] = min(self.uses[block] + 1, 3)

    def insert(self, block: Hashable) -> None:
        """Insert a ghost into M, any other block into S."""
        self.uses[block] = 0
        if block in self.ghost:
            self.ghost.remove(block)
            self.main.append(block)
        else:
            self.small.append(block)

    def victim(self) -> Hashable:
        """From S while it is above its share, else from M."""
        while True:
            if len(self.small) > self.small_size or not self.main:
                block = self.small.popleft()
                if self.uses[block] > 1:
                    self.uses[block] = 0
                    self.main.append(block)
                    continue
                self.ghost.append(block)
                while len(self.ghost) > self.ghost_size:
                    self.ghost.popleft()
                return block
            block = self.main.popleft()
            if self.uses[block] == 0:
                return block
            self.uses[block] -= 1
            self.main.append(block)


class Sieve:
    """NSDI'24, Algorithm 1; the list runs from old to young, and so does the hand."""

    def __init__(self, capacity: int, values: Mapping[str, float]) -> None:
        self.queue: list[Hashable] = []
        self.visited: set[Hashable] = set()
        self.hand: Hashable | None = None

    def touch(self, block: Hashable) -> None:
        """Is visited, and stays where it is."""
        self.visited.add(block)

    def insert(self, block: Hashable) -> None:
        """Goes to the young end, not visited."""
        self.queue.append(block)

    def victim(self) -> Hashable:
        """Return the first unvisited block from the hand on; a visit counts once."""
        at = self.queue.index(self.hand) if self.hand is not None else 0
        while self.queue[at] in self.visited:
            self.visited.remove(self.queue[at])
            at = (at + 1) % len(self.queue)
        block = self.queue[at]
        self.hand = self.queue[at + 1] if at + 1 < len(self.queue) else None
        self.queue.remove(block)
        return block


class Arc:
    """FAST'03, Figure 4, with room made after the insertion; T1, T2, B1, B2 from old to young."""

    def __init__(self, capacity: int, values: Mapping[str, float]) -> None:
        self.capacity = capacity
        self.target = 0.0
        self.once: OrderedDict[Hashable, None] = OrderedDict()
        self.often: OrderedDict[Hashable, None] = OrderedDict()
        self.once_ghosts: OrderedDict[Hashable, None] = OrderedDict()
        self.often_ghosts: OrderedDict[Hashable, None] = OrderedDict()

    def touch(self, block: Hashable) -> None:
        """Move the block to the young end of T2."""
        self.once.pop(block, None)
        self.often.pop(block, None)
        self.often[block] = None

    def insert(self, block: Hashable) -> None:
        """Insert a ghost into T2 and move the target; insert any other block into T1."""
        once, often = len(self.once_ghosts), len(self.often_ghosts)
        if block in self.once_ghosts:
            self.target = min(self.target + max(often / once, 1.0), self.capacity)
            del self.once_ghosts[block]
            self.often[block] = None
        elif block in self.often_ghosts:
            self.target = max(self.target - max(once / often, 1.0), 0.0)
            del self.often_ghosts[block]
            self.often[block] = None
        else:
            self.once[block] = None

    def victim(self) -> Hashable:
        """Return the oldest of T1 if T1 is above its target, else of T2; it stays as a ghost."""
        if self.once and (len(self.once) > self.target or not self.often):
            block, _ = self.once.popitem(last=False)
            self.once_ghosts[block] = None
        else:
            block, _ = self.often.popitem(last=False)
            self.often_ghosts[block] = None
        while self.once_ghosts and len(self.once) + len(self.once_ghosts) > self.capacity:
            self.once_ghosts.popitem(last=False)
        while self.often_ghosts and self._everything() > 2 * self.capacity:
            self.often_ghosts.popitem(last=False)
        return block

    def _everything(self) -> int:
        cached = len(self.once) + len(self.often)
        return cached + len(self.once_ghosts) + len(self.often_ghosts)


QUEUES: dict[str, type[Queue]] = {"fifo": Fifo, "s3fifo": S3Fifo, "sieve": Sieve, "arc": Arc}
