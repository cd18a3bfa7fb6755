"""A characterization has all facts, and the columns that its queries promise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import polars as pl
import pytest

from kvscope.characterize import history
from kvscope.characterize.spatial import trace_deciles
from kvscope.characterize.summary import Characterization, start_characterization
from kvscope.core.errors import InputError
from kvscope.core.files import data_folder
from kvscope.core.percentiles import Quantiles
from kvscope.store import db, traces
from kvscope.store.db import Store
from kvscope.store.results import FIT_PARTS
from kvscope.store.traces import load_prompts
from tests.characterize.tiny import (
    CHAT_1,
    CHAT_2,
    REQUESTS,
    SEARCH_1,
    characterize,
    lengths_only,
    one_request,
    tiny_store,
)

NEED_HASHES = (
    *("sources", "skew", "reuse_gaps", "reuse_hazard", "lifetimes", "spatial", "working_set"),
)


def test_categories() -> None:
    """Each row gathers what the parts say of its category."""
    with tiny_store() as (store, trace):
        first, later, search = characterize(store, trace).categories
    assert (first.category, first.type, first.turn_bucket) == (CHAT_1, "chat", "1")
    assert (first.requests, first.share, first.multi_turn_share) == (2, 2 / 5, 0)
    assert (first.mean_input_tokens, first.mean_output_tokens) == (9, 2.5)
    assert first.reuse_gap_s == Quantiles(p50=10, p80=60, p90=60, p99=60)
    assert first.lifetime_s == Quantiles(p50=40, p80=100, p90=100, p99=100)
    assert (first.next_turn_probability, first.hit_share) == (1 / 2, 2 / 6)
    assert (later.category, later.multi_turn_share, later.hit_share) == (CHAT_2, 1, 3 / 6)
    assert (search.category, search.hit_share) == (SEARCH_1, 1 / 6)


def test_everything_at_once() -> None:
    """One call fills every part, and prompts at hand change nothing."""
    with tiny_store() as (store, trace):
        found = characterize(store, trace)
        count_deciles = partial(trace_deciles, load_prompts(store, trace))
        assert start_characterization(store, trace, count_deciles)() == found
    assert [
        field.name for field in dataclasses.fields(found) if getattr(found, field.name) is None
    ] == []


def test_facts_in_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests read at a time, and what is sorted kept on disk: the same facts."""
    with tiny_store() as (store, trace):
        monkeypatch.setattr(history, "AT_ONCE", 2)
        assert start_characterization(store, trace, work=tmp_path)() == characterize(store, trace)


def test_facts_are_json() -> None:
    """Plain numbers and rows only: what is written comes back the same."""
    with tiny_store() as (store, trace):
        found = characterize(store, trace)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Characterization) == found
    assert isinstance(msgspec.to_builtins(found)["spatial"]["overall"][0][0], float)


def test_lengths_only() -> None:
    """Without hashes there are lengths and traffic, and nothing about reuse."""
    with lengths_only() as (store, trace):
        found = characterize(store, trace)
    assert {name for name in NEED_HASHES if getattr(found, name) is not None} == set()
    assert (found.turns, found.next_turns) == (None, None)
    assert found.lengths.requests == 5
    assert [row.category for row in found.categories] == ["unknown 1"]
    row = found.categories[0]
    assert (row.reuse_gap_s, row.lifetime_s, row.hit_share) == (None, None, None)
    assert row.next_turn_probability is None
    assert found.stability.between_windows == ()


def test_one_request() -> None:
    """A single request has no rate, no reuse and one window."""
    with one_request() as (store, trace):
        found = characterize(store, trace)
    assert (found.lengths.arrival_rate_per_s, found.lengths.inter_arrival_cv) == (None, None)
    assert len(found.over_time.windows) == 1
    assert found.contribution.token_hit_rate == 0
    assert found.sources is None
    assert found.next_turns is not None
    assert found.next_turns.overall.probability == 0


def test_one_request_of_lengths() -> None:
    """Nothing but two token counts is still a trace."""
    columns: dict[str, list[Any]] = {
        "request": [0],
        "arrival_s": [0.0],
        "type": ["unknown"],
        "turn": [1],
    }
    columns |= {"conversation": [0], "input_tokens": [7], "output_tokens": [0]}
    names = ("blocks", "full_blocks", "leaf", "cached_blocks", "carried_leaf", "carried_blocks")
    columns |= {name: [0] for name in (*names, "ideal_blocks")}
    with tiny_store(columns, {}, {}, accesses=0, has_users=False, lineage="none") as (store, trace):
        found = characterize(store, trace)
    assert found.lengths.input_tokens.max == 7
    assert found.request_sizes[0].blocks.max == 2


def test_turn_buckets_at_their_edges() -> None:
    """Turn 3 stands alone, 4 and 6 share a bucket, 7 begins the last one."""
    columns = {**REQUESTS, "turn": [2, 3, 4, 6, 7], "type": ["chat"] * 5}
    with tiny_store(columns) as (store, trace):
        found = characterize(store, trace).categories
    assert [(row.category, row.requests) for row in found] == [
        ("chat 2", 1),
        ("chat 3", 1),
        ("chat 4-6", 2),
        ("chat 7+", 1),
    ]


def test_a_categorys_next_turn_is_the_settled_one() -> None:
    """Of three first chat turns one is continued; the last one is too young to tell."""
    columns = {**REQUESTS, "type": ["chat"] * 5}
    with tiny_store(columns) as (store, trace):
        found = characterize(store, trace)
    first, later = found.categories
    assert (first.category, later.category) == (CHAT_1, CHAT_2)
    assert found.next_turns is not None
    assert found.next_turns.by_category[0].next_turn.probability == 1 / 4
    assert first.next_turn_probability == 1 / 3


def test_categories_keep_their_requests_whatever_their_order() -> None:
    """Each request is of the category that it is said to be, in the order that was asked for."""
    with tiny_store() as (store, trace):
        found = store.columns(
            "characterize/history_requests",
            trace_id=trace.trace_id,
            categories=[SEARCH_1, CHAT_2, CHAT_1],
            first=0,
            end=5,
        )
    in_order = np.argsort(found["request"])
    assert found["category_index"][in_order].tolist() == [2, 1, 0, 2, 0]


def test_more_categories_than_are_told_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Analyses and replays alike: what policies learn of 40,000 types takes gigabytes."""
    what = "3 categories of requests, by type and turn, and 2 can be told apart"
    with tiny_store() as (store, trace):
        monkeypatch.setattr(traces, "MOST_CATEGORIES", 2)
        for load in (load_prompts, history.load_history):
            with pytest.raises(InputError, match=what):
                load(store, trace)


QUERIES = sorted(
    f"{path.parent.name}/{path.stem}"
    for path in data_folder("queries").glob("*/*.sql")
    if path.parent.name != "schema"  # migrations are scripts, run once
)
# parameters that are no columns
GIVEN: dict[str, Any] = {
    "types": ["x"],
    "model_names": ["x"],
    "adapter_names": ["x"],
    "worker_names": ["x"],
    "retention_names": ["x"],
    "kind_names": ["x"],
    "categories": ["x"],
    "numbers": [1],
    "places": ["x"],
    "reasons": ["x"],
    "run_ids": [1],
    "names": ["x"],
    "values": [0.5],
    "content": "x",
    "options": "x",
}
PART = ("category", "start_s", "length_s", "outcome")
# what `$rows` of a statement are: structs with some columns of a table
ROWS = {f"fits/add_{part}": f"fit_{part}" for part in FIT_PARTS}
ROWS["validate/add_runs"] = "validation_runs"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """Yield one store for all statements, each of which is rolled back."""
    with tiny_store() as (opened, _):
        yield opened


@cache
def columns_of(store: Store) -> dict[str, Any]:
    """Every column of every table, with its type."""
    tables = store._connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    found = [store._connection.table(name) for (name,) in tables]
    return {
        name: kind for table in found for name, kind in zip(table.columns, table.types, strict=True)
    }


def example(kind: Any) -> Any:
    """Return some value of this type."""
    if kind.id == "map":
        return {"key": ["x"], "value": [example(kind.children[1][1])]}
    if kind.id in {"list", "array"}:
        return [example(kind.children[0][1])]
    if kind.id == "struct":
        return {name: example(child) for name, child in kind.children}
    values = {"varchar": "x", "boolean": True, "double": 0.5}
    return values.get(kind.id, datetime(2026, 1, 1) if kind.id == "timestamp" else 1)  # noqa: DTZ001


def rows(store: Store, table: str) -> list[dict[str, Any]]:
    """Return a row of `table` without the columns that its statement adds."""
    found = store._connection.table(table)
    kinds = dict(zip(found.columns, found.types, strict=True))
    return [{name: example(kinds[name]) for name in kinds if name not in {"fit_id", "place"}}]


def parameter(store: Store, name: str, file: Path) -> Any:
    """Return a value that a parameter of this name can take, by the type of its column."""
    if name == "path":
        return str(file)
    if name.endswith("_shares"):
        return [0.5]
    known = columns_of(store)
    if name == "parts":
        return [{column: example(known[column]) for column in PART}]
    return GIVEN[name] if name in GIVEN else example(known[name]) if name in known else 1


@pytest.mark.parametrize("name", QUERIES)
def test_header_tells_what_the_statement_takes_and_returns(
    name: str, store: Store, tmp_path: Path
) -> None:
    """Parameters and columns in a query's header are those of its SQL, in their order."""
    statement = db.statement(name)
    (parsed,) = duckdb.extract_statements(statement.text)
    assert set(statement.parameters) == parsed.named_parameters
    assert len(set(statement.parameters)) == len(statement.parameters)
    assert statement.answers
    file = tmp_path / "rows.parquet"
    pl.DataFrame({column: [0] for column in statement.columns}).write_parquet(file)
    values = {
        key: rows(store, ROWS[name]) if key == "rows" else parameter(store, key, file)
        for key in statement.parameters
    }
    frame = {name: np.zeros(1, dtype=np.int32) for name in columns_of(store)}  # noqa: F841  (DuckDB finds it by name)
    store._connection.begin()
    try:
        cursor = store._connection.execute(statement.text, values)
        columns = [column[0] for column in cursor.description or ()]
    finally:
        store._connection.rollback()
    if statement.columns or parsed.type == duckdb.StatementType.SELECT:
        assert list(statement.columns) == columns
