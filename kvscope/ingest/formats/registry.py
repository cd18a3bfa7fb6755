"""Every trace format kvscope reads; a new one is a file in this folder and a line here."""

from __future__ import annotations

from kvscope.core.errors import InputError, UsageError
from kvscope.ingest.formats.bailian import Bailian
from kvscope.ingest.formats.base import TraceFormat
from kvscope.ingest.formats.lengths import Lengths
from kvscope.ingest.formats.mooncake import Mooncake
from kvscope.ingest.formats.parquet import Parquet
from kvscope.ingest.formats.weka import Weka

FORMATS: tuple[type[TraceFormat], ...] = (Bailian, Mooncake, Weka, Lengths, Parquet)


def by_name(name: str) -> type[TraceFormat]:
    """The format called `name`."""
    for known in FORMATS:
        if known.name == name:
            return known
    raise UsageError(
        f"unknown trace format {name!r}",
        where="--format",
        remedy="take one of " + ", ".join(known.name for known in FORMATS),
    )


def detect(head: bytes, path: str) -> type[TraceFormat]:
    """The one format that recognizes `head`, the first bytes of the trace at `path`."""
    if not head.strip():
        raise InputError("the trace is empty", where=path)
    for known in FORMATS:
        if known.recognizes(head):
            return known
    raise InputError(
        "this is no trace format that kvscope knows",
        where=path,
        remedy="force one with --format (" + ", ".join(known.name for known in FORMATS) + ")",
    )
