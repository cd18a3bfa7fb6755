"""Ingest: one trace from its file into the store, in one transaction or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.core.background import each_beside
from kvscope.core.errors import InputError
from kvscope.core.trace import PromptPaths, Trace
from kvscope.ingest.build import Built, build
from kvscope.ingest.columns import Columns
from kvscope.ingest.formats import registry
from kvscope.ingest.formats.base import ReadOptions, Rejects, TraceFormat
from kvscope.ingest.identifiers import NO_ID
from kvscope.ingest.source import STDIN, Source
from kvscope.store import traces
from kvscope.store.db import Store

NONE = -1
"""Stands for no request in the columns of parents and of first and last touches."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a trace comes from and what it is to be called."""

    name: str
    source: str
    source_bytes: int
    content_hash: str
    format: str


def write(store: Store, origin: Origin, built: Built, rejects: Rejects) -> Trace:
    """Write the trace; the caller holds a transaction."""
    requests = built.requests
    trace = traces.add(
        store,
        **asdict(origin),
        block_size=built.block_size,
        requests=len(requests["request"]),
        accesses=int(requests["blocks"].sum(dtype=np.int64)),
        distinct_blocks=built.trie.count - 1,
        span_s=float(requests["arrival_s"][-1]),
        input_tokens=int(requests["input_tokens"].sum(dtype=np.int64)),
        output_tokens=int(requests["output_tokens"].sum(dtype=np.int64)),
        lineage=built.lineage,
        has_users=bool((requests["user_id"] != NO_ID).any()),
        lines=rejects.accepted + rejects.count,
        bad_lines=rejects.count,
        out_of_order=built.out_of_order,
        notes=list(built.notes),
    )
    number = trace.trace_id
    store.append(
        "ingest/add_requests",
        requests,
        trace_id=number,
        types=list(built.types),
        no_id=NO_ID,
        no_parent=NONE,
    )
    store.append("ingest/add_blocks", _blocks(built), trace_id=number, no_request=NONE)
    store.append("ingest/add_reuses", _reuses(built), trace_id=number)
    if rejects.lines:
        numbers, reasons = map(list, zip(*rejects.lines, strict=True))
        store.run("ingest/add_bad_lines", trace_id=number, numbers=numbers, reasons=reasons)
    return trace


def _blocks(built: Built) -> dict[str, NDArray[Any]]:
    trie, found = built.trie, built.reuse
    return {
        "block": np.arange(1, trie.count, dtype=np.int32),
        "parent": trie.parent[1:],
        "depth": trie.depth[1:],
        "hash_id": trie.hash_id[1:],
        "first_request": found.first[1:],
        "last_request": found.last[1:],
        "reuses": found.reuses[1:],
    }


def _reuses(built: Built) -> dict[str, NDArray[Any]]:
    found, arrival_s = built.reuse, built.requests["arrival_s"]
    return {
        "request": found.request,
        "prev": found.prev,
        "depth": found.depth,
        "blocks": found.blocks,
        "gap_s": arrival_s[found.request] - arrival_s[found.prev],
    }


Advance = Callable[[int], None]
Foresee = Callable[[PromptPaths], None]


class UnusableLinesError(InputError):
    """Too many lines of a trace cannot be used; `rejects` counts them by reason."""

    def __init__(self, what: str, rejects: Rejects, remedy: str) -> None:
        super().__init__(what, where=rejects.path, remedy=remedy)
        self.rejects = rejects


@dataclass(frozen=True, slots=True)
class Ingested:
    """What an ingest did: the trace, whether it was new, and the lines that could not be used."""

    trace: Trace
    created: bool
    rejects: Rejects


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """How to ingest: `format` forced or None, `max_bad` the share of unusable lines tolerated."""

    name: str | None = None
    format: str | None = None
    strict: bool = False
    max_bad: float = 0.01
    read: ReadOptions = field(default_factory=ReadOptions)


def ingest(
    store: Store,
    path: str,
    options: IngestOptions | None = None,
    advance: Advance | None = None,
    foresee: Foresee | None = None,
) -> Ingested:
    """Bring the trace at `path` (`-`: standard input) into the store, if it is not there already.

    Options that say nothing of how to read it take what is stored of it, however that was read.
    `advance` is told of every byte read, `foresee` of the paths of a new trace with hashes before
    it is written: what that begins may go on beside. Raises InputError where the trace cannot be
    read or too many of its lines are bad; then the store is as it was.
    """
    options = options or IngestOptions()
    known = _known_before_reading(store, path, options)
    if known is not None:
        return Ingested(known, False, Rejects(path))
    source = Source(path, advance)
    try:
        chosen = _format(source, options)
        rejects = Rejects(path, options.strict)
        reader = chosen.reader(options.read)
        columns = Columns(chosen.default_block_size, options.read, rejects)
        each_beside(columns.add, reader.records(source))
        content_hash = _content_hash(source.drain(), chosen, options)
        size = source.bytes_on_disk
        known = _known(store, source, options)
    finally:
        source.close()
    if known is not None:
        return Ingested(known, False, rejects)
    _refuse_if_too_bad(rejects, options.max_bad)
    if not len(columns):
        raise InputError("the trace holds no requests", where=path)
    origin = Origin(
        name=options.name or traces.free_name(store, path),
        source=path,
        source_bytes=size,
        content_hash=content_hash,
        format=chosen.name,
    )
    built = build(columns, reader.notes)
    if foresee is not None and built.trie.count > 1:
        foresee(built.paths())
    with store.transaction():
        trace = write(store, origin, built, rejects)
    return Ingested(trace, True, rejects)


def _known_before_reading(store: Store, path: str, options: IngestOptions) -> Trace | None:
    """The stored trace with the same content, looked for only if one has the file's size."""
    if path == STDIN or not Path(path).is_file():
        return None
    if not traces.has_size(store, Path(path).stat().st_size):
        return None
    source = Source(path)
    try:
        return _known(store, source, options)
    finally:
        source.close()


def _known(store: Store, source: Source, options: IngestOptions) -> Trace | None:
    """The stored trace with this content: read in the same way, or in any if none is named."""
    content = source.drain()
    if options.format is None and options.read == ReadOptions():
        return traces.find_reading(store, content, options.read.fingerprint())
    return traces.find_content(store, _content_hash(content, _format(source, options), options))


def _format(source: Source, options: IngestOptions) -> type[TraceFormat]:
    if options.format:
        return registry.by_name(options.format)
    return registry.detect(source.head, source.path)


def _content_hash(content: str, chosen: type[TraceFormat], options: IngestOptions) -> str:
    reading = options.read.fingerprint(places_sessions=chosen.places_sessions)
    return f"{content}/{chosen.name}/{reading}"


def _refuse_if_too_bad(rejects: Rejects, max_bad: float) -> None:
    lines = rejects.accepted + rejects.count
    if not lines:
        raise InputError("the trace holds no requests", where=rejects.path)
    first = f"{rejects.path}:{rejects.lines[0][0]}: {rejects.lines[0][1]}" if rejects.lines else ""
    if not rejects.accepted:
        raise UnusableLinesError(
            f"none of its {lines:,} lines can be used, the first because: {first}",
            rejects,
            remedy="is the right --format given?",
        )
    if rejects.count > max_bad * lines:
        raise UnusableLinesError(
            f"{rejects.count:,} of {lines:,} lines cannot be used, more than {100 * max_bad:.3g}%"
            f" of them; the first: {first}",
            rejects,
            remedy="mend them, or allow more with --max-bad; nothing was stored",
        )
