"""Files that all replicas share, in plain Python: requests so far apart that each has the fleet.

Pools and CPU tiers never evict here: a replica has what it computed or read before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Chunk = tuple[int, ...]


@dataclass
class SharedFiles:
    """The files, the least recently used first; `capacity` of them fit."""

    capacity: int
    evicts: bool
    files: list[Chunk] = field(default_factory=list)
    evictions: int = 0
    refused: int = 0

    def read(self, chunk: Chunk) -> bool:
        """Return whether a chunk is there, which is then the last one used."""
        if chunk not in self.files:
            return False
        self.files.remove(chunk)
        self.files.append(chunk)
        return True

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Write what is not there; no chunk makes room for one that is written with it."""
        there = [chunk for chunk in chunks if chunk in self.files]
        leave = list(self.files)
        for chunk in chunks:
            if chunk in there and chunk in self.files:
                continue
            if len(self.files) == self.capacity:
                if not self.evicts or not leave:
                    self.refused += 1
                    continue
                self.files.remove(leave.pop(0))
                self.evictions += 1
            self.files.append(chunk)


def hits(
    prompts: Sequence[tuple[int, Sequence[int]]], pool: SharedFiles, replicas: int
) -> list[tuple[int, int]]:
    """Return the chunks that each prompt finds, and those of them that come from the files.

    A prompt has its tokens, and a number for each whole chunk; request r goes to r modulo
    `replicas`. The last token is always computed.
    """
    held: list[set[Chunk]] = [set() for _ in range(replicas)]
    found = []
    for number, (size_limit, ids) in enumerate(prompts):
        own, chunks = held[number % replicas], [tuple(ids[: at + 1]) for at in range(len(ids))]
        cached = read = 0
        for chunk in chunks:
            if chunk not in own:
                if not pool.read(chunk):
                    break
                read += 1
            cached += 1
        fresh = [chunk for chunk in chunks if chunk not in own][read:]
        own.update(chunks)
        pool.write(fresh)
        most = min(cached, size_limit)
        found.append((most, max(0, read - (cached - most))))
    return found
