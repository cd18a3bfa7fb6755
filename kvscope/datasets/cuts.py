"""Where the tries of a dataset are cut: prefixes that many requests share, and their subtrees.

A prefix belongs to the trunk if more than a share of the requests have it. The trunk is one shard;
below it each subtree lies in a shard of its own, or with others. Which prefixes are cut decides how
even the shards are, never a result: so a sample of the requests chooses them.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.jit import kernel
from kvscope.core.prefix import paths
from kvscope.ingest.columns import RequestBatch
from kvscope.ingest.formats import registry
from kvscope.ingest.formats.base import BadLine, ReadOptions
from kvscope.ingest.source import Source
from kvscope.ingest.trie import Trie
from kvscope.replay.sampling import subtree_roots, uniform

TRUNK = 0
"""The number of the trunk's shard; those of the subtrees follow it."""
SHARE = 1 / 64
_SAMPLE_REQUESTS = 20_000
_SAMPLE_FILES = 16
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Places(NamedTuple):
    """Where each of K paths lies: the first `split` blocks in the trunk, the rest in `shard`.

    `shard` is TRUNK where nothing is left.
    """

    split: Int32s
    shard: Int32s


class Cuts:
    """The trunk of a dataset, as the paths ids[starts[k]:starts[k + 1]] to its ends."""

    def __init__(self, starts: Int64s, ids: Int64s) -> None:
        self.starts, self.ids = starts, ids
        self._trunk = Trie()
        self._trunk.intern(starts, ids)

    @property
    def prefixes(self) -> int:
        """The number of paths that are cut."""
        return len(self.starts) - 1

    @property
    def blocks(self) -> int:
        """The number of distinct blocks in the trunk."""
        return self._trunk.count - 1

    def places(self, starts: Int64s, ids: Int64s, shards: int) -> Places:
        """Return where each path lies if subtrees are spread over so many shards."""
        node, split = self._trunk.match(starts, ids)
        rest = np.flatnonzero(split < np.diff(starts))
        shard = np.full(len(split), TRUNK, dtype=np.int32)
        subtree = node[rest].astype(np.uint64) * _SPREAD ^ ids[starts[rest] + split[rest]].view(
            np.uint64
        )
        shard[rest] = 1 + (uniform(subtree.view(np.int64), 0) * shards).astype(np.int32)
        return Places(split, shard)

    def with_those_of(self, other: Cuts) -> Cuts:
        """Return all cuts of both."""
        starts = np.concatenate([self.starts, self.starts[-1] + other.starts[1:]])
        return Cuts(starts, np.concatenate([self.ids, other.ids]))

    def save(self, path: Path) -> None:
        """Write the cuts to a file, which appears under its name when it is whole."""
        draft = path.with_suffix(".draft.npz")
        np.savez(draft, starts=self.starts, ids=self.ids)
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Cuts:
        """Return the cuts in a file."""
        with np.load(path) as arrays:
            return cls(arrays["starts"], arrays["ids"])


class FileSample(Struct, frozen=True):
    """The first requests of some files, as a trie and the `ends` of their paths.

    A decompressed byte of the files has so many requests and accesses.
    """

    trie: Trie
    ends: Int32s
    accesses_per_byte: float
    requests_per_byte: float

    def cuts(self, share: float) -> Cuts:
        """Return cuts by which no subtree has more than this share of the requests."""
        return cuts_of(self.trie, self.ends, int(len(self.ends) * share))


def sample_files(files: list[str], chosen: str, read: ReadOptions) -> FileSample:
    """Return the beginnings of some of the files."""
    trie, leaf = Trie(), list[Int32s]()
    requests = accesses = size = 0
    some = files[:: -(-len(files) // _SAMPLE_FILES)]
    for file in some:
        with closing(Source(file)) as source:
            own = 0
            for records in registry.by_name(chosen).reader(read).records(source):
                try:
                    batch = RequestBatch(records)
                except (BadLine, OverflowError):
                    continue  # reported when the whole is read
                leaf.append(trie.intern(batch.starts, batch.ids))
                own += len(batch)
                accesses += len(batch.ids)
                if own >= _SAMPLE_REQUESTS / len(some):
                    break
            size += source.bytes_decompressed
        requests += own
    ends = np.concatenate(leaf) if leaf else np.zeros(0, dtype=np.int32)
    return FileSample(trie, ends, accesses / max(size, 1), requests / max(size, 1))


def cuts_of(trie: Trie, ends: Int32s, limit: int) -> Cuts:
    """Return cuts below which each subtree has at most `limit` of the paths to these `ends`."""
    in_trunk = subtree_roots(trie.parent, ends, max(limit, 1)) == 0
    in_trunk[0] = False
    has_child = np.zeros(trie.count, dtype=np.bool_)
    has_child[trie.parent[in_trunk]] = True
    last = np.flatnonzero(in_trunk & ~has_child).astype(np.int32)
    starts, blocks = paths(trie.parent, last, trie.depth[last] + 1)
    return Cuts(starts, trie.hash_id[blocks])


@kernel
def gather(ids: Int64s, begin: Int64s, length: Int32s, gathered: Int64s) -> None:
    """Copy the stretches of `ids` that begin there one after another."""
    at = 0
    for k in range(len(begin)):
        for i in range(begin[k], begin[k] + length[k]):
            gathered[at] = ids[i]
            at += 1
