"""The traces of a store: list, find, add, remove."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.core.errors import InputError
from kvscope.core.trace import Prompts, Trace
from kvscope.store import fits, validations
from kvscope.store.db import Store

_ALIKE = 0.75
"""From 0 to 1: how much a name must be like another to be suggested for it."""


def all_traces(store: Store) -> list[Trace]:
    """Every trace of the store, the one last worked on first."""
    return [_fact(row) for row in store.rows("ingest/traces")]


def find(store: Store, name: str | None) -> Trace:
    """The trace called `name`, or the one last worked on.

    Raises InputError where there is none, with the nearest name.
    """
    known = all_traces(store)
    if not known:
        raise InputError(
            "holds no traces", where=store.path, remedy="give a trace file, or run `kvscope ingest`"
        )
    if name is None:
        return known[0]
    for trace in known:
        if trace.name == name:
            return trace
    near = nearest(name, [trace.name for trace in known])
    raise InputError(
        f"no stored trace is called {name!r}",
        where=store.path,
        remedy=f"did you mean {near!r}?" if near else "see `kvscope traces`",
    )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` most like `name`, whatever their capitals; None if none is."""
    folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=_ALIKE)
    return folded[near[0]] if near else None


def find_content(store: Store, content_hash: str) -> Trace | None:
    """The trace with this content, if the store has it."""
    found = store.rows("ingest/trace_by_content", content_hash=content_hash)
    return _fact(found[0]) if found else None


def find_reading(store: Store, content: str, options: str) -> Trace | None:
    """The trace read from this content: with these options, otherwise the one last worked on.

    `content` and `options` are the beginning and the end of a content hash.
    """
    found = store.rows("ingest/readings", content=content, options=options)
    return _fact(found[0]) if found else None


def has_size(store: Store, source_bytes: int) -> bool:
    """Whether a stored trace came from a file of this size."""
    return bool(store.row("ingest/traces_of_size", source_bytes=source_bytes)["traces"])


def free_name(store: Store, path: str) -> str:
    """A name for the trace at `path` that no stored trace has: its stem, numbered if need be."""
    stem = "stdin" if path == "-" else Path(path).name
    for suffix in (".gz", ".zst", ".jsonl", ".json", ".csv", ".parquet"):
        stem = stem.removesuffix(suffix)
    taken = {trace.name for trace in all_traces(store)}
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name


def add(store: Store, **columns: Any) -> Trace:
    """Add a trace's own row; the caller holds a transaction and writes the rest."""
    if any(trace.name == columns["name"] for trace in all_traces(store)):
        raise InputError(
            f"a trace called {columns['name']!r} is already there",
            where=store.path,
            remedy="choose another --name, or remove it with `kvscope traces remove`",
        )
    told = {name: _storable(value) for name, value in columns.items()}
    return _fact(store.row("ingest/add_trace", **told))


def bad_lines(store: Store, trace: Trace) -> list[tuple[int, str]]:
    """(line, reason) of the lines that could not be used; of very many only the first are kept."""
    found = store.rows("ingest/bad_lines", trace_id=trace.trace_id)
    return [(row["line"], row["reason"]) for row in found]


def load_prompts(store: Store, trace: Trace) -> Prompts:
    """The prompts of `trace`, in order of arrival."""
    requests = store.columns("ingest/prompts", trace_id=trace.trace_id)
    names = store.rows("ingest/category_names", trace_id=trace.trace_id)
    return Prompts(
        block_size=trace.block_size,
        categories=tuple(row["category"] for row in names),
        block_parent=load_block_parents(store, trace),
        **requests,
    )


def load_block_parents(store: Store, trace: Trace) -> NDArray[np.int32]:
    """The prefix trie of `trace`: each block's parent, entry 0 being the root's own 0."""
    parents = store.columns("ingest/block_parents", trace_id=trace.trace_id)["parent"]
    block_parent = np.zeros(len(parents) + 1, dtype=np.int32)
    block_parent[1:] = parents
    return block_parent


def mark_used(store: Store, trace: Trace) -> None:
    """Make `trace` the one last worked on."""
    store.run("ingest/mark_used", trace_id=trace.trace_id)


def remove(store: Store, trace: Trace) -> None:
    """Remove the trace and everything derived from it, in one transaction."""
    with store.transaction():
        fits.remove_all(store, trace)
        validations.remove_all(store, trace)
        for table in ("run_parts", "runs", "reuses", "blocks", "requests", "bad_lines", "traces"):
            store.run(f"ingest/remove_{table}", trace_id=trace.trace_id)


def _storable(value: Any) -> Any:
    """The value, in text only what is Unicode: a file's name may hold any bytes."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _fact(row: dict[str, Any]) -> Trace:
    return Trace(**{**row, "notes": tuple(row["notes"])})
