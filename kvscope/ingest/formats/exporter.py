"""The contract of an export format: a class in the file of its trace format, or in its own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import BinaryIO, ClassVar

import msgspec
import numpy as np

from kvscope.core.prefix import paths
from kvscope.core.trace import Directives, Trace
from kvscope.ingest.formats.base import ROOT, Request
from kvscope.store.db import Store
from kvscope.store.traces import load_block_parents, load_parts

REQUESTS_AT_ONCE = 4096

Advance = Callable[[int], None]
_directives = msgspec.json.Decoder(Directives).decode


def rows(
    store: Store, trace: Trace, first_request: int = 0, after: int | None = None
) -> Iterator[list[Request]]:
    """Yield requests by arrival, from `first_request` to before `after` (None: all), in chunks.

    Hash ids are the blocks' numbers in the trie, unique in the trace. Chat ids are the trace's own
    if every request has a different one, else request numbers; cache salts are numbers.
    """
    after = trace.requests if after is None else after
    block_parent, parts = load_block_parents(store, trace), load_parts(store, trace)
    own_ids = store.row("ingest/export_own_ids", trace_id=trace.trace_id)["own_ids"]
    for first in range(first_request, after, REQUESTS_AT_ONCE):
        requests = store.rows(
            "ingest/export_requests",
            trace_id=trace.trace_id,
            first=first,
            after=min(first + REQUESTS_AT_ONCE, after),
            own_ids=own_ids,
        )
        leaf = np.array([row.pop("leaf") for row in requests], dtype=np.int32)
        blocks = np.array([row.pop("blocks") for row in requests], dtype=np.int32)
        starts, ids = paths(block_parent, leaf, blocks)
        for number, (row, (start, end)) in enumerate(
            zip(requests, pairwise(starts), strict=True), first
        ):
            row["hash_ids"] = ids[start:end].tolist()
            row["parts"] = parts and parts.of(number)
            row["retention"] = row["retention"] and _directives(row["retention"])
        yield [Request(**row) for row in requests]


def as_traced(
    store: Store, trace: Trace, first_request: int = 0, after: int | None = None
) -> Iterator[list[Request]]:
    """Yield `rows` with ROOT for no parent if conversations are given, else without any parents."""
    for requests in rows(store, trace, first_request, after):
        for request in requests:
            if trace.lineage != "given":
                request.parent_chat_id = None
            elif request.parent_chat_id is None:
                request.parent_chat_id = ROOT
        yield requests


class Exporter(ABC):
    """A format in which traces are written; its docstring says what it cannot carry.

    Abilities are declared: `is_text` is True for a format of lines, which may go to a terminal or a
    pipe, `needs_hashes` for a format that cannot hold a trace of lengths alone.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str] = ""  # where the format is described
    is_text: ClassVar[bool] = True
    needs_hashes: ClassVar[bool] = False

    @abstractmethod
    def write(self, store: Store, trace: Trace, stream: BinaryIO, advance: Advance) -> None:
        """Write all of `trace` to `stream`, with some thousand requests in memory at a time.

        `advance` gets the number of requests written since its last call.
        """


class LineExporter(Exporter):
    """A format with one JSON object per request and line; subclasses write only `line`."""

    @abstractmethod
    def line(self, row: Request, block_size: int) -> dict[str, object]:
        """Return the fields of a request's line; None fields are not written."""

    def write(self, store: Store, trace: Trace, stream: BinaryIO, advance: Advance) -> None:
        """Write a line per request."""
        encode = msgspec.json.Encoder().encode
        for chunk in rows(store, trace):
            lines = [encode(stated(self.line(row, trace.block_size))) for row in chunk]
            stream.write(b"\n".join([*lines, b""]))
            advance(len(chunk))


def stated(line: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that are not None."""
    return {name: value for name, value in line.items() if value is not None}


def milliseconds(seconds: float | None) -> int | float | None:
    """Return ms such that ms / 1,000 == seconds where possible, int if whole; None for None."""
    if seconds is None:
        return None
    nearest = round(seconds * 1000)
    if nearest / 1000 == seconds:
        return nearest
    scaled = seconds * 1000
    around = (scaled, math.nextafter(scaled, 0), math.nextafter(scaled, math.inf))
    return next((each for each in around if each / 1000 == seconds), scaled)
