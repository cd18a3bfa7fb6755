"""Traces by name or path: the stored one, or a file that is ingested first."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec import Struct

from kvscope.app.monitor import Monitor, ray_cluster
from kvscope.app.options import AS_STORED, IntoOptions, Reading
from kvscope.core import memory
from kvscope.core.errors import InputError, UsageError
from kvscope.core.files import is_remote, missing_from, parts_of, size_of
from kvscope.core.trace import Prompts, Trace
from kvscope.core.units import GIB
from kvscope.store import traces
from kvscope.store.checks import require_sound
from kvscope.store.db import Store
from kvscope.store.file import CANNOT_STORE, StoreFile, Stores
from kvscope.store.folder import PLAN, is_dataset, store_path

if TYPE_CHECKING:
    from kvscope.core.executor import Executor
    from kvscope.core.runs import RunSetting
    from kvscope.datasets.dataset import Dataset
    from kvscope.ingest.pipeline import Foresee, Ingested, IngestOptions
    from kvscope.replay.sampling import DrawnTrace
    from kvscope.routers.base import Router

STANDARD_INPUT = "-"


class TraceSource(Struct, frozen=True):
    """The trace that a command works on, as its user wrote it; its `kind` is decided once.

    - last: nothing was written; the trace last worked on.
    - dataset: the folder of a dataset, finished or not.
    - files: files, folders or patterns that exist, addresses, or `-` for standard input.
    - stored: any other text; the name of a stored trace.
    """

    kind: Literal["last", "dataset", "files", "stored"]
    text: str = ""

    @classmethod
    def of(cls, text: str | None) -> Self:
        """Return the source that `text` names; None: the trace last worked on."""
        if text is None:
            return cls("last")
        if is_dataset(text):
            return cls("dataset", text)
        return cls("stored" if text != STANDARD_INPUT and missing_from(text) else "files", text)

    def store(self, db: str, note: Callable[[str], None]) -> StoreFile:
        """Return the dataset's own store, or else the store at `db`.

        `note` is called with a sentence for the user when the store waits for another process.
        Raises InputError for a dataset that is not finished.
        """
        if self.kind == "dataset":
            return StoreFile(open_dataset(self.text).stores.path, note, create=False)
        return StoreFile(db, note)

    @contextmanager
    def opened(self, db: str, monitor: Monitor) -> Iterator[tuple[StoreFile, Trace]]:
        """Yield the store and the trace, as `store` and `load` return them."""
        with self.store(db, monitor.note) as stores:
            yield stores, self.load(stores, monitor)

    def load(
        self,
        stores: Stores,
        monitor: Monitor,
        reading: Reading = AS_STORED,
        foresee: Foresee | None = None,
    ) -> Trace:
        """Return the trace, and mark it as last used (but for a dataset, alone in its store).

        Files that the store lacks are ingested, with the errors of `ingest_file`; `foresee`
        receives a new trace before it is stored. For the last used trace, a note gives its name; a
        dataset takes the store of `store`. Raises InputError for an unknown trace,
        DamagedStoreError for a damaged one, UsageError for `reading` options on a stored one.
        """
        if self.kind == "files":
            return ingest_file(stores, self.text, monitor, reading, foresee).trace
        if self.kind == "dataset":
            dataset = open_dataset(self.text, reading)
            with stores.reading() as store:
                require_sound(store, dataset.trace)
            return dataset.trace
        with stores.reading() as store:  # the others that read it meanwhile have it at once
            trace = self._stored(stores)
            if options := reading.given():
                raise UsageError(
                    f"{trace.name!r} is a stored trace, read already",
                    where=", ".join(options),
                    remedy="leave it out, or name the trace's file",
                )
            if self.kind == "last":
                monitor.note(f"working on {trace.name!r}, the trace last worked on")
            require_sound(store, trace)
            is_last = traces.find(store, None) == trace
        if not is_last:
            _mark_used(stores, trace)
        return trace

    def path(self, stores: Stores) -> str:
        """Return the path that the trace is read from, or was, if it is stored.

        Raises InputError where the text names neither a file nor a stored trace.
        """
        return self.text if self.kind in {"files", "dataset"} else self._stored(stores).source

    def stated(self, stores: Stores) -> dict[str, Any]:
        """Return the options that earlier commands stated for the trace; empty for a new trace.

        For files it is the trace from there that was last worked on.
        """
        if self.text == STANDARD_INPUT:
            return {}
        with stores.reading() as store:
            known = traces.all_traces(store)
            if self.kind == "files":
                known = [each for each in known if each.source == self.text]
            elif self.kind == "stored":
                known = [each for each in known if each.name == self.text]
            return traces.stated(store, known[0]) if known else {}

    def _stored(self, stores: Stores) -> Trace:
        return stored_trace(stores, self.text if self.kind == "stored" else None)


def open_dataset(folder: str, reading: Reading = AS_STORED) -> Dataset:
    """Return the dataset in `folder`; InputError if not done, UsageError for `reading` options."""
    from kvscope.datasets.dataset import Dataset

    if options := reading.given():
        raise UsageError(
            f"{folder!r} is a dataset, read already",
            where=", ".join(options),
            remedy="leave it out",
        )
    return Dataset(folder)


def dataset_of(store: Store, trace: Trace) -> Dataset | None:
    """Return the dataset that holds a trace's prompts; None if the store itself holds them."""
    folder = str(Path(store.path).parent)
    if store_path(folder) != store.path:
        return None
    dataset = open_dataset(folder)
    return dataset if dataset.trace == trace else None


def load_range(
    stores: Stores, trace: Trace, from_s: float | None, until_s: float | None, monitor: Monitor
) -> Trace:
    """Return a time range of a trace as a trace of its own, and mark that as last used.

    It goes from `from_s` (None: the start) until before `until_s` (None: the end), in seconds from
    the trace's start. It is stored if it is new, and a note names it. Raises UsageError if it has
    no request, and Stopped once the monitor's `stop` is set.
    """
    from kvscope.ingest.time_range import ingest_range

    with monitor.steps(f"reading a range of {trace.name}") as advance:
        read_on = monitor.checked(advance, "the range was read")
        part = ingest_range(stores, trace, from_s, until_s, read_on)
    monitor.note(f"the range is stored as {part.name!r}")
    _mark_used(stores, part)
    return part


def sources_of(stores: Stores, names: Collection[object]) -> list[str]:
    """Return the source paths of the stored traces called one of `names`."""
    with stores.reading() as store:
        return [trace.source for trace in traces.all_traces(store) if trace.name in names]


def stored_trace(stores: Stores, name: str | None) -> Trace:
    """Return the stored trace called `name`; None: the last used one.

    Raises InputError if there is none, with the nearest stored name or file.
    """
    with stores.reading() as store:
        if name is None:
            return traces.find(store, None)
        known = {trace.name: trace for trace in traces.all_traces(store)}
    if name in known:
        return known[name]
    if len(parts_of(name)) > 1:
        name = missing_from(name)[0]
        if name in {STANDARD_INPUT, *known}:
            kind = "standard input" if name == STANDARD_INPUT else "a stored trace"
            raise InputError(f"{kind} is no file among others", where=name, remedy="name files")
    near = traces.nearest(name, [*known, *_files_in_folder_of(name)])
    raise InputError(
        "neither a file nor a stored trace",
        where=name,
        remedy=f"did you mean {near!r}?" if near else "give a trace file, or see `kvscope traces`",
    )


def keep_stated(stores: Stores, trace: Trace, options: dict[str, Any]) -> None:
    """Store a command's options for later ones on `trace`, unless it cannot be written at once."""
    with stores.reading() as store:
        if traces.stated(store, trace) == options:
            return
    with suppress(*CANNOT_STORE), stores.writing(patience_s=0.0) as store:
        traces.keep_stated(store, trace, options)


def require_arrivals(
    trace: Trace, remedy: str = "take one with timestamps, or --session-arrivals"
) -> None:
    """Raise InputError for a trace without arrival times, whose requests all arrive at once."""
    if trace.span_s <= 0:
        raise InputError(
            "the trace has no arrival times, so queues cannot be simulated",
            where=trace.source,
            remedy=remedy,
        )


def routers_for(
    trace: Trace, prompts: Prompts, routers: Sequence[Router], monitor: Monitor, *, named: bool
) -> list[Router]:
    """Return the routers that the trace can be replayed with.

    Raises UsageError for `named` routers that need sessions which the trace lacks.
    """
    import numpy as np

    by_session = [router for router in routers if router.needs == "keys"]
    if not by_session:
        return list(routers)
    if len(np.unique(prompts.conversation)) < trace.requests:
        if trace.lineage == "inferred":
            monitor.note("sessions are inferred from prompts: a real router's keys may differ")
        return list(routers)
    if named:
        raise UsageError(
            f"{by_session[0].name} needs sessions, and no two requests of {trace.name!r} share one",
            where="--router",
            remedy="leave it out, or take a trace with sessions or parents",
        )
    names = ", ".join(router.name for router in by_session)
    monitor.note(f"left out: {names}, since no two requests share a session")
    return [router for router in routers if router not in by_session]


def ingest_file(
    stores: Stores,
    path: str,
    monitor: Monitor,
    reading: Reading = AS_STORED,
    foresee: Foresee | None = None,
) -> Ingested:
    """Ingest the trace at `path`, if the store lacks it, and mark it as last used.

    Notes report bad lines, inferences, and a trace stored before. Raises InputError if unreadable,
    UnusableLinesError if too many lines are bad, Stopped once the monitor's `stop` is set.
    """
    from kvscope.ingest.pipeline import ingest

    if is_dataset(path):
        raise traces.in_shards(path)
    with (
        noting_unusable_lines(monitor),
        monitor.steps(f"reading {path}", size_of(path), unit="bytes") as advance,
    ):
        read_on = monitor.checked(advance, "the trace was read")
        ingested = ingest(stores, path, ingest_options(reading), read_on, foresee)
    trace = ingested.trace
    if not ingested.created:
        if reading.strict and trace.bad_lines:
            with stores.reading() as store:
                place, reason = traces.bad_lines(store, trace)[0]
            raise InputError(reason, where=place)
        how = f"read as {trace.format}"
        if trace.has_hashes:
            how += f" in blocks of {trace.block_size:,} tokens"
        if trace.bad_lines:
            how += f", {trace.bad_lines:,} of {trace.lines:,} lines left out"
        monitor.note(f"{path}: already in the store as {trace.name!r}, {how}")
        _mark_used(stores, trace)
    note_ingested(path, ingested, monitor)
    return ingested


def note_ingested(where: str, ingested: Ingested, monitor: Monitor) -> None:
    """Note the bad lines and, for a new trace, the inferences; `where` names the trace."""
    trace = ingested.trace
    notes = list(trace.notes) if ingested.created else []
    if ingested.created and trace.out_of_order:
        notes.append(f"{trace.out_of_order:,} requests were out of order, now sorted by time")
    for text in (*ingested.rejects.in_words(), *(f"{where}: {text}" for text in notes)):
        monitor.note(text)


def ingest_into(
    paths: Sequence[str], folder: str, options: IntoOptions, reading: Reading, monitor: Monitor
) -> Ingested:
    """Build the dataset of all files at `paths` in a folder, or resume it at its missing shards.

    Notes report bad lines, inferences, and a dataset finished before. Raises InputError if files
    cannot be read or too many lines are bad, UsageError if the folder holds something else or the
    memory is too little.
    """
    from kvscope.core.executor import LocalProcesses
    from kvscope.datasets.ingest import DatasetOptions, ingest_dataset

    processes: AbstractContextManager[Executor]
    if options.on is None:
        processes = LocalProcesses(options.workers or os.cpu_count() or 1)
    else:  # nodes have other working directories
        folder = str(Path(folder).absolute())
        paths = [path if is_remote(path) else str(Path(path).absolute()) for path in paths]
        plan = str(Path(folder) / PLAN)
        processes = ray_cluster(options.on, monitor, workers=options.workers, seen_by_all=plan)
    with noting_unusable_lines(monitor), processes as executor:
        free = executor.free_bytes
        chosen = DatasetOptions(
            memory_bytes=options.memory or (free // 2 if free else 4 * GIB),
            shards=options.shards,
            read=ingest_options(reading),
        )
        made = ingest_dataset(paths, folder, chosen, executor, monitor)
    if not made.created:
        monitor.note(f"{folder}: finished already, as {made.trace.name!r}")
    note_ingested(folder, made, monitor)
    return made


def ingest_options(reading: Reading) -> IngestOptions:
    """Return the ingest options of a `reading`."""
    from kvscope.ingest.formats.base import ReadOptions
    from kvscope.ingest.pipeline import IngestOptions

    return IngestOptions(
        name=reading.name,
        format=reading.trace_format,
        strict=reading.strict,
        max_bad=reading.max_bad,
        read=ReadOptions(reading.block_size, reading.session_arrivals, reading.seed, reading.turns),
    )


@contextmanager
def noting_unusable_lines(monitor: Monitor) -> Iterator[None]:
    """Note the reasons for bad lines if the block raises UnusableLinesError; re-raise it."""
    from kvscope.ingest.pipeline import UnusableLinesError

    try:
        yield
    except UnusableLinesError as error:
        if len(error.rejects.reasons) > 1:  # else the error says it all
            for text in error.rejects.in_words():
                monitor.note(text)
        raise


def replayable(stores: Stores, trace: Trace) -> Prompts:
    """Return the prompts of a trace for a replay.

    Raises InputError for a trace of lengths only, OutOfMemoryError for one too large for memory.
    """
    from kvscope.replay.footprint import replays_bytes

    require_hashes(trace)
    remedy = "take a shorter trace, a sample of a dataset (simulate --sample), or more memory"
    memory.require(replays_bytes(trace), f"a replay of {trace.name!r}", remedy)
    with stores.reading() as store:
        return traces.load_prompts(store, trace)


def sampleable(
    stores: Stores, trace: Trace, setting: RunSetting, monitor: Monitor | None = None
) -> Prompts | DrawnTrace:
    """Return a trace's prompts for a replay, or a drawn sample if `setting` samples a dataset.

    Raises InputError for a trace of lengths only, OutOfMemoryError for one too large for memory,
    and UsageError for a sample of a trace that is no dataset.
    """
    if setting.exact:
        return replayable(stores, trace)
    from kvscope.datasets.sampling import drawn_trace

    require_hashes(trace)
    with stores.reading() as store:
        dataset = dataset_of(store, trace)
        if dataset is None:
            raise UsageError(
                f"{trace.name!r} is no dataset, and is replayed as a whole",
                where="--sample",
                remedy="leave it out, or `kvscope ingest FILES --into DIR` first",
            )
        return drawn_trace(dataset, store, setting, monitor or Monitor())


def require_hashes(trace: Trace) -> None:
    """Raise InputError for a trace that has only lengths."""
    if not trace.has_hashes:
        raise InputError(
            "has only lengths: without block hashes it cannot be replayed",
            where=trace.source,
            remedy="take a trace with block hashes",
        )


def _mark_used(stores: Stores, trace: Trace) -> None:
    """Mark `trace` as last used, if the store can be written without waiting."""
    with stores.reading() as store:
        if traces.find(store, None) == trace:
            return
    with suppress(*CANNOT_STORE), stores.writing(patience_s=0.0) as store:
        traces.mark_used(store, trace)


def _files_in_folder_of(text: str) -> list[str]:
    try:
        return [str(path) for path in Path(text).parent.iterdir() if path.is_file()]
    except OSError:  # the folder does not exist either
        return []
