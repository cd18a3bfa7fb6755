"""What requests say besides their lengths: times, service, tenants, retention."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvscope
from kvscope.app.traces import replayable
from kvscope.cli.app import run
from kvscope.core.errors import InputError
from kvscope.core.hits import standard
from kvscope.core.trace import Directives, Measurements, Prompts, Retain, StatedDirectives, Trace
from kvscope.ingest.formats.base import Request
from kvscope.ingest.formats.exporter import rows
from kvscope.ingest.pipeline import IngestOptions, ingest
from kvscope.ingest.time_range import ingest_range
from kvscope.policies.lru import Lru
from kvscope.replay.derived_traces import select
from kvscope.replay.replay import replay
from kvscope.replay.traffic import traffic
from kvscope.report.overview import headline, sections
from kvscope.store.db import MEMORY, Store, open_store
from kvscope.store.traces import load_prompts, load_repeated_tokens
from kvscope.usecases.analyze import analyze
from tests import small_traces

EXTREMES = [0, -1, 1e-300, 2.5, 1e9, 1.7e12, 1e15, -1e15, 1e16, 1.7e18, 1e300, 1.7e308, -1e308]
TIMES = st.sampled_from(EXTREMES) | st.floats(allow_nan=False, allow_infinity=False)


def analyzed(store: Store, path: Path) -> tuple[int, int]:
    """Return how many lines were stored and refused; put an analysis of what is into words."""
    trace = ingest(store, str(path), IngestOptions(max_bad=1.0)).trace
    analysis = analyze(store, trace)
    assert [headline(analysis), *sections(analysis)]
    return trace.requests, trace.bad_lines


def session_rows(told: list[dict[str, float]]) -> list[dict[str, object]]:
    """Mooncake rows of one session, with these fields each."""
    prompt = {"input_length": 1024, "output_length": 1, "session_id": "s"}
    return [prompt | {"hash_ids": [1, at // 2]} | row for at, row in enumerate(told)]


def written(path: Path, told: list[dict[str, float]]) -> Path:
    """Return a trace with these rows."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in session_rows(told)))
    return path


@pytest.mark.parametrize(
    ("told", "stored"),
    [
        ([{"timestamp": 0}, {"timestamp": 1.7e18}], 1),
        ([{"timestamp": 1e300}, {"timestamp": 5}], 1),
        ([{"delay": 1e308}, {"delay": 1e308}, {"delay": 1}], 1),
        ([{"delay": 6e14}, {"delay": 6e14}], 1),
        ([{"timestamp": 60_000_000}, {"delay": -50_000_000}], 1),
        ([{"timestamp": -1e15}, {"timestamp": 1e15}], 2),
    ],
)
def test_a_wrong_clock_is_refused_line_by_line(
    store: Store, tmp_path: Path, told: list[dict[str, float]], stored: int
) -> None:
    """Times beyond a trillion seconds and delays into the past are bad lines; the rest is told."""
    assert analyzed(store, written(tmp_path / "a.jsonl", told)) == (stored, len(told) - stored)


@pytest.mark.parametrize("delay_s", [float("inf"), float("nan"), -1.0, 1e13])
def test_delays_of_a_parquet_file_are_checked_too(
    store: Store, tmp_path: Path, delay_s: float
) -> None:
    """Parquet can hold infinity and NaN, which JSON cannot."""
    path = tmp_path / "a.parquet"
    pl.DataFrame(
        {"input_tokens": [5, 6], "output_tokens": [1, 2], "delay_s": [delay_s, 1.0]}
    ).write_parquet(path)
    assert analyzed(store, path) == (1, 1)


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.fixed_dictionaries({}, optional={"timestamp": TIMES, "delay": TIMES}),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_a_clock_says_analysis_ends(
    store: Store, tmp_path: Path, told: list[dict[str, float]]
) -> None:
    """Each line is stored or refused, and the analysis of those stored has all its sections."""
    try:
        stored, refused = analyzed(store, written(tmp_path / "a.jsonl", told))
    except InputError:  # not one line is left
        return
    assert stored + refused == len(told)


SERVED = {
    "model": "m",
    "lora_name": "french",
    "cache_salt": "Kolibri",
    "worker": 0,
    "ttft_ms": 250,
    "queue_ms": 100.5,
    "duration_ms": 2000,
    "cached_tokens": 8,
    "delay_ms": 750,
}
COUNTS = ("models", "adapters", "salts", "tenants", "workers", "measured_requests")


def measured(store: Store, trace: Trace) -> Measurements:
    """Return the measurements of a stored trace that has some."""
    measurements = load_prompts(store, trace).measurements
    assert measurements is not None
    return measurements


def counts(trace: Trace) -> tuple[int | None, ...]:
    """Return what the trace itself says."""
    return tuple(getattr(trace, name) for name in COUNTS)


@pytest.mark.parametrize("chats", [False, True], ids=["mooncake", "bailian"])
def test_json_lines_carry_them(tmp_path: Path, *, chats: bool) -> None:
    """Two requests of two workers, the later one without anything measured."""
    lines = [
        {"timestamp": 0, "input_length": 13, "output_length": 1, **SERVED},
        {"timestamp": 1, "input_length": 13, "output_length": 1, "worker": "b", "lora_id": 0},
        {"timestamp": 2, "input_length": 13, "output_length": 1},
    ]
    if chats:
        lines = [{"chat_id": at, **line} for at, line in enumerate(lines)]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with open_store(MEMORY) as store:
        trace = ingest(store, str(path)).trace
        assert counts(trace) == (1, 1, 1, 2, 2, 1)
        found = measured(store, trace)
        (first, *_) = next(rows(store, trace))
    assert found.workers == ("0", "b")
    assert found.worker.tolist() == [0, 1, -1]
    assert found.cached_tokens.tolist() == [8, -1, -1]
    assert (found.worker.dtype, found.cached_tokens.dtype) == (np.int32, np.int32)
    for name, value in (("ttft_s", 0.25), ("queue_s", 0.1005), ("duration_s", 2.0)):
        assert np.array_equal(getattr(found, name), [value, math.nan, math.nan], equal_nan=True)
    assert (first.model, first.adapter, first.cache_salt, first.worker) == ("m", "french", "0", "0")


def test_a_trace_without_them_has_none() -> None:
    """No measurements, and a single tenant."""
    trace = [Request(input_tokens=40, output_tokens=4, hash_ids=[1, 2, at]) for at in range(3)]
    with open_store(MEMORY) as store:
        fact = small_traces.stored(store, trace, 16)
        assert counts(fact) == (0, 0, 0, 1, 0, 0)
        assert load_prompts(store, fact).measurements is None


def test_impossible_values_are_left_out_and_counted(tmp_path: Path) -> None:
    """The requests stay; a time to first token of 0 stands for none in the logs of many tools."""
    wrong = [
        {"ttft_ms": -1},
        {"queue_ms": -0.5},
        {"cached_tokens": 14},
        {"cached_tokens": -1},
        {"cached_tokens": 2**70},
        {"ttft_ms": 0, "cached_tokens": 13},
    ]
    path = tmp_path / "trace.jsonl"
    line = {"input_length": 13, "output_length": 1}
    path.write_text("".join(json.dumps(line | more) + "\n" for more in wrong))
    with open_store(MEMORY) as store:
        ingested = ingest(store, str(path))
        found = measured(store, ingested.trace)
    assert ingested.rejects.count == 0
    assert "5 measured values are impossible and left out" in ingested.trace.notes
    assert found.cached_tokens.tolist() == [-1, -1, -1, -1, -1, 13]
    assert np.isnan(found.ttft_s).all()


def test_a_selection_keeps_those_of_its_requests() -> None:
    """Numbered anew with the requests."""
    trace = [
        Request(input_tokens=4, output_tokens=1, ttft_s=at + 1.0, worker=at) for at in range(3)
    ]
    with open_store(MEMORY) as store:
        prompts = load_prompts(store, small_traces.stored(store, trace, 2))
    chosen = select(prompts, np.array([0, 2])).measurements
    assert chosen is not None
    assert chosen.ttft_s.tolist() == [1.0, 3.0]
    assert [chosen.workers[number] for number in chosen.worker] == ["0", "2"]


def test_what_messages_repeat_is_kept(tmp_path: Path) -> None:
    """A trace that does not say has none."""
    lines = [
        {"timestamp": 0, "input_length": 40, "output_length": 1, "request_id": 1},
        {"timestamp": 1, "input_length": 60, "output_length": 1, "request_id": 2}
        | {"parent_request_id": 1, "repeated_tokens": 32},
    ]
    for count, expected in ((2, [0, 32]), (1, None)):
        path = tmp_path / f"{count}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines[:count]))
        with open_store(MEMORY) as store:
            repeated_tokens = load_repeated_tokens(store, ingest(store, str(path)).trace)
        assert (None if repeated_tokens is None else repeated_tokens.tolist()) == expected


Line = dict[str, object]


def line(at: int, **more: object) -> Line:
    """Return a record with a prompt of three blocks of four tokens, the same each time."""
    return {
        "timestamp": at,
        "input_length": 13,
        "output_length": 1,
        "hash_ids": [1, 2, 3],
        "block_size": 4,
        **more,
    }


def read(folder: Path, *lines: Line) -> Prompts:
    """Ingest the lines and load them as a replay does."""
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    with open_store(MEMORY) as store:
        return load_prompts(store, ingest(store, str(path)).trace)


def hits(prompts: Prompts) -> list[int]:
    """Return the leading blocks that each request hits in a cache with room for all."""
    return list(replay(traffic(prompts, standard()), Lru(), 100).hit_blocks)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model": "a"}, {"model": "b"}),
        ({"model": "a"}, {}),
        ({"lora_name": "a"}, {"lora_name": "b"}),
        ({"lora_id": 1}, {"lora_id": 2}),
        ({"lora_id": 1}, {"lora_id": 0}),
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({"model": "a", "cache_salt": "s"}, {"model": "a"}),
    ],
)
@pytest.mark.parametrize("chats", [False, True], ids=["mooncake", "bailian"])
def test_tenants_share_nothing(tmp_path: Path, one: Line, other: Line, *, chats: bool) -> None:
    """Equal hash ids are other blocks; within a tenant they are the same, whoever came first."""
    lines = [line(at, **tenant) for at, tenant in enumerate((one, other, one, other))]
    if chats:
        lines = [{"chat_id": at, "parent_chat_id": -1, **each} for at, each in enumerate(lines)]
    prompts = read(tmp_path, *lines)
    assert hits(prompts) == [0, 0, 3, 3]
    assert len(prompts.block_parent) == 1 + 2 * 3


@pytest.mark.parametrize(
    "same",
    [
        {"model": "a", "lora_name": "l", "cache_salt": "s"},
        {"lora_id": 0, "lora_name": "", "cache_salt": ""},
    ],
)
def test_one_tenant_is_a_trace_as_ever(tmp_path: Path, same: Line) -> None:
    """The same model throughout changes no block; base model and empty salt are none."""
    prompts = read(tmp_path, line(0, **same), line(1, **same))
    plain = read(tmp_path, line(0), line(1))
    assert hits(prompts) == hits(plain) == [0, 3]
    assert prompts.leaf.tolist() == plain.leaf.tolist()


def test_a_turn_under_another_model_carries_no_output(tmp_path: Path) -> None:
    """A session's next turn names the blocks of its own model, not those the turn before left."""
    short = {"input_length": 2, "output_length": 7, "hash_ids": [1], "session_id": "s"}
    turn = {"session_id": "s", "model": "b"}
    prompts = read(tmp_path, line(0, **short, model="a"), line(1, **turn), line(2, **turn))
    assert prompts.carried_blocks.tolist()[0] == 0
    assert hits(prompts) == [0, 0, 3]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"model": 7}, "Expected `str | null`, got `int` - at `$.model`"),
        ({"lora_id": 1.5}, "Expected `int | str | null`, got `float` - at `$.lora_id`"),
        ({"cache_salt": ["a"]}, "Expected `str | null`, got `array` - at `$.cache_salt`"),
    ],
)
def test_other_types_are_refused(tmp_path: Path, field: Line, reason: str) -> None:
    """With the line, the field and what was expected."""
    path = tmp_path / "trace.jsonl"
    lines = [line(at) for at in range(200)] + [line(200, **field)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    with open_store(MEMORY) as store:
        rejects = ingest(store, str(path)).rejects
    assert rejects.lines == [(201, reason)]


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
def test_equal_directives_have_one_number(tmp_path: Path, *, chats: bool) -> None:
    """In each of the JSON formats."""
    kept = directives(write(tmp_path / "trace.jsonl", STATED, chats=chats))
    assert kept is not None
    assert set(kept.distinct) == DISTINCT
    assert kept.number[1] == -1
    assert kept.number[2] == kept.number[4]
    assert kept.distinct[kept.number[3]] == Directives(ends=True, refresh=False)


def test_a_time_range_keeps_its_directives(tmp_path: Path) -> None:
    """Those of its requests, as the whole trace has them."""
    with open_store(MEMORY) as store:
        whole = ingest(store, write(tmp_path / "trace.jsonl", STATED, chats=True)).trace
        part = ingest_range(store, whole, 2.0)
        kept = load_prompts(store, part).directives
    assert kept is not None
    assert kept.distinct[kept.number[1]] == Directives(ends=True, refresh=False)


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
