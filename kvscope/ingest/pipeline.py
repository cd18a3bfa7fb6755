"""Ingest: one trace from its file into the store, in one transaction or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvscope.errors import InputError
from kvscope.facts import Trace
from kvscope.ingest import registry
from kvscope.ingest.base import BadLine, ReadOptions, Rejects, TraceFormat
from kvscope.ingest.build import build
from kvscope.ingest.columns import Columns
from kvscope.ingest.source import STDIN, Source
from kvscope.ingest.write import Origin, write
from kvscope.store import traces
from kvscope.store.db import Store

Advance = Callable[[int], None]


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
    store: Store, path: str, options: IngestOptions | None = None, advance: Advance | None = None
) -> Ingested:
    """Bring the trace at `path` (`-`: standard input) into the store, if it is not there already.

    `advance` is told of every byte read. Raises InputError where the trace cannot be read or too
    many of its lines are bad; then the store is as it was.
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
        columns = Columns(chosen.default_block_size, options.read)
        for requests in reader.records(source, rejects):
            try:
                columns.add(requests)
                rejects.accepted += 1
            except BadLine as error:
                rejects.reject(str(error))
        content_hash = _content_hash(source.drain(), chosen, options)
        size = source.bytes_on_disk
    finally:
        source.close()
    known = traces.find_content(store, content_hash)
    if known is not None:
        return Ingested(known, False, rejects)
    _refuse_if_too_bad(rejects, options.max_bad)
    origin = Origin(
        name=options.name or traces.free_name(store, path),
        source=path,
        source_bytes=size,
        content_hash=content_hash,
        format=chosen.name,
    )
    built = build(columns, reader.notes)
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
        chosen = _format(source, options)
        return traces.find_content(store, _content_hash(source.drain(), chosen, options))
    finally:
        source.close()


def _format(source: Source, options: IngestOptions) -> type[TraceFormat]:
    if options.format:
        return registry.by_name(options.format)
    return registry.detect(source.head, source.path)


def _content_hash(content: str, chosen: type[TraceFormat], options: IngestOptions) -> str:
    told = f"{content}/{chosen.name}/{options.read.fingerprint()}"
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


def _refuse_if_too_bad(rejects: Rejects, max_bad: float) -> None:
    lines = rejects.accepted + rejects.count
    first = f"{rejects.path}:{rejects.lines[0][0]}: {rejects.lines[0][1]}" if rejects.lines else ""
    if not rejects.accepted:
        what = f"none of its {lines:,} lines can be used, the first because: {first}"
        raise InputError(
            what if lines else "the trace holds no requests",
            where=rejects.path,
            remedy="is the right --format given?" if lines else None,
        )
    if rejects.count > max_bad * lines:
        raise InputError(
            f"{rejects.count:,} of {lines:,} lines cannot be used, more than {100 * max_bad:.3g}%"
            f" of them; the first: {first}",
            where=rejects.path,
            remedy="mend them, or allow more with --max-bad; nothing was stored",
        )
