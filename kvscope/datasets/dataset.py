"""A dataset's folder: its files, and the trace that they form."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from tempfile import gettempdir

import msgspec
from msgspec import Struct

from kvscope.core.errors import InputError, UsageError
from kvscope.core.trace import Trace
from kvscope.core.units import MIB, format_size
from kvscope.datasets.files import DamagedDatasetError, load_array
from kvscope.datasets.paths import RUNS_AT_ONCE, DatasetPaths
from kvscope.datasets.shards import check_columns, check_shard
from kvscope.store import traces
from kvscope.store.file import StoreFile
from kvscope.store.folder import MANIFEST, STORE

VERSION = 4
CUTS = "cuts.npz"
REQUESTS, SHARDS, WORK = "requests", "shards", "work"


class FileState(Struct, frozen=True):
    """A file as it was read; `size` and `modified_ns` are None for a remote file."""

    path: str
    size: int | None
    modified_ns: int | None


class Plan(Struct, frozen=True):
    """Sources and options of a dataset, written before its ingest; an equal plan resumes it.

    `version` is that of the dataset's files, `name` the trace's name (None: by its path), `shards`
    their number without the trunk's. `reading` is a text that identifies the options of reading.
    """

    version: int
    name: str | None
    format: str
    reading: str
    shards: int
    files: tuple[FileState, ...]


class Versioned(Struct, frozen=True):
    """The version of a manifest, readable for any version."""

    version: int


class ShardEntry(Struct, frozen=True):
    """A shard in the manifest.

    `blocks` counts its own blocks, without copies of the trunk's, `accesses` the blocks of all its
    paths, copies included. `digest` is that of its files.
    """

    blocks: int
    accesses: int
    digest: str


class Manifest(Struct, frozen=True):
    """The manifest of a finished dataset.

    `content` is a digest of the bytes read, `columns` of all requests' columns. `kvscope` is the
    version that wrote it. The trunk has `cut_prefixes` leaves; `shards` begins with the trunk's.
    """

    version: int
    kvscope: str
    content: str
    columns: str
    files: tuple[FileState, ...]
    cut_prefixes: int
    shards: tuple[ShardEntry, ...]


LEAST_LEFT = 384 * MIB
"""Bytes that the store and the runs of reuse of consecutive requests take at least."""
_PROGRAM_BYTES = 350 * MIB
_REQUEST_BYTES = 80  # arrival, category, live blocks; three columns that a shard looks up
_BLOCK_BYTES, _PATH_BYTES, _RUN_BYTES = 12, 120, 200  # of a shard, and of a stretch; measured


class AnalysisBudget(Struct, frozen=True):
    """How the memory of an analysis is divided between runs of reuse and the store.

    `runs_at_once` is how many runs (of `ReusedRuns`) may be loaded at a time. `store_bytes` is what
    DuckDB may use for its queries on the dataset's store.
    """

    runs_at_once: int
    store_bytes: int


class Dataset:
    """The finished dataset in a folder. Raises InputError for a folder without one."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        path = self.folder / MANIFEST
        if not path.is_file():
            raise InputError(
                "this dataset is not finished",
                where=folder,
                remedy="run the `kvscope ingest` with --into again",
            )
        try:
            content = path.read_bytes()
            version = msgspec.json.decode(content, type=Versioned).version
            if version != VERSION:
                raise InputError(
                    f"a dataset of version {version}, not {VERSION}",
                    where=str(path),
                    remedy="ingest its files with this kvscope, into another folder",
                )
            self.manifest = msgspec.json.decode(content, type=Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DamagedDatasetError(path, f"no manifest of a dataset ({error})") from error
        if not self.manifest.shards:
            raise DamagedDatasetError(path, "names no shards")
        self.stores = StoreFile(str(self.folder / STORE), create=False)

    @property
    def trace(self) -> Trace:
        """The trace that consists of all files of the dataset."""
        with self.stores.reading() as store:
            known = traces.all_traces(store)
        if not known:
            raise DamagedDatasetError(self.folder / STORE, "holds no trace")
        return min(known, key=lambda trace: trace.trace_id)

    def paths(self) -> DatasetPaths:
        """Return the paths of the dataset's requests, which stay on disk.

        Raises DamagedDatasetError for invalid columns of requests; shards are checked when loaded.
        """
        digests = tuple(shard.digest for shard in self.manifest.shards)
        return DatasetPaths(self._columns, tuple(self._shards()), self.work, digests=digests)

    @cached_property
    def _columns(self) -> Path:
        folder = self.folder / REQUESTS
        check_columns(folder, self.manifest.columns)
        trace, held = self.trace, DatasetPaths(folder, (), folder)
        if (held.requests, held.block_size) != (trace.requests, trace.block_size):
            raise DamagedDatasetError(folder, "holds requests of another trace than the store")
        return folder

    def faults(self) -> Iterator[str]:
        """Yield a text for damaged columns of requests, else for each damaged shard; no tables."""
        try:
            paths = self.paths()
        except DamagedDatasetError as error:
            yield f"{error.where}: {error.what}"
            return
        for folder, shard in zip(paths.folders, self.manifest.shards, strict=True):
            try:
                check_shard(folder, paths.requests, shard.digest)
            except DamagedDatasetError as error:
                yield f"{error.where}: {error.what}"

    @property
    def work(self) -> Path:
        """The folder for temporary files: the dataset's own, the system's if that is read-only."""
        return self.folder if os.access(self.folder, os.W_OK) else Path(gettempdir())

    def least_bytes(self) -> int:
        """Return the least memory (bytes) for an analysis by shards, the program's included."""
        shard = max(
            _BLOCK_BYTES * len(load_array(folder, "block_parent"))
            + _PATH_BYTES * len(load_array(folder, "request"))
            for folder in self._shards()
        )
        return _PROGRAM_BYTES + _REQUEST_BYTES * self.paths().requests + shard + LEAST_LEFT

    def analysis_budget(self, memory_bytes: int) -> AnalysisBudget:
        """Divide memory between runs of reuse and store. Raises UsageError if it is too little."""
        least = self.least_bytes()
        if memory_bytes < least:
            raise UsageError(
                f"{self.paths().requests:,} requests and the largest shard take"
                f" {format_size(least)}, {format_size(memory_bytes)} are given",
                where="--memory",
                remedy="give more, or ingest in more --shards or part of the files",
            )
        left = memory_bytes - least + LEAST_LEFT
        at_once = min(max(left // 3 // _RUN_BYTES, 1 << 16), RUNS_AT_ONCE)
        return AnalysisBudget(int(at_once), left // 2)

    def _shards(self) -> list[Path]:
        return shard_folders(self.folder, len(self.manifest.shards))


def shard_folders(folder: Path, shards: int) -> list[Path]:
    """Return the folders of all `shards`, of which the trunk is the first."""
    return [folder / SHARDS / f"{number:04}" for number in range(shards)]
