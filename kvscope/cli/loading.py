"""From what the user names to a stored trace: the options of an ingest, and what is said of it.

Everything said here goes to stderr: a path that is ingested first does not change what a command
prints.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvscope import units
from kvscope.cli.diagnostics import note
from kvscope.cli.options import parsed_by
from kvscope.cli.progress import progress
from kvscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from kvscope.facts import Trace
    from kvscope.ingest.base import Rejects
    from kvscope.ingest.pipeline import Ingested, IngestOptions
    from kvscope.store.db import Store

_STDIN = "-"
_SHOWN_BAD_LINES = 5
_POISSON = "poisson:"
DEFAULT_MAX_BAD = 0.01


def parse_session_arrivals(text: str) -> float:
    """Sessions per second in `poisson:0.5/s` or `poisson:30/min`."""
    if not text.startswith(_POISSON):
        raise UsageError(
            f"{text!r} is no way for sessions to arrive",
            remedy="write for example poisson:0.5/s or poisson:30/min",
        )
    return units.parse_rate(text.removeprefix(_POISSON))


Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="What to call the trace; by default its file's name.",
        show_default=False,
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="The trace's format, where its first lines do not tell.",
        show_default=False,
    ),
]
BlockSize = Annotated[
    int | None,
    typer.Option(
        "--block-size",
        metavar="TOKENS",
        min=1,
        help="Tokens a block, where the trace does not say it.",
        show_default=False,
    ),
]
SessionArrivals = Annotated[
    float | None,
    typer.Option(
        "--session-arrivals",
        metavar="poisson:RATE",
        parser=parsed_by(parse_session_arrivals),
        help="When sessions without a common clock begin, for example poisson:0.5/s;"
        " by default one after the other.",
        show_default=False,
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, help="Seed of --session-arrivals.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first bad line, exit code 3.")]
MaxBad = Annotated[
    float,
    typer.Option(
        "--max-bad",
        metavar="SHARE",
        parser=parsed_by(units.parse_share),
        help="The share of bad lines that is tolerated, for example 1%; more store nothing.",
        show_default="1%",
    ),
]


def ingest_options(
    *,
    name: str | None = None,
    trace_format: str | None = None,
    block_size: int | None = None,
    session_arrivals: float | None = None,
    seed: int = 0,
    strict: bool = False,
    max_bad: float = DEFAULT_MAX_BAD,
) -> IngestOptions:
    """What the options above say, for the ingest."""
    from kvscope.ingest.base import ReadOptions
    from kvscope.ingest.pipeline import IngestOptions

    read = ReadOptions(block_size=block_size, session_arrivals=session_arrivals, seed=seed)
    return IngestOptions(name=name, format=trace_format, strict=strict, max_bad=max_bad, read=read)


def load_trace(store: Store, text: str | None, options: IngestOptions | None = None) -> Trace:
    """The trace that `text` names, from now on the one last worked on.

    A path (`-`: standard input) is ingested if the store does not have it; anything else is a
    stored trace's name; None is the trace last worked on, and stderr says which.
    """
    from kvscope.store import traces

    if text is not None and _is_path(text):
        return ingest_reported(store, text, options).trace
    trace = traces.find(store, text)
    if text is None:
        note(f"working on {trace.name!r}, the trace last worked on")
    traces.mark_used(store, trace)
    return trace


def ingest_reported(store: Store, path: str, options: IngestOptions | None = None) -> Ingested:
    """Ingest the trace at `path` with a progress bar; report bad lines, notes, and what was known.

    The trace becomes the one last worked on.
    """
    from kvscope.ingest.pipeline import ingest
    from kvscope.store import traces

    with progress(f"reading {path}", _size(path)) as advance:
        found = ingest(store, path, options, advance)
    trace = found.trace
    if not found.created:
        note(f"{path}: already in the store as {trace.name!r}")
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
    del record["trace_id"]  # the store's own key
    return record


def _report_bad_lines(rejects: Rejects) -> None:
    """The first bad lines one by one, then how many there are of each kind."""
    for line, reason in rejects.lines[:_SHOWN_BAD_LINES]:
        note(f"{rejects.path}:{line}: {reason}")
    if not rejects.count:
        return
    lines = rejects.accepted + rejects.count
    note(f"{rejects.path}: {rejects.count:,} of {lines:,} lines cannot be used and were left out:")
    for reason, count in sorted(rejects.reasons.items(), key=lambda item: -item[1]):
        note(f"{count:,} × {reason}")


def _is_path(text: str) -> bool:
    if text == _STDIN:
        return True
    if Path(text).is_dir():
        raise InputError("a folder, not a trace", where=text, remedy="name a file in it")
    return Path(text).exists()


def _size(path: str) -> int | None:
    return Path(path).stat().st_size if Path(path).is_file() else None
