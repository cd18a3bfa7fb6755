"""A time range of a stored trace, stored as a trace of its own for all commands and pages."""

from __future__ import annotations

import numpy as np

from kvscope.core import units
from kvscope.core.errors import UsageError
from kvscope.core.trace import Trace
from kvscope.ingest.build import build
from kvscope.ingest.columns import Columns
from kvscope.ingest.formats.base import ReadOptions, Records, Rejects
from kvscope.ingest.formats.exporter import Advance, as_traced
from kvscope.ingest.pipeline import Origin, write
from kvscope.store import traces
from kvscope.store.file import Stores


def check_range(from_s: float | None, until_s: float | None) -> None:
    """Raise UsageError for a range that ends before it begins."""
    if until_s is not None and until_s <= (from_s or 0.0):
        raise UsageError("ends before it begins", where="--from, --until", remedy="exchange them")


def ingest_range(
    stores: Stores,
    trace: Trace,
    from_s: float | None = None,
    until_s: float | None = None,
    advance: Advance | None = None,
) -> Trace:
    """Return the trace of the requests that arrive from `from_s` until before `until_s`.

    Times (s) count from the trace's start; None is its start or its end. The whole range is `trace`
    itself; any other one is stored under a name of its own, unless it is stored already. Turns keep
    their numbers; a turn whose previous turn is outside the range begins a conversation. Inferred
    conversations are inferred again. `advance` gets the number of requests read since its last
    call. Raises UsageError for a range that is empty or holds no request.
    """
    check_range(from_s, until_s)
    first_s, end_s = from_s or 0.0, until_s
    if first_s <= 0 and (end_s is None or end_s > trace.span_s):
        return trace
    words = f"{first_s:.12g}-{'' if end_s is None else f'{end_s:.12g}'}s"
    content_hash = f"{words} of {trace.content_hash}"
    name = f"{trace.name}@{words}"
    columns = Columns(trace.block_size, ReadOptions(), Rejects(name, strict=True), isolated=True)
    with stores.reading() as store:
        if known := traces.find_content(store, content_hash):
            return known
        numbers = store.row(
            "ingest/requests_between",
            trace_id=trace.trace_id,
            from_s=first_s,
            until_s=float("inf") if end_s is None else end_s,
        )
        if numbers["first"] is None:
            span = units.duration_in_words(trace.span_s)
            raise UsageError(
                "no request arrives then", where="--from, --until", remedy=f"the trace lasts {span}"
            )
        for chunk in as_traced(store, trace, numbers["first"], numbers["after"]):
            columns.add(Records.one_each(0, chunk))
            if advance is not None:
                advance(len(chunk))
        original = traces.load_hash_ids(store, trace)
        own = traces.load_own_hash_ids(store, trace)
    built = build(columns, [f"requests of {trace.name} from {words}; times count from the first"])
    blocks = built.trie.hash_id[1:] - 1
    built.trie.hash_id[1:] = original[blocks]
    renamed = np.flatnonzero(own[blocks] != original[blocks])
    built.own_hash_ids.update(zip(renamed + 1, own[blocks][renamed], strict=True))
    origin = Origin(name, trace.source, 0, content_hash, trace.format)
    with stores.writing() as store, store.transaction():
        if known := traces.find_content(store, content_hash):  # another process was faster
            return known
        return write(store, origin, built, Rejects(name, accepted=len(columns)))
