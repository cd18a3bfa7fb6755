"""Cut the prefix trie of a dataset into shards, and write its paths to files by shard.

A prefix belongs to the trunk if more than a share of the requests have it. The trunk is one shard;
each subtree below it goes as a whole into one of the others. Which prefixes are cut decides how
even the shards are, never a result: so a sample of the requests chooses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.arrays import STEP, Int32s, Int64s
from kvscope.core.disk_columns import append_array, close_quietly
from kvscope.core.jit import kernel
from kvscope.core.prefix import paths
from kvscope.core.units import MIB
from kvscope.datasets.files import save_array
from kvscope.ingest.columns import RequestBatch
from kvscope.ingest.formats import registry
from kvscope.ingest.formats.base import BadLine, ReadOptions
from kvscope.ingest.source import Source
from kvscope.ingest.trie import Trie
from kvscope.replay.sampling import subtree_roots, uniform

TRUNK = 0
"""The number of the shard that is the trunk; those of the subtrees count from 1."""
SHARE = 1 / 64
_SAMPLE_REQUESTS = 20_000
_SAMPLE_FILES = 16


class Places(NamedTuple):
    """Where each of K paths lies: the first `split` blocks in the trunk, the rest in `shard`.

    `shard` is 0 (`TRUNK`) for paths that end in the trunk.
    """

    split: Int32s
    shard: Int32s


class Cuts:
    """The trunk of a dataset; the path to leaf k has the hash ids ids[starts[k]:starts[k + 1]]."""

    def __init__(self, starts: Int64s, ids: Int64s) -> None:
        self.starts, self.ids = starts, ids
        self._trunk = Trie()
        self._trunk.intern(starts, ids)

    @property
    def prefixes(self) -> int:
        """The number of the trunk's leaves."""
        return len(self.starts) - 1

    @property
    def blocks(self) -> int:
        """The number of distinct blocks in the trunk."""
        return self._trunk.count - 1

    def places(self, starts: Int64s, ids: Int64s, shards: int) -> Places:
        """Return how many blocks of each path are in the trunk, and the shard of the rest.

        Path k has the hash ids ids[starts[k]:starts[k + 1]]. Blocks below the trunk are in shard 1
        to `shards`, by a hash of the first of them and its prefix.
        """
        node, split = self._trunk.match(starts, ids)
        rest = np.flatnonzero(split < np.diff(starts))
        shard = np.full(len(split), TRUNK, dtype=np.int32)
        subtree = node[rest].astype(np.uint64) * STEP ^ ids[starts[rest] + split[rest]].view(
            np.uint64
        )
        shard[rest] = 1 + (uniform(subtree.view(np.int64), 0) * shards).astype(np.int32)
        return Places(split, shard)

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
    """The first requests of some files: their trie, and the last block (`ends`) of each path.

    Accesses and requests are counted per decompressed byte.
    """

    trie: Trie
    ends: Int32s
    accesses_per_byte: float
    requests_per_byte: float

    def cuts(self, share: float) -> Cuts:
        """Return cuts such that each subtree has at most `share` of the sample's requests."""
        return cuts_of(self.trie, self.ends, int(len(self.ends) * share))


def sample_files(files: list[str], chosen: str, read: ReadOptions) -> FileSample:
    """Return the first requests of up to 16 of the files, read in the format called `chosen`."""
    trie, leaf = Trie(), list[Int32s]()
    requests = accesses = size = 0
    some = files[:: -(-len(files) // _SAMPLE_FILES)]
    for file in some:
        with closing(Source(file)) as source:
            own = 0
            for records in registry.by_name(chosen)(read).records(source):
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
    """Return the cuts below which each subtree has at most `limit` (at least 1) of the `ends`."""
    in_trunk = subtree_roots(trie.parent, ends, max(limit, 1)) == 0
    in_trunk[0] = False
    has_child = np.zeros(trie.count, dtype=np.bool_)
    has_child[trie.parent[in_trunk]] = True
    last = np.flatnonzero(in_trunk & ~has_child).astype(np.int32)
    starts, blocks = paths(trie.parent, last, trie.depth[last] + 1)
    return Cuts(starts, trie.hash_id[blocks])


@kernel
def gather(ids: Int64s, begin: Int64s, length: Int32s, gathered: Int64s) -> None:
    """Copy ids[begin[k]:begin[k] + length[k]] for each k into `gathered`, one after another."""
    at = 0
    for k in range(len(begin)):
        for i in range(begin[k], begin[k] + length[k]):
            gathered[at] = ids[i]
            at += 1


BUFFER_BYTES = 64 * MIB
_PIECE = 3  # numbers: row, length, split
_PIECES, _IDS, _INDEX = "pieces.i32", "ids.i64", "index.npy"


class Pieces(NamedTuple):
    """K paths in one shard: path k is that of the request in file row `row[k]`.

    It has `length[k]` hash ids; `ids` has those of all paths, one after the other. The first
    `split[k]` copy the trunk's; in its own shard, paths end at their cuts, and `split` is 0.
    """

    row: Int32s
    length: Int32s
    split: Int32s
    ids: Int64s


class Spill:
    """Takes the paths of a trace while it is read, and writes them by shard to files in `folder`.

    It stands in for `kvscope.ingest.trie.Trie`, which numbers blocks in memory; both are an
    `Interner` of `kvscope.ingest.columns`. Here blocks get no numbers.
    """

    count, request_bytes = 1, 100  # no blocks in memory

    def __init__(self, folder: Path, cuts: Cuts, shards: int) -> None:
        self._folder, self._cuts, self._shards = folder, cuts, shards
        self._rows = self._buffered = 0
        self._batches = list[tuple[Int32s, Int32s, Int32s, Int32s, Int64s, Int64s]]()
        self._index = list[Int64s]()
        self._pieces = (folder / _PIECES).open("wb")
        self._ids = (folder / _IDS).open("wb")

    def intern(self, starts: Int64s, ids: Int64s) -> Int32s:
        """Write each path ids[starts[k]:starts[k + 1]]; return zeros, as blocks have no numbers."""
        paths = len(starts) - 1
        row = self._rows + np.arange(paths, dtype=np.int32)
        self._rows += paths
        length = np.diff(starts).astype(np.int32)
        split, shard = self._cuts.places(starts, ids, self._shards)
        cut, rest = np.flatnonzero(split), np.flatnonzero(shard != TRUNK)
        self._batches.append((
            np.concatenate([np.full(len(cut), TRUNK, dtype=np.int32), shard[rest]]),
            np.concatenate([row[cut], row[rest]]),
            np.concatenate([split[cut], length[rest]]),
            np.concatenate([np.zeros(len(cut), dtype=np.int32), split[rest]]),
            np.concatenate([starts[cut], starts[rest]]),
            ids,
        ))  # fmt: skip
        self._buffered += ids.nbytes
        if self._buffered > BUFFER_BYTES:
            self._flush()
        return np.zeros(paths, dtype=np.int32)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for file in (self._pieces, self._ids):
            close_quietly(file)  # already closed, unless the block has failed

    def close(self) -> None:
        """Write the rest of the buffer, and the index of all written paths."""
        self._flush()
        self._pieces.close()
        self._ids.close()
        save_array(self._folder / _INDEX, np.array(self._index, dtype=np.int64))

    def _flush(self) -> None:
        """Write the buffered paths in order of shard."""
        if not self._batches:
            return
        shard, row, length, split, begin, ids = zip(*self._batches, strict=True)
        offset = np.cumsum([0, *map(len, ids)])
        start = np.concatenate([at + base for at, base in zip(begin, offset, strict=False)])
        shards = np.concatenate(shard)
        order = np.argsort(shards, kind="stable")
        columns = [np.concatenate(each)[order] for each in (row, length, split)]
        gathered = np.empty(columns[1].sum(dtype=np.int64), dtype=np.int64)
        gather(np.concatenate(ids), start[order], columns[1], gathered)
        append_array(self._pieces, np.stack(columns, axis=1))
        append_array(self._ids, gathered)
        of_shard = shards[order]
        self._index.append(
            np.stack([
                np.bincount(of_shard, minlength=self._shards + 1),
                np.bincount(of_shard, columns[1], minlength=self._shards + 1).astype(np.int64),
            ])
        )  # fmt: skip
        self._batches, self._buffered = [], 0


def take_file(file: BinaryIO, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the array in a file, mapped into memory, and unlink the file.

    The file's space on disk is free once nothing refers to the array any more.
    """
    size = file.tell()
    file.flush()
    values = np.memmap(file, dtype, "r") if size else np.zeros(0, dtype)
    Path(file.name).unlink()
    file.close()
    return values


def shard_sizes(folder: Path, shards: int) -> Int64s:
    """Return paths (row 0) and blocks (row 1) of the trunk and of each of `shards` other shards."""
    index: Int64s = np.load(folder / _INDEX).reshape(-1, 2, shards + 1)
    sizes: Int64s = index.sum(axis=0)
    return sizes


def read_pieces(folder: Path, shard: int) -> Iterator[Pieces]:
    """Yield the paths in a shard in batches, in order of file rows."""
    index: Int64s = np.load(folder / _INDEX)
    if not len(index):
        return
    ends = np.cumsum(index.transpose(1, 0, 2).reshape(2, -1), axis=1).reshape(2, *index[:, 0].shape)
    for flush, (pieces, ids) in enumerate(index[:, :, shard].tolist()):
        if pieces:
            first = int(ends[0, flush, shard]) - pieces
            numbers = np.fromfile(
                folder / _PIECES, np.int32, _PIECE * pieces, offset=4 * _PIECE * first
            ).reshape(-1, _PIECE)
            at = 8 * (int(ends[1, flush, shard]) - ids)
            row, length, split = (np.ascontiguousarray(column) for column in numbers.T)
            yield Pieces(row, length, split, np.fromfile(folder / _IDS, np.int64, ids, offset=at))


def starts_of(length: Int32s) -> Int64s:
    """Return each path's offset in an array of all paths' blocks, and that array's length last."""
    starts: Int64s = np.concatenate([[0], np.cumsum(length, dtype=np.int64)])
    return starts
