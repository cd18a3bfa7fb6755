"""From what the user names to a stored trace, and what is said on the way.

Everything said here goes to stderr: a path that is ingested first does not change what a command
prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvscope.cli.diagnostics import note
from kvscope.cli.monitor import Terminal
from kvscope.cli.options import AS_IT_SAYS, Reading
from kvscope.core.errors import UsageError

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
    """Return the trace that `text` names, from now on the one last worked on.

    A path (`-`: standard input) is ingested if the store does not have it; anything else is a
    stored trace's name; None is the trace last worked on, and stderr says which. `foresee` gets the
    prompts of a new trace before it is stored. Raises UsageError where `reading` says how to read
    a trace that is read already.
    """
    from kvscope.app.traces import is_file, stored_trace
    from kvscope.store import traces

    if text is not None and is_file(text):
        return ingest_reported(store, text, reading, foresee).trace
    trace = stored_trace(store, text)
    _refuse_options(trace, reading)
    if text is None:
        note(f"working on {trace.name!r}, the trace last worked on")
    traces.mark_used(store, trace)
    return trace


def check_name(store: Store, text: str | None) -> None:
    """Raise InputError where `text` names neither a file nor a stored trace."""
    from kvscope.app.traces import is_file, stored_trace

    if text is None or not is_file(text):
        stored_trace(store, text)


def ingest_reported(
    store: Store, path: str, reading: Reading = AS_IT_SAYS, foresee: Foresee | None = None
) -> Ingested:
    """Ingest the trace at `path` with a progress bar; report bad lines, notes, and what was known.

    The trace becomes the one last worked on.
    """
    from kvscope.app.traces import ingest_file
    from kvscope.ingest.pipeline import UnusableLinesError

    try:
        ingested = ingest_file(store, path, Terminal(), _ingest_options(reading), foresee)
    except UnusableLinesError as error:
        if len(error.rejects.reasons) > 1:  # else the error says it all
            _report_bad_lines(error.rejects)
        raise
    trace = ingested.trace
    if not ingested.created:
        note(f"{path}: already in the store as {trace.name!r}, {_reading(trace)}")
    _report_bad_lines(ingested.rejects)
    if ingested.created:
        for text in trace.notes:
            note(f"{path}: {text}")
        if trace.out_of_order:
            note(f"{path}: {trace.out_of_order:,} requests were out of order, now sorted by time")
    return ingested


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
    for text in rejects.in_words():
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
