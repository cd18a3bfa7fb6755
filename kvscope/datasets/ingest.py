"""Ingest files into a dataset's folder, step by step; finished steps are not repeated."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

import kvscope
from kvscope.core.errors import InputError, KvscopeError, UsageError, without_secrets
from kvscope.core.executor import PROCESS_BYTES, Executor
from kvscope.core.files import (
    STANDARD_STREAM,
    files_of,
    is_remote,
    one_path,
    size_of,
    space_in,
    write_text,
)
from kvscope.core.trace import PromptLengths
from kvscope.core.units import GIB, MIB, format_size
from kvscope.datasets.cuts import (
    SHARE,
    TRUNK,
    Cuts,
    FileSample,
    sample_files,
    shard_sizes,
)
from kvscope.datasets.dataset import (
    CUTS,
    REQUESTS,
    VERSION,
    WORK,
    Dataset,
    FileState,
    Manifest,
    Plan,
    ShardEntry,
    shard_folders,
)
from kvscope.datasets.files import (
    ArrayFolder,
    Arrays,
    DamagedDatasetError,
    load_array,
    save_arrays,
    whole_folder,
)
from kvscope.datasets.numbering import number_blocks
from kvscope.datasets.paths import Progress
from kvscope.datasets.reading import ReadFacts, load_facts, load_parts, load_rows, read_files
from kvscope.datasets.shards import (
    GROUPS,
    ShardTask,
    build_shard,
    columns_digest,
    load_runs,
    merge_runs,
    path_ends,
    prompt_ends,
    reduce_shard,
    run_stretches,
    save_lengths,
)
from kvscope.ingest.build import Arranged, BuiltRequests, missing_notes
from kvscope.ingest.formats.base import Rejects, counted, unread_notes
from kvscope.ingest.pipeline import (
    Ingested,
    IngestOptions,
    Origin,
    format_of,
    overlap_notes,
    vetted,
    write_requests,
    write_reuses,
)
from kvscope.ingest.source import Source
from kvscope.replay.path_facts import LENGTHS
from kvscope.store import traces
from kvscope.store.checks import keep_checksum
from kvscope.store.db import open_store
from kvscope.store.folder import MANIFEST, PLAN, STORE

LEAST_MEMORY = GIB
MOST_SHARDS = 4096
_REQUEST_BYTES = 160  # in this process, while conversations are linked, measured
_COLUMN_BYTES = 60  # in this process, while shards are built and followed, likewise
_TRUNK_PATH_BYTES = 140  # of a path in the trunk's shard, likewise
_ACCESS_BYTES = 80  # of a shard while its trie is made and its reuse followed, measured
_COMPRESSED = 6  # decompressed bytes a byte of a .gz or .zst file, about
_PIECE_BYTES = 64  # of a path in a shard, likewise
_UNEVEN = 4  # the largest shard over the mean, at most; more shards cost little
_RUNS_AT_ONCE = 4_000_000


class DatasetOptions(Struct, frozen=True):
    """How to make a dataset: memory (bytes), shards (None: by files' size, memory and workers).

    Results depend on neither, nor on `cut_share`: a prefix belongs to the trunk if more than this
    share of the requests have it. `read` has the options of reading.
    """

    memory_bytes: int
    shards: int | None = None
    cut_share: float = SHARE
    read: IngestOptions = field(default_factory=IngestOptions)


def ingest_dataset(
    paths: Sequence[str],
    into: str,
    options: DatasetOptions,
    executor: Executor,
    progress: Progress,
) -> Ingested:
    """Make the dataset of all files at `paths` in the folder `into`, or finish a started one.

    Raises InputError where files cannot be read or too many lines are bad, UsageError where the
    folder holds something else or the memory is too little.
    """
    if options.memory_bytes < LEAST_MEMORY:
        raise UsageError(
            f"{format_size(options.memory_bytes)} is less than the {format_size(LEAST_MEMORY)}"
            " that the programs themselves take",
            where="--memory",
            remedy="give more",
        )
    making = DatasetBuild(one_path(list(paths)), Path(into), options, executor, progress)
    if making.plan():
        return Ingested(Dataset(into).trace, False, Rejects(making.path))
    with alone_in(Path(into)), space_in(Path(into), "finished steps are kept"):
        making.store(making.build())
        making.finish()
    return Ingested(Dataset(into).trace, True, making.rejects)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock this dataset's folder for the block; remove drafts of killed processes.

    Raises KvscopeError where another process holds the lock.
    """
    with (folder / PLAN).open("rb") as plan:
        try:
            fcntl.flock(plan, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system ends it with the process
        except OSError as error:
            raise KvscopeError(
                "another process is making this dataset",
                where=str(folder),
                remedy="wait for it, or name another folder",
            ) from error
        remove_drafts(folder)
        yield
        remove_drafts(folder)  # of steps that an executor repeated elsewhere


def remove_drafts(folder: Path) -> None:
    """Remove the half-written folders of killed processes."""
    for draft in (*folder.glob(".*"), *folder.glob("*/.*")):
        shutil.rmtree(draft)


class DatasetBuild:
    """An ingest of a dataset: call `plan`, `build`, `store` and `finish`, in this order."""

    def __init__(
        self,
        path: str,
        folder: Path,
        options: DatasetOptions,
        executor: Executor,
        progress: Progress,
    ) -> None:
        self.path, self.folder, self.options = path, folder, options
        self.executor, self.progress = executor, progress
        self.work = folder / WORK
        self._trunk_alone = False  # whether no other shard fits beside the trunk's

    def plan(self) -> bool:
        """Make the plan, or load that of the first run; return whether the dataset is finished.

        Raises UsageError where the folder holds anything else.
        """
        self._files = files_of(self.path)
        for file in self._files:
            if not is_remote(file) and Path(file).exists() and not Path(file).is_file():
                raise _no_file(file)
        if STANDARD_STREAM in self._files:
            raise _no_file(STANDARD_STREAM)
        with closing(Source(self.path)) as source:
            self._format = format_of(source, self.options.read)
            self._unread = unread_notes(self._format.unread(source.head))
        self._read = replace(self.options.read, format=self._format.name)
        self._plan = self._settled()
        return (self.folder / MANIFEST).is_file()

    def build(self) -> BuiltRequests:
        """Read all files and make the shards; return the requests.

        Raises InputError where files cannot be read or too many lines are bad, UsageError where
        the memory is too little.
        """
        read = self._read_into(self.work / "read")
        self.rejects = read.rejects(self.path)
        held = vetted(
            self.path,
            self._format,
            self._read,
            self.rejects,
            read.gaps,
            read.cut,
            read.left_out,
        )
        if held == "delta":
            raise InputError(
                "rows of a session hold only what is new, which a dataset cannot complete",
                where=self.path,
                remedy="store it without --into, export it to mooncake, and ingest that",
            )
        self._require_memory(read.gaps.requests)
        self._bytes_on_disk, self._content = read.bytes_on_disk, read.content
        return self._built(read)

    def _read_into(self, folder: Path) -> ReadFacts:
        """Read all files into a folder, unless it exists; return the facts from reading."""
        if not folder.is_dir():
            spill = Cuts.load(self.folder / CUTS), self._plan.shards
            size = size_of(self.path)
            with self.progress.steps("reading", size, unit="bytes") as advance:
                read_files(self.path, self._format, self._read, spill, folder, advance)
        return load_facts(folder)

    def _settled(self) -> Plan:
        """Return the folder's plan, which must equal this run's; a new folder gets this run's."""
        files, read = self._files, self._read
        path = self.folder / PLAN
        reading = f"{read.read.fingerprint()}/{read.strict}/{read.max_bad}"
        states = tuple(map(_state, files))
        if path.is_file():
            try:
                known = msgspec.json.decode(path.read_bytes(), type=Plan)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise DamagedDatasetError(path, f"no plan of a dataset ({error})") from error
            shards = self.options.shards or known.shards
            plan = Plan(VERSION, read.name, read.format or "", reading, shards, states)
            if plan == known:
                return known
            raise UsageError(
                "holds a dataset of other files or options",
                where=str(self.folder),
                remedy="name another folder, or remove this one",
            )
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise UsageError(
                "is there already, and no dataset",
                where=str(self.folder),
                remedy="name a folder that is new or empty",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # of a folder that another user has made
            self.folder.chmod(0o700)  # its owner's alone, as a store is
        sample = sample_files(files, read.format or "", read.read)
        shards = self.options.shards or self._shards_for(files, sample)
        sample.cuts(self.options.cut_share).save(self.folder / CUTS)
        plan = Plan(VERSION, read.name, read.format or "", reading, shards, states)
        write_text(path, msgspec.json.encode(plan).decode())
        return plan

    def _left(self, requests: float) -> float:
        """Return the bytes left to a worker for a shard, after programs and columns of requests."""
        workers = self.executor.workers
        programs = PROCESS_BYTES * (workers + (workers > 1))
        return (self.options.memory_bytes - programs - _COLUMN_BYTES * requests) / workers

    def _shards_for(self, files: list[str], sample: FileSample) -> int:
        size = sum(
            (_state(file).size or GIB) * (_COMPRESSED if file.endswith((".gz", ".zst")) else 1)
            for file in files
        )
        workers = self.executor.workers * self.executor.machines
        left = max(self._left(sample.requests_per_byte * size), 64 * MIB)
        needed = _UNEVEN * _ACCESS_BYTES * sample.accesses_per_byte * size / left
        return int(min(max(needed + 1, 2 * workers), MOST_SHARDS))

    def _require_memory(self, requests: int) -> None:
        """Raise UsageError where the requests are too many, or a shard does not fit into memory."""
        if _REQUEST_BYTES * requests > self.options.memory_bytes - 2 * PROCESS_BYTES:
            raise self._too_many(requests, _REQUEST_BYTES)
        paths, accesses = shard_sizes(self.work / "read", self._plan.shards)
        left, trunk = self._left(requests), _TRUNK_PATH_BYTES * float(paths[TRUNK])
        if left < 64 * MIB or trunk > left * self.executor.workers:
            raise self._too_many(requests, _COLUMN_BYTES + _TRUNK_PATH_BYTES)
        self._trunk_alone = trunk > left
        needed = _PIECE_BYTES * paths + _ACCESS_BYTES * accesses
        needed[TRUNK] = _ACCESS_BYTES * Cuts.load(self.folder / CUTS).blocks  # of all its paths
        if needed.max() > left:
            raise UsageError(
                f"the largest shard takes about {format_size(int(needed.max()))}, and"
                f" {format_size(int(left))} of {format_size(self.options.memory_bytes)} are left"
                " for each worker",
                where="--memory",
                remedy="give more, or take fewer --workers",
            )

    def _too_many(self, requests: int, each_bytes: int) -> UsageError:
        workers = self.executor.workers
        programs = PROCESS_BYTES * (workers + (workers > 1)) + 64 * MIB * workers
        return UsageError(
            f"{format_size(self.options.memory_bytes)} are too little:"
            f" {requests:,} requests take {format_size(each_bytes * requests)}, and"
            f" {workers} workers and their programs {format_size(programs)}",
            where="--memory",
            remedy="give more, or take fewer --workers or part of the files",
        )

    def _run(self, label: str, step: Callable[[ShardTask], None], tasks: list[ShardTask]) -> None:
        """Run `step` on the tasks whose folders are missing; the others were done before."""
        todo = [task for task in tasks if not Path(task.folder).is_dir()]
        alone = [task for task in todo if self._trunk_alone and task.shard == TRUNK]
        with self.progress.steps(label, len(tasks)) as advance:
            advance(len(tasks) - len(todo))
            for some in (alone, [task for task in todo if task not in alone]):
                for _ in self.executor.results(step, some, each_bytes=self._left(0)):
                    advance(1)
        for folder in {Path(task.folder).parent for task in todo}:
            any(folder.iterdir())  # else a network's file system may take new ones for missing

    def _built(self, read: ReadFacts) -> BuiltRequests:
        """Make the shards, link conversations and find reuse; return the requests."""
        columns_on_disk = ArrayFolder(self.work / "requests")
        arranged = Arranged(
            load_rows(self.work / "read"),
            read.block_size,
            self._read.read,
            columns_on_disk,
            in_ms=self._format.in_ms,
        )
        requests, full_blocks = arranged.requests, arranged.full_blocks
        number = np.empty(len(full_blocks), dtype=np.int32)
        number[arranged.order] = np.arange(len(number), dtype=np.int32)
        columns = self.work / "columns"
        with whole_folder(columns) as draft:
            save_arrays(draft, {"number": number, "full_blocks": full_blocks})
            del number
            save_arrays(draft, {"row": arranged.order.astype(np.int32)})
        shards = self._shard_folders()
        self._run(
            "building shards",
            build_shard,
            [
                ShardTask(k, str(folder), str(columns), str(self.work / "read"))
                for k, folder in enumerate(shards)
            ],
        )
        overlaps = []
        if len(read.spans) > 1:
            ends = {"leaf": prompt_ends(shards, len(full_blocks))}
            overlaps = overlap_notes(read.spans, ChainMap(ends, requests))
            del ends
        kind, carrier = arranged.link(path_ends(shards, full_blocks))
        lengths = PromptLengths(
            block_size=read.block_size,
            **{name: requests[name] for name in LENGTHS},
        )
        with whole_folder(self.folder / REQUESTS) as draft:
            save_lengths(draft, lengths, carrier)
        del lengths, carrier, full_blocks  # the steps that follow take their memory
        reduced = self.reduced()
        self._run(
            "following reuse",
            reduce_shard,
            [
                ShardTask(k, str(folder), str(self.folder / REQUESTS), str(shards[k]), str(columns))
                for k, folder in enumerate(reduced)
            ],
        )
        ideal = np.zeros(len(arranged.order), dtype=np.int32)
        for folder in reduced:
            request = load_array(folder, "ideal_request")
            ideal[request] = np.maximum(ideal[request], load_array(folder, "ideal_blocks"))
        self.numbered = number_blocks(shards, reduced, requests["blocks"], arranged.order)
        requests["ideal_blocks"], requests["leaf"] = ideal, self.numbered.leaf
        requests["carried_leaf"] = self.numbered.carried_leaf
        cut = [read.cut] if read.cut else []
        notes = [*self._unread, *read.notes, *counted(read.left_out), *cut]
        missing = missing_notes(read.gaps, read.names, kind)
        return BuiltRequests(
            block_size=read.block_size,
            requests=requests,
            names=read.names,
            tenants=read.tenants,
            parts=load_parts(self.work / "read"),
            lineage=kind,
            out_of_order=arranged.out_of_order,
            notes=(*arranged.notes, *notes, *overlaps, *missing),
        )

    def _shard_folders(self) -> list[Path]:
        return shard_folders(self.folder, self._plan.shards + 1)

    def reduced(self) -> list[Path]:
        """Return the folders that `reduce_shard` writes, one for each shard, the trunk's first.

        They hold what `build` and `store` add up over the shards: runs of reuse, groups of blocks,
        the owners of blocks and the ideal hits of requests.
        """
        return [self.work / f"reduced-{number:04}" for number in range(self._plan.shards + 1)]

    def store(self, built: BuiltRequests) -> None:
        """Write the store: requests, runs of reuse, the trie's branch points, groups of blocks.

        A group has the number of blocks with the same first request, last request and number of
        reuses: lifetimes follow from these.
        """
        plan, reduced = self._plan, self.reduced()
        reading = self._read.read.fingerprint(places_sessions=self._format.places_sessions)
        draft = self.work / STORE
        for file in (draft, draft.with_name(f"{STORE}.wal")):
            file.unlink(missing_ok=True)
        blocks = sum(int(load_array(folder, "own_blocks")[0]) for folder in reduced)
        with (
            self.progress.steps("storing", len(reduced)) as advance,
            open_store(str(draft)) as store,
        ):
            taken = 2 * PROCESS_BYTES + _REQUEST_BYTES * len(built.requests["request"])
            limit = max(self.options.memory_bytes - taken, 512 * MIB)
            store.limit_memory(limit, self.work / "spill")
            with store.transaction():
                origin = Origin(
                    name=plan.name or traces.free_name(store, self.path),
                    source=without_secrets(self.path),
                    source_bytes=self._bytes_on_disk,
                    content_hash=f"{self._content}/{plan.format}/{reading}",
                    format=plan.format,
                )
                trace = write_requests(store, origin, built, blocks, self.rejects)
                branches: Arrays = {"block": self.numbered.blocks, "parent": self.numbered.parents}
                store.append("ingest/add_branches", branches, trace_id=trace.trace_id)
                for folder in reduced:
                    groups = {x: np.asarray(load_array(folder, f"group_{x}")) for x in GROUPS}
                    store.append("ingest/add_block_groups", groups, trace_id=trace.trace_id)
                    advance(1)
                requests = len(built.requests["request"])
                for begin, end in run_stretches(reduced, requests, _RUNS_AT_ONCE):
                    runs = merge_runs([load_runs(folder, begin, end) for folder in reduced])
                    write_reuses(store, trace, runs)
                keep_checksum(store, trace)
        draft.replace(self.folder / STORE)

    def finish(self) -> None:
        """Write the manifest, and remove the temporary files."""
        entries = [
            ShardEntry(
                blocks=int(load_array(reduced, "own_blocks")[0]),
                accesses=int(load_array(shard, "length").sum(dtype=np.int64)),
                digest=(reduced / "digest").read_text(encoding="ascii"),
            )
            for shard, reduced in zip(self._shard_folders(), self.reduced(), strict=True)
        ]
        manifest = Manifest(
            version=VERSION,
            kvscope=kvscope.__version__,
            content=self._content,
            columns=columns_digest(self.folder / REQUESTS),
            files=self._plan.files,
            cut_prefixes=Cuts.load(self.folder / CUTS).prefixes,
            shards=tuple(entries),
        )
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=1).decode()
        write_text(self.folder / MANIFEST, text)
        shutil.rmtree(self.work)


def _no_file(path: str) -> UsageError:
    """Return the error for a source that cannot be read again after a failure."""
    return UsageError(
        "no file: a dataset is made of files, which can be read again",
        where=path,
        remedy="write it to one first",
    )


def _state(file: str) -> FileState:
    if is_remote(file):
        return FileState(without_secrets(file), None, None)
    with suppress(OSError):
        status = os.stat(file)  # noqa: PTH116 - a name too long for a file
        return FileState(os.path.realpath(file), status.st_size, status.st_mtime_ns)
    return FileState(file, None, None)
