"""Which model, adapter and worker served a request, and what was measured of it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.trace import Measurements, Trace
from kvscope.ingest.formats.base import Request
from kvscope.ingest.formats.exporter import rows
from kvscope.ingest.formats.registry import export
from kvscope.ingest.pipeline import ingest
from kvscope.replay.derived_traces import select
from kvscope.store.db import MEMORY, Store, open_store
from kvscope.store.traces import load_prompts, load_repeated_tokens
from tests import small_traces

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
SERVICE = (
    "model",
    "adapter",
    "cache_salt",
    "worker",
    "ttft_s",
    "queue_s",
    "duration_s",
    "cached_tokens",
    "delay_s",
)
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


@st.composite
def served(draw: st.DrawFn) -> list[Request]:
    """Draw requests of which some say by what they were served and how fast."""
    trace = draw(small_traces.requests(2, chats=True))
    seconds = st.none() | st.integers(1, 80).map(lambda eighths: eighths / 8)
    for request in trace:
        request.model = draw(st.sampled_from([None, "a", "b"]))
        request.adapter = draw(st.sampled_from([None, 0, 1, "french"]))
        request.cache_salt = draw(st.sampled_from([None, "Kolibri", "other"]))
        request.worker = draw(st.sampled_from([None, 0, "w1"]))
        request.ttft_s, request.queue_s, request.duration_s = (draw(seconds) for _ in range(3))
        request.delay_s = draw(seconds)
        request.cached_tokens = draw(st.none() | st.integers(0, request.input_tokens))
    return trace


@settings(deadline=None, max_examples=25)
@given(served(), st.sampled_from(["bailian", "parquet"]))
def test_an_export_carries_them(
    store: Store, tmp_path_factory: pytest.TempPathFactory, trace: list[Request], to: str
) -> None:
    """All but the salts' own text comes back, and so does what shares blocks with what."""
    path = tmp_path_factory.mktemp("exported") / "back"
    first = small_traces.stored(store, trace, 2)
    export(store, first, to, str(path))
    back = ingest(store, str(path)).trace
    assert counts(back) == counts(first)
    assert back.distinct_blocks == first.distinct_blocks
    assert b"Kolibri" not in path.read_bytes()
    was, now = (
        [[getattr(row, name) for name in SERVICE] for chunk in rows(store, each) for row in chunk]
        for each in (first, back)
    )
    assert now == was


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


@pytest.mark.parametrize("to", ["bailian", "parquet"])
def test_what_messages_repeat_is_kept(tmp_path: Path, to: str) -> None:
    """And comes back from an export; a trace that does not say has none."""
    lines = [
        {"timestamp": 0, "input_length": 40, "output_length": 1, "request_id": 1},
        {"timestamp": 1, "input_length": 60, "output_length": 1, "request_id": 2}
        | {"parent_request_id": 1, "repeated_tokens": 32},
    ]
    path, back = tmp_path / "trace.jsonl", str(tmp_path / "back")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with open_store(MEMORY) as store:
        trace = ingest(store, str(path)).trace
        export(store, trace, to, back)
        for each in (trace, ingest(store, back).trace):
            repeated_tokens = load_repeated_tokens(store, each)
            assert repeated_tokens is not None
            assert repeated_tokens.tolist() == [0, 32]
        path.write_text(json.dumps(lines[0]) + "\n")
        assert load_repeated_tokens(store, ingest(store, str(path)).trace) is None
