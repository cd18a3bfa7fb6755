"""Traces by name or path: the stored one, or a file that is ingested first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvscope.app.monitor import Monitor
from kvscope.core.errors import InputError, Stopped
from kvscope.core.trace import Prompts, Trace
from kvscope.store import traces
from kvscope.store.db import Store
from kvscope.store.traces import load_prompts

if TYPE_CHECKING:
    from kvscope.ingest.pipeline import Foresee, Ingested, IngestOptions

STANDARD_INPUT = "-"


def is_file(text: str) -> bool:
    """Return whether `text` names something to be read rather than a stored trace."""
    return text == STANDARD_INPUT or Path(text).exists()


def stored_trace(store: Store, name: str | None) -> Trace:
    """Return the stored trace called `name`, or the one last worked on where it is None.

    Raises InputError where there is none; it suggests the nearest stored name or file beside.
    """
    if name is None:
        return traces.find(store, None)
    known = {trace.name: trace for trace in traces.all_traces(store)}
    if name in known:
        return known[name]
    near = traces.nearest(name, [*known, *_files_in_folder_of(name)])
    raise InputError(
        "neither a file nor a stored trace",
        where=name,
        remedy=f"did you mean {near!r}?" if near else "give a trace file, or see `kvscope traces`",
    )


def ingest_file(
    store: Store,
    path: str,
    monitor: Monitor,
    options: IngestOptions | None = None,
    foresee: Foresee | None = None,
) -> Ingested:
    """Ingest the trace at `path`, if the store lacks it, and make it the one last worked on.

    `foresee` gets the prompts of a new trace before they are stored. Raises InputError for what is
    no readable trace, UnusableLinesError where too many of its lines are bad, and Stopped once the
    monitor's `stop` is set.
    """
    from kvscope.ingest.pipeline import ingest

    if Path(path).is_dir():
        raise InputError("a folder, not a trace", where=path, remedy="name a file in it")
    with monitor.steps(f"reading {path}", _file_size(path), unit="bytes") as advance:

        def read_on(amount: int) -> None:
            if monitor.stop.is_set():
                raise Stopped("stopped before the trace was read")
            advance(amount)

        ingested = ingest(store, path, options, read_on, foresee)
    trace = ingested.trace
    if not ingested.created and options is not None and options.strict and trace.bad_lines:
        line, reason = traces.bad_lines(store, trace)[0]
        raise InputError(reason, where=f"{path}:{line}")
    traces.mark_used(store, trace)
    return ingested


def replayable(store: Store, trace: Trace) -> Prompts:
    """Return the prompts of a trace. Raises InputError for one that has lengths only."""
    if not trace.has_hashes:
        raise InputError(
            "tells lengths only: without block hashes it cannot be replayed",
            where=trace.source,
            remedy="take a trace with block hashes",
        )
    return load_prompts(store, trace)


def _files_in_folder_of(text: str) -> list[str]:
    try:
        return [str(path) for path in Path(text).parent.iterdir() if path.is_file()]
    except OSError:  # the folder does not exist either
        return []


def _file_size(path: str) -> int | None:
    """Return the bytes of a regular file, None for anything else."""
    return Path(path).stat().st_size if Path(path).is_file() else None
