"""From what the user names to a stored trace, and what is said on the way.

Everything said here goes to stderr: a path that is ingested first does not change what a command
prints.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.cli.diagnostics import note
from kvscope.cli.options import AS_IT_SAYS, Reading
from kvscope.cli.progress import progress
from kvscope.cli.values import STANDARD_STREAM
from kvscope.core.errors import InputError, UsageError

if TYPE_CHECKING:
    from kvscope.core.trace import Trace
    from kvscope.ingest.formats.base import Rejects
    from kvscope.ingest.pipeline import Foresee, Ingested, IngestOptions
    from kvscope.store.db import Store


def load_trace(
    store: Store,
    text: str | None,
    reading: Reading = AS_IT_SAYS,
    foresee: Foresee | None = None,
) -> Trace:
    """The trace that `text` names, from now on the one last worked on.

    A path (`-`: standard input) is ingested if the store does not have it; anything else is a
    stored trace's name; None is the trace last worked on, and stderr says which. `foresee` is told
    of a new trace before it is stored, as in `ingest`. Raises UsageError where `reading` says how
    to read a trace that is read already.
    """
    from kvscope.store import traces

    if text is not None and (text == STANDARD_STREAM or Path(text).exists()):
        return ingest_reported(store, text, reading, foresee).trace
    trace = traces.find(store, None) if text is None else _stored(store, text)
    _refuse_options(trace, reading)
    if text is None:
        note(f"working on {trace.name!r}, the trace last worked on")
    traces.mark_used(store, trace)
    return trace


def ingest_reported(
    store: Store, path: str, reading: Reading = AS_IT_SAYS, foresee: Foresee | None = None
) -> Ingested:
    """Ingest the trace at `path` with a progress bar; report bad lines, notes, and what was known.

    The trace becomes the one last worked on.
    """
    from kvscope.ingest.pipeline import UnusableLinesError, ingest
    from kvscope.store import traces

    if Path(path).is_dir():
        raise InputError("a folder, not a trace", where=path, remedy="name a file in it")
    try:
        with progress(f"reading {path}", _size(path)) as advance:
            found = ingest(store, path, _ingest_options(reading), advance, foresee)
    except UnusableLinesError as error:
        _report_bad_lines(error.rejects)
        raise
    trace = found.trace
    if not found.created:
        if reading.strict and trace.bad_lines:
            line, reason = traces.bad_lines(store, trace)[0]
            raise InputError(reason, where=f"{path}:{line}")
        note(f"{path}: already in the store as {trace.name!r}, {_reading(trace)}")
    _report_bad_lines(found.rejects)
    if found.created:
        for text in trace.notes:
            note(f"{path}: {text}")
        if trace.out_of_order:
            note(f"{path}: {trace.out_of_order:,} requests were out of order, now sorted by time")
    traces.mark_used(store, trace)
    return found


def trace_record(trace: Trace) -> dict[str, Any]:
    """All that a store knows of a trace itself, for the JSON documents that list traces."""
    record = asdict(trace)
    del record["trace_id"], record["content_hash"]  # the store's own keys
    return record


def _ingest_options(reading: Reading) -> IngestOptions:
    from kvscope.ingest.formats.base import ReadOptions
    from kvscope.ingest.pipeline import IngestOptions

    return IngestOptions(
        name=reading.name,
        format=reading.trace_format,
        strict=reading.strict,
        max_bad=reading.max_bad,
        read=ReadOptions(reading.block_size, reading.session_arrivals, reading.seed),
    )


def _report_bad_lines(rejects: Rejects) -> None:
    from kvscope.ingest.rejected_lines import bad_lines_in_words

    for text in bad_lines_in_words(rejects):
        note(text)


def _reading(trace: Trace) -> str:
    """How a trace was read, which its file alone does not tell."""
    blocks = f" in blocks of {trace.block_size:,} tokens" if trace.has_hashes else ""
    left_out = f", {trace.bad_lines:,} of {trace.lines:,} lines left out" if trace.bad_lines else ""
    return f"read as {trace.format}{blocks}{left_out}"


def _refuse_options(trace: Trace, reading: Reading) -> None:
    """Refuse options that could only have told how to read a stored trace."""
    if given := reading.given():
        raise UsageError(
            f"{trace.name!r} is a stored trace, read already",
            where=", ".join(given),
            remedy="leave it out, or name the trace's file",
        )


def _stored(store: Store, text: str) -> Trace:
    """The stored trace called `text`, which is no file; the error names what is most like it."""
    from kvscope.store import traces

    known = {trace.name: trace for trace in traces.all_traces(store)}
    if text in known:
        return known[text]
    near = traces.nearest(text, [*known, *_files_beside(text)])
    raise InputError(
        "neither a file nor a stored trace",
        where=text,
        remedy=f"did you mean {near!r}?" if near else "give a trace file, or see `kvscope traces`",
    )


def _files_beside(text: str) -> list[str]:
    """The files in the folder of the path `text`, as it would name them."""
    folder = Path(text).parent
    try:
        return [str(path) for path in folder.iterdir() if path.is_file()]
    except OSError:  # there is no such folder either
        return []


def _size(path: str) -> int | None:
    return Path(path).stat().st_size if Path(path).is_file() else None
