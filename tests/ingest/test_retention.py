"""Retention directives: read from both JSON formats and Parquet, stored, exported, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import kvscope
from kvscope.app.traces import replayable
from kvscope.cli.app import run
from kvscope.core.directives import Directives, Retain, StatedDirectives
from kvscope.replay.derived_traces import select

STATED = (
    {"retain": [{"to": 1024, "priority": 80, "ttl_s": 300.0}, {"from": 1024, "ttl_s": 60}]},
    None,
    {"pause": True},
    {"ends": True, "refresh": False},
    {"pause": True, "refresh": True},
)
DISTINCT = {
    Directives((Retain(to=1024, priority=80, ttl_s=300.0), Retain(start=1024, ttl_s=60.0))),
    Directives(pause=True),
    Directives(ends=True, refresh=False),
}


def write(path: Path, stated: tuple[Any, ...], *, chats: bool) -> str:
    """Write a request a second, each with what it states, in either JSON format."""
    with path.open("w") as file:
        for number, each in enumerate(stated):
            line = {"input_length": 2048, "output_length": 1, "hash_ids": [1, 2, 3, 4]}
            line |= (
                {"chat_id": number, "timestamp": number} if chats else {"timestamp": number * 1000}
            )
            line |= {"block_size": 512}
            file.write(json.dumps(line if each is None else {**line, "retention": each}) + "\n")
    return str(path)


def directives(path: str) -> StatedDirectives | None:
    """Return what kvscope keeps of the directives in a trace."""
    with kvscope.open_trace(path) as trace:
        return replayable(trace.store, trace.facts).directives


@pytest.mark.parametrize("chats", [True, False], ids=["bailian", "mooncake"])
@pytest.mark.parametrize("export", [None, "bailian", "parquet"])
def test_directives_survive(export: str | None, tmp_path: Path, *, chats: bool) -> None:
    """Equal directives have one number; what is exported and read again is the same."""
    path = write(tmp_path / "trace.jsonl", STATED, chats=chats)
    if export is not None:
        db, target = str(tmp_path / "store.duckdb"), str(tmp_path / f"again.{export}")
        assert run(["ingest", path, "--db", db]) == 0
        assert run(["export", "trace", "--db", db, "--to", export, "-o", target]) == 0
        path = target
    kept = directives(path)
    assert kept is not None
    assert set(kept.distinct) == DISTINCT
    assert kept.number[1] == -1
    assert kept.number[2] == kept.number[4]
    assert kept.distinct[kept.number[3]] == Directives(ends=True, refresh=False)


def test_traces_without_directives_have_none(tmp_path: Path) -> None:
    """None at all, rather than a column of nothing."""
    assert directives(write(tmp_path / "plain.jsonl", (None, None), chats=True)) is None


def test_selected_requests_keep_theirs(tmp_path: Path) -> None:
    """A part of a trace has the directives of its requests."""
    with kvscope.open_trace(write(tmp_path / "trace.jsonl", STATED, chats=True)) as trace:
        whole = replayable(trace.store, trace.facts)
    part = select(whole, np.array([1, 3]))
    assert part.directives is not None
    assert whole.directives is not None
    assert part.directives.number.tolist() == whole.directives.number[[1, 3]].tolist()


def test_impossible_directives_are_bad_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A priority beyond 100 is named with its place."""
    path = write(tmp_path / "bad.jsonl", ({"retain": [{"priority": 101}]},), chats=True)
    assert run(["ingest", path, "--db", ":memory:", "--strict"]) == 3
    assert "<= 100" in (said := capsys.readouterr().err)
    assert "retention.retain[0].priority" in said


@pytest.mark.parametrize("text", ['{"pause": tru', "[" * 2_000, '{"pause": 1}', "\x00"])
def test_parquet_with_damaged_directives_is_refused_by_row(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no JSON of directives is a bad line with its number, as in other formats."""
    path, row = str(tmp_path / "bad.parquet"), {"input_tokens": 40, "output_tokens": 1}
    rows = [{**row, "arrival_s": 1.0, "retention": None}, {**row, "arrival_s": 2.0}]
    pl.DataFrame([rows[0], {**rows[1], "retention": text}]).write_parquet(path)
    db = str(tmp_path / "store.duckdb")
    assert run(["ingest", path, "--db", db, "--max-bad", "50%"]) == 0
    assert "bad.parquet:2: retention: " in capsys.readouterr().err
