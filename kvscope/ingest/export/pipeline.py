"""Export: one stored trace into a file of some format."""

from __future__ import annotations

from kvscope.errors import InputError, UsageError
from kvscope.facts import Trace
from kvscope.ingest.export import registry
from kvscope.ingest.export.base import Advance
from kvscope.ingest.export.sink import DASH, sink
from kvscope.store.db import Store


def export(store: Store, trace: Trace, to: str, path: str, advance: Advance | None = None) -> None:
    """Write `trace` to `path` (`-`: standard output) in the format called `to`.

    `advance` is told how many requests have been written. Raises UsageError for an unknown format
    or a binary one on standard output, InputError for a trace that has nothing to say in it.
    """
    exporter = registry.by_name(to)()
    if path == DASH and not exporter.is_text:
        raise UsageError(
            f"{exporter.name} is binary and cannot go to standard output",
            where="--output",
            remedy="name a file",
        )
    if exporter.needs_hashes and not trace.has_hashes:
        raise InputError(
            f"the trace has no block hashes, and {exporter.name} holds nothing else",
            where=trace.name,
            remedy="export it to parquet, or to mooncake",
        )
    with sink(path) as stream:
        exporter.write(store, trace, stream, advance or _ignore)


def _ignore(requests: int) -> None:
    """Nobody watches."""
