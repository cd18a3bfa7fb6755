"""The fits of a store: what models said of a trace, one fit for each way of asking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kvscope import __version__
from kvscope.core.trace import Trace
from kvscope.store.db import Store

PARTS = ("models", "windows", "next_prompts", "next_turns")

Rows = Sequence[Mapping[str, Any]]


def add(store: Store, trace: Trace, about: Mapping[str, Any], parts: Mapping[str, Rows]) -> int:
    """Keep a fit in the place of an older one with the same warm-up and windows; its number.

    `about` has the columns of `fits` that are not the store's own, `parts` the rows of each of
    `PARTS`. Columns of numbers by name are dicts.
    """
    with store.transaction():
        for older in all_fits(store, trace):
            if all(older[name] == about[name] for name in ("warmup", "window_s")):
                _remove(store, older["fit_id"])
        fit_id = store.row(
            "fits/add_fit",
            trace_id=trace.trace_id,
            kvscope=__version__,
            created_at=datetime.now(UTC).replace(tzinfo=None),
            **about,
        )["fit_id"]
        for part in PARTS:
            if rows := [_typed(row) for row in parts[part]]:
                store.run(f"fits/add_{part}", fit_id=fit_id, rows=rows)
    return int(fit_id)


def all_fits(store: Store, trace: Trace) -> list[dict[str, Any]]:
    """The fits of `trace`, the latest first."""
    return store.rows("fits/fits", trace_id=trace.trace_id)


def models(store: Store, fit_id: int) -> list[dict[str, Any]]:
    """The models of one fit."""
    return store.rows("fits/models", fit_id=fit_id)


def remove_all(store: Store, trace: Trace) -> None:
    """Remove every fit of `trace`."""
    for one in all_fits(store, trace):
        _remove(store, one["fit_id"])


def _remove(store: Store, fit_id: int) -> None:
    for table in (*(f"fit_{part}" for part in PARTS), "fits"):
        store.run(f"fits/remove_{table}", fit_id=fit_id)


def _typed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its dicts as DuckDB takes maps."""
    return {
        name: {"key": list(value), "value": list(value.values())}
        if isinstance(value, Mapping)
        else value
        for name, value in row.items()
    }
