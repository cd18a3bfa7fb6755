"""Ingest: one trace from its file into the store, in one transaction or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import groupby, pairwise, takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict
from numpy.typing import NDArray

from kvscope.core.arrays import Bools, Int32s
from kvscope.core.background import consume_in_background, in_background
from kvscope.core.errors import InputError, without_secrets
from kvscope.core.files import STANDARD_STREAM
from kvscope.core.trace import Trace
from kvscope.ingest.build import Built, BuiltRequests, build
from kvscope.ingest.clocks import complete_sessions, turns
from kvscope.ingest.columns import ATTRIBUTES, MEASURED, NONE, TOO_MANY_IDS, Columns, Gaps, Interner
from kvscope.ingest.formats import registry
from kvscope.ingest.formats.base import (
    ReadOptions,
    Records,
    Rejects,
    TraceFormat,
    Turns,
    counted,
    unread_notes,
)
from kvscope.ingest.formats.exporter import Advance
from kvscope.ingest.formats.mooncake import TEXT_PROMPTS
from kvscope.ingest.hash_ids import NO_ID
from kvscope.ingest.reuse import ReusedRuns
from kvscope.ingest.source import Source
from kvscope.ingest.trie import Trie
from kvscope.store import traces
from kvscope.store.checks import keep_checksum
from kvscope.store.db import Store
from kvscope.store.file import Stores

Foresee = Callable[[Built], None]

Span = tuple[float, float]
"""The first and the last arrival (s)."""

_FIRST_LINES = 10
_SMALLEST_ID = -(2**63)
_REQUESTS_AT_ONCE = 122_880  # a row group of DuckDB, which then need not be kept in memory


class UnusableLinesError(InputError):
    """Too many lines of a trace cannot be used; `rejects` counts them by reason."""

    def __init__(self, what: str, rejects: Rejects, remedy: str) -> None:
        super().__init__(what, where=rejects.path, remedy=remedy)
        self.rejects = rejects


class Origin(Struct, frozen=True):
    """Where a trace comes from and its name in the store."""

    name: str
    source: str
    source_bytes: int
    content_hash: str
    format: str


class Ingested(Struct, frozen=True):
    """The result of an ingest: the trace, whether it was new, and the lines that were rejected."""

    trace: Trace
    created: bool
    rejects: Rejects


class IngestOptions(Struct, frozen=True):
    """How to ingest a trace: `format` None is detected, `name` None is made from the path.

    `strict` refuses a bad line or a cut trace; else a share `max_bad` of bad lines is tolerated.
    """

    name: str | None = None
    format: str | None = None
    strict: bool = False
    max_bad: float = 0.01
    read: ReadOptions = field(default_factory=ReadOptions)


def ingest(
    stores: Stores,
    path: str,
    options: IngestOptions | None = None,
    advance: Advance | None = None,
    foresee: Foresee | None = None,
) -> Ingested:
    """Store the trace at `path` (`-`: standard input), unless it is stored already.

    Without a format and with default reading options, a stored trace of the same content is reused
    even if its options differ. `advance` gets the bytes read since its last call; `foresee` gets
    the `Built` of a new trace with hashes before it is stored, to start work on it meanwhile.
    Raises InputError, and stores nothing, if the trace cannot be read or has too many bad lines.
    """
    options = options or IngestOptions()
    known = _known_before_reading(stores, path, options)
    if known is not None:
        return Ingested(known, False, Rejects(path))
    with closing(Source(path, advance)) as source:
        chosen = format_of(source, options)
        columns, reader, rejects, spans = read_columns(source, chosen, options)
        if rejects.is_hopeless:  # what follows may have no end
            refuse_if_too_bad(rejects, chosen, options)
        content_hash = _content_hash(source.drain(), chosen, options)
        size = source.bytes_on_disk
        known = _known(stores, source, options)
    if known is not None:
        return Ingested(known, False, rejects)
    held = vetted(path, chosen, options, rejects, columns.gaps, reader.cut, reader.left_out)
    notes = [*unread_notes(chosen.unread(source.head)), *reader.all_notes()]
    if held == "delta":
        notes.append(complete_sessions(columns, path))
    if spans:
        notes = [*notes, *overlap_notes(spans, columns.arrays())]
    # Not in this thread: Ctrl-C would have to wait for each kernel.
    built = in_background(build, columns, notes, chosen.in_ms).result()
    if foresee is not None and built.trie.count > 1:
        foresee(built)
    with stores.writing() as store, store.transaction():
        if known := traces.find_content(store, content_hash):  # another process was faster
            return Ingested(known, False, rejects)
        origin = Origin(
            name=options.name or traces.free_name(store, path),
            source=without_secrets(path),
            source_bytes=size,
            content_hash=content_hash,
            format=chosen.name,
        )
        trace = write(store, origin, built, rejects)
    return Ingested(trace, True, rejects)


def vetted(
    path: str,
    chosen: type[TraceFormat],
    options: IngestOptions,
    rejects: Rejects,
    gaps: Gaps,
    cut: str,
    left_out: Mapping[str, int],
) -> Turns:
    """Check a trace that was read; return whether rows of sessions hold whole prompts.

    Raises InputError if too many of its lines are bad, if `cut` says where it is cut and `strict`
    is set, and if it holds no requests (the message counts the lines `left_out`, by reason).
    """
    if cut and (options.strict or not gaps.requests):
        raise InputError(cut, where=path, remedy="copy or write it again")
    refuse_if_too_bad(rejects, chosen, options)
    if not gaps.requests:
        what = "; ".join(["the trace holds no requests", *counted(left_out)])
        raise InputError(what, where=path)
    return turns(gaps, chosen, options.read.turns, path)


def read_columns(
    source: Source,
    chosen: type[TraceFormat],
    options: IngestOptions,
    interner: Interner | None = None,
) -> tuple[Columns, TraceFormat, Rejects, dict[str, Span]]:
    """Read `source`; return columns, reader, rejected lines, and first and last time per file.

    Stops after HOPELESS_LINES lines if none of them is usable.
    """
    rejects = Rejects(source.path, options.strict, source.place)
    reader = chosen(options.read)
    columns = Columns(chosen.default_block_size, options.read, rejects, interner=interner)
    readable = takewhile(lambda _: not rejects.is_hopeless, reader.records(source))
    spans: dict[str, Span] = {}
    consume_in_background(columns.add, _with_spans(readable, source, spans))
    return columns, reader, rejects, spans


def _with_spans(
    batches: Iterable[Records], source: Source, spans: dict[str, Span]
) -> Iterator[Records]:
    """Yield the records; with several files, note each file's first and last arrival in `spans`.

    Requests timed by a session's own clock do not count.
    """
    for records in batches:
        yield records
        for file, times_s in _times_by_file(records, source) if source.has_several_files else ():
            first_s, last_s = spans.get(file, (times_s[0], times_s[0]))
            spans[file] = min(first_s, *times_s), max(last_s, *times_s)


def _times_by_file(records: Records, source: Source) -> Iterator[tuple[str, list[float]]]:
    """Yield each file and its arrivals (s), without requests timed by a session's own clock."""
    times = (
        (source.place(line)[0], x.arrival_s)
        for line, requests in records
        for x in requests
        if x.clock is None and x.arrival_s is not None
    )
    for file, group in groupby(times, key=itemgetter(0)):
        yield file, [at_s for _, at_s in group]


def overlap_notes(spans: dict[str, Span], rows: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return notes on files that overlap in time; `rows` has the columns of all requests."""
    in_order = sorted(spans, key=spans.__getitem__)
    pairs = [
        (file, later) for file, later in pairwise(in_order) if spans[later][0] < spans[file][1]
    ]
    if not pairs:
        return []
    count = len({file for pair in pairs for file in pair})
    what = f"{count:,} of {len(spans):,} files overlap in time, as {' and '.join(pairs[0])} do"
    same = [rows[name] for name in ("arrival_s", "input_tokens", "output_tokens", "leaf")]
    order = np.lexsort(same)
    twice = np.all([np.diff(column[order]) == 0 for column in same], axis=0).sum()
    logged = (
        f"; {twice:,} requests equal another one in time, lengths and blocks: logged twice?"
        if twice
        else ""
    )
    return [f"{what}: merged in order of time{logged}"]


def write(store: Store, origin: Origin, built: Built, rejects: Rejects) -> Trace:
    """Write the trace; the caller holds a transaction."""
    trie, reuse = built.trie, built.reuse
    trace = write_requests(store, origin, built, trie.count - 1, rejects)
    number = trace.trace_id
    runs = _block_runs(trie, reuse.reuses)
    store.append("ingest/add_blocks", runs, trace_id=number)
    begins, above = runs["block"], trie.parent[runs["block"]]
    off = (begins == 1) | (above != begins - 1)  # where paths branch off, runs begin
    branches: dict[str, NDArray[Any]] = {"block": begins[off], "parent": above[off]}
    store.append("ingest/add_branches", branches, trace_id=number)
    store.append("ingest/add_block_groups", reuse.groups(), trace_id=number)
    if built.own_hash_ids:
        own: dict[str, NDArray[Any]] = {
            "block": np.array([*built.own_hash_ids], dtype=np.int32),
            "hash_id": np.array([*built.own_hash_ids.values()], dtype=np.int64),
        }
        store.append("ingest/add_own_hash_ids", own, trace_id=number)
    write_reuses(store, trace, reuse.runs)
    keep_checksum(store, trace)
    return trace


def _block_runs(trie: Trie, reuses: Int32s) -> dict[str, NDArray[Any]]:
    """Return a trie's blocks in runs: columns with an entry per run.

    In a run, each block is the child of the block before it, with the next number, the next hash id
    and the same number of reuses. `block`, `depth`, `hash_id` and `reuses` are those of the run's
    first block, `blocks` is the run's length.
    """
    parent, ids = trie.parent, trie.hash_id
    begins = np.ones(trie.count - 1, dtype=np.bool_)  # of the blocks from 1 on
    begins[1:] = (
        (parent[2:] != np.arange(1, len(begins), dtype=np.int32))
        | (ids[2:] - 1 != ids[1:-1])
        | (ids[2:] == _SMALLEST_ID)  # follows the largest by overflow alone
        | (reuses[2:] != reuses[1:-1])
    )
    first = np.flatnonzero(begins).astype(np.int32) + np.int32(1)
    return {
        "block": first,
        "depth": trie.depth[first],
        "hash_id": trie.hash_id[first],
        "reuses": reuses[first],
        "blocks": np.diff(first, append=np.int32(trie.count)),
    }


def write_reuses(store: Store, trace: Trace, runs: ReusedRuns) -> None:
    """Store runs of reuse: which earlier request last touched each stretch of a request's path.

    They are appended, so a trace's runs can be written in several calls.
    """
    columns: dict[str, NDArray[Any]] = {
        "request": runs.request,
        "prev": runs.previous,
        "depth": runs.depth,
        "blocks": runs.blocks,
    }
    store.append("ingest/add_reuses", columns, trace_id=trace.trace_id)


def write_requests(
    store: Store, origin: Origin, built: BuiltRequests, distinct_blocks: int, rejects: Rejects
) -> Trace:
    """Write the trace but for its blocks and their reuse; the caller holds a transaction."""
    requests, names = built.requests, built.names
    trace = traces.add(
        store,
        **asdict(origin),
        block_size=built.block_size,
        requests=len(requests["request"]),
        accesses=int(requests["blocks"].sum(dtype=np.int64)),
        distinct_blocks=distinct_blocks,
        span_s=float(requests["arrival_s"][-1]),
        input_tokens=int(requests["input_tokens"].sum(dtype=np.int64)),
        output_tokens=int(requests["output_tokens"].sum(dtype=np.int64)),
        lineage=built.lineage,
        has_users=bool((requests["user_id"] != NO_ID).any()),
        lines=rejects.accepted + rejects.count,
        bad_lines=rejects.count,
        out_of_order=built.out_of_order,
        notes=list(built.notes),
        models=len(names["model"]),
        adapters=len(names["adapter"]),
        salts=len(names["salt"]),
        tenants=built.tenants,
        workers=len(names["worker"]),
        measured_requests=int(np.count_nonzero(_stated(requests, MEASURED))),
    )
    number = trace.trace_id
    stated = np.flatnonzero(_stated(requests, ATTRIBUTES))
    for begin in range(0, len(requests["request"]), _REQUESTS_AT_ONCE):
        part = slice(begin, begin + _REQUESTS_AT_ONCE)
        store.append(
            "ingest/add_requests",
            {name: each[part] for name, each in requests.items() if name not in ATTRIBUTES},
            trace_id=number,
            types=list(names["type"]),
            no_id=NO_ID,
            none=NONE,
        )
    for begin in range(0, len(stated), _REQUESTS_AT_ONCE):
        some = stated[begin : begin + _REQUESTS_AT_ONCE]
        store.append(
            "ingest/add_request_attributes",
            {name: requests[name][some] for name in ("request", *ATTRIBUTES)},
            trace_id=number,
            model_names=list(names["model"]),
            adapter_names=list(names["adapter"]),
            worker_names=list(names["worker"]),
            retention_names=list(names["retention"]),
            none=NONE,
        )
    above, kind, tokens = (each[1:] for each in built.parts)
    parts: dict[str, NDArray[Any]] = {"above": above, "kind": kind, "tokens": tokens}
    parts["part"] = np.arange(1, len(tokens) + 1, dtype=np.int32)
    store.append("ingest/add_parts", parts, trace_id=number, kind_names=list(names["part"]))
    if rejects.lines:
        numbers, reasons = map(list, zip(*rejects.lines, strict=True))
        # without what is no Unicode: a file's name may hold any bytes
        places = [rejects.where(line).encode(errors="replace").decode() for line in numbers]
        bad = {"numbers": numbers, "places": places, "reasons": reasons}
        store.run("ingest/add_bad_lines", trace_id=number, **bad)
    return trace


def _stated(requests: Mapping[str, NDArray[Any]], names: Iterable[str]) -> Bools:
    """Return whether each request has a value in any of the columns `names`."""
    stated = np.zeros(len(requests["request"]), dtype=np.bool_)
    for name in names:
        stated |= requests[name] != NONE
    return stated


def _known_before_reading(stores: Stores, path: str, options: IngestOptions) -> Trace | None:
    """Return what `_known` does; None if `path` is no file, or no stored trace has its size."""
    if not (stores.exists() and _is_file(path)):
        return None
    with stores.reading() as store:
        if not traces.has_size(store, Path(path).stat().st_size):
            return None
    with closing(Source(path)) as source:
        return _known(stores, source, options)


def _known(stores: Stores, source: Source, options: IngestOptions) -> Trace | None:
    """Return the stored trace with this content and options; default options match all."""
    content = source.drain()
    if not stores.exists():
        return None
    with stores.reading() as store:
        if options.format is None and options.read == ReadOptions():
            return traces.find_reading(store, content, options.read.fingerprint())
        return traces.find_content(
            store, _content_hash(content, format_of(source, options), options)
        )


def format_of(source: Source, options: IngestOptions) -> type[TraceFormat]:
    """Return the format that the user states, else the format detected in the first lines."""
    if options.format:
        return registry.by_name(options.format)
    return registry.detect(source.head, source.path)


def _content_hash(content: str, chosen: type[TraceFormat], options: IngestOptions) -> str:
    reading = options.read.fingerprint(places_sessions=chosen.places_sessions)
    return f"{content}/{chosen.name}/{reading}"


def refuse_if_too_bad(rejects: Rejects, chosen: type[TraceFormat], options: IngestOptions) -> None:
    """Raise UnusableLinesError where more lines than `options` tolerate cannot be used."""
    lines = rejects.accepted + rejects.count
    if not lines:
        return
    if rejects.accepted and rejects.count <= options.max_bad * lines:
        return
    if rejects.accepted:
        most = f"{100 * options.max_bad:.3g}%"
        what = f"{rejects.count:,} of {lines:,} lines cannot be used, more than {most} of them"
    else:
        detected = "" if options.format else ", the nearest format"
        what = f"none of its {lines:,} lines can be read as {chosen.name}{detected}"
    line, reason = rejects.lines[0]
    what = f"{what}; the first: {rejects.where(line)}: {reason}"
    raise UnusableLinesError(what, rejects, _remedy(rejects, chosen, options))


def _remedy(rejects: Rejects, chosen: type[TraceFormat], options: IngestOptions) -> str:
    line = rejects.lines[0][0]
    commonest = max(rejects.reasons, key=rejects.reasons.__getitem__)
    if commonest == TEXT_PROMPTS:
        return registry.TEXT
    other = _format_at(rejects.path, line)
    if other and other != chosen.name:
        if rejects.accepted:
            return f"from line {line:,} on it is {other}, elsewhere {chosen.name}: split it"
        return f"it looks like {other}: leave out --format"
    if commonest == TOO_MANY_IDS and line <= _FIRST_LINES:
        return "state the trace's own --block-size"
    if not rejects.accepted and chosen.fields:
        return f"convert it: each {chosen.name} record has {', '.join(chosen.fields)}"
    return "correct them, or allow more with --max-bad; nothing was stored"


def _format_at(path: str, line: int) -> str | None:
    """Return the format of the lines from `line` on, None if it is unknown."""
    if not _is_file(path):
        return None
    with closing(Source(path)) as source, suppress(InputError):
        for first, text in source.lines():
            lines = [] if text is None else text.removesuffix(b"\n").split(b"\n")
            if line - first < len(lines):
                lines = lines[line - first :]
                return registry.detect(b"\n".join(lines[:_FIRST_LINES]), path).name
    return None


def _is_file(path: str) -> bool:
    return path != STANDARD_STREAM and Path(path).is_file()
