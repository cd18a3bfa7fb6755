"""A dataset's folder: what lies in it, and the trace that it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvscope.core.errors import InputError
from kvscope.core.trace import Trace
from kvscope.datasets.paths import DatasetPaths
from kvscope.datasets.place import MANIFEST, STORE
from kvscope.store import traces
from kvscope.store.file import StoreFile

VERSION = 2
CUTS = "cuts.npz"
REQUESTS, SHARDS, WORK = "requests", "shards", "work"


@dataclass(frozen=True, slots=True)
class FileState:
    """A file as it was read; `size` and `modified_ns` are None for an address."""

    path: str
    size: int | None
    modified_ns: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a dataset is made of, written before anything else: the same plan goes on with it.

    `reading` has the options of reading as text.
    """

    version: int
    name: str | None
    format: str
    reading: str
    shards: int
    files: tuple[FileState, ...]


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard in the manifest: its blocks (the trunk's not counted), its accesses, its digest."""

    blocks: int
    accesses: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a finished dataset holds. `content` digests what was read, `digest` what was made."""

    version: int
    kvscope: str
    content: str
    digest: str
    files: tuple[FileState, ...]
    cut_prefixes: int
    shards: tuple[ShardEntry, ...]


class Dataset:
    """A finished dataset. Raises InputError where `folder` is none."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        path = self.folder / MANIFEST
        if not path.is_file():
            raise InputError(
                "this dataset is not finished",
                where=folder,
                remedy="run the `kvscope ingest` with --into again: it goes on where it ended",
            )
        try:
            self.manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except msgspec.MsgspecError as error:
            raise InputError(f"no manifest of a dataset ({error})", where=str(path)) from error
        if self.manifest.version != VERSION:
            raise InputError(
                f"a dataset of version {self.manifest.version}, not {VERSION}",
                where=str(path),
                remedy="ingest its files again with this kvscope",
            )
        self.stores = StoreFile(str(self.folder / STORE), create=False)

    @property
    def trace(self) -> Trace:
        """The trace that all its files are."""
        with self.stores.reading() as store:
            return min(traces.all_traces(store), key=lambda trace: trace.trace_id)

    def paths(self) -> DatasetPaths:
        """Return the paths of its requests, which stay on disk."""
        folders = shard_folders(self.folder, len(self.manifest.shards))
        return DatasetPaths(self.folder / REQUESTS, tuple(folders), self.folder)


def shard_folders(folder: Path, shards: int) -> list[Path]:
    """Return the folders of the shards, the trunk's first."""
    return [folder / SHARDS / f"{number:04}" for number in range(shards)]
