"""Perfetto traces: every counted request once, with the times of the replay, on its replica."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvscope
from kvscope.core.errors import ExitCode
from kvscope.core.percentiles import percentiles
from kvscope.core.trace import Prompts
from kvscope.fleet.replay import FleetReplay
from kvscope.report.perfetto import write_perfetto
from kvscope.usecases.documents import to_dict
from tests.cli.replayed import write_short
from tests.cli.shell import Streams, document, streams_of
from tests.small_traces import SIZES, built, prompts, requests

REQUIRED = {
    "M": {"ph", "pid", "name", "args"},
    "X": {"ph", "pid", "tid", "ts", "dur", "name"},
    "C": {"ph", "pid", "ts", "name", "args"},
    "i": {"ph", "pid", "tid", "ts", "name", "s"},
}
"""The fields of each phase by the Trace Event Format."""
US = 1e6
SINCE = "steps", "evicted blocks"
"""What engines did since the request before."""


@st.composite
def replays(draw: st.DrawFn) -> tuple[Prompts, FleetReplay]:
    """Draw a trace, and how up to three replicas served it; some requests are rejected."""
    size = draw(SIZES)
    trace = prompts(built(draw(requests(size)), size))
    count = len(trace.leaf)
    seconds = st.lists(st.integers(0, 5), min_size=count, max_size=count)
    gaps, queue, prefill, decode = (np.array(draw(seconds), dtype=np.float64) for _ in range(4))
    arrival_s = np.cumsum(gaps / 3)
    begin_s = arrival_s + queue / 7
    token_s = begin_s + prefill / 7
    rejected = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    times = [np.where(rejected, np.nan, each) for each in (begin_s, token_s, token_s + decode)]
    own = np.array(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), np.int32)
    hits = np.minimum(trace.blocks, 1).astype(np.int32)
    order = np.arange(count, dtype=np.int32)
    done = FleetReplay(3, own, hits, hits, order, arrival_s, *times, np.zeros(3, dtype=np.int64))
    return trace, done


def events_of(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file, each with the fields of its phase."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    for event in events:
        assert event.keys() >= REQUIRED[event["ph"]], event
        assert event.get("dur", 0) >= 0
    return events


def requests_of(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the slice of each request, with the durations of its phases."""
    slices = [event for event in events if event["ph"] == "X"]
    by_row = defaultdict(list)
    for event in slices:
        by_row[event["pid"], event["tid"]].append(event)
    whole = {event["args"]["request"]: event for event in slices if "args" in event}
    assert len(whole) == sum("args" in event for event in slices)  # each once
    for row in by_row.values():
        until, request = 0, row[0]
        for event in row:
            if "args" in event:
                assert event["ts"] >= until, "slices of a row overlap"
                until, request = event["ts"] + event["dur"], event
                inside = event["ts"]
            else:
                assert event["ts"] >= inside
                inside = event["ts"] + event["dur"]
                assert inside <= until
                request[event["name"]] = event["dur"]
    return whole


def ttft_of(whole: dict[int, dict[str, Any]]) -> dict[str, float]:
    """Return the percentiles of TTFT, in ms."""
    ttft_us = [event.get("queue", 0) + event["prefill"] for event in whole.values()]
    return to_dict(percentiles(np.array(ttft_us) / 1e3))


@settings(deadline=None, max_examples=60)
@given(replays(), st.integers(0, 3))
def test_times_are_the_replays(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[Prompts, FleetReplay], skipped: int
) -> None:
    """Queue and prefill are the TTFT, and rows of a replica hold one request at a time."""
    trace, done = drawn
    count = len(trace.leaf)
    first = min(skipped, count - 1)
    path = tmp_path_factory.mktemp("perfetto") / "trace.json"
    write_perfetto(str(path), trace, done, first)
    events = events_of(path)
    whole = requests_of(events)
    rejected = {event["args"]["request"] for event in events if event["ph"] == "i"}
    assert rejected == {each for each in range(first, count) if np.isnan(done.token_s[each])}
    assert whole.keys() | rejected == set(range(first, count))
    assert not whole.keys() & rejected
    for request, event in whole.items():
        assert event["pid"] == done.replica[request] + 1
        assert event["ts"] == round(done.arrival_s[request] * US)
        waited = done.begin_s[request] - done.arrival_s[request]
        assert event.get("queue", 0) == pytest.approx(waited * US, abs=1)
        ttft_us = event.get("queue", 0) + event.get("prefill", 0)
        assert ttft_us == pytest.approx(done.ttft_s[request] * US, abs=1)
        assert ttft_us + event.get("decode", 0) == event["dur"]
        assert event["args"]["hit_tokens"] <= event["args"]["input_tokens"]
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {"replica 0", "replica 1", "replica 2"}
    for event in (event for event in events if event["ph"] == "C"):
        assert event["name"] == "requests"  # nothing else is known without engines
        served = (done.replica == event["pid"] - 1) & np.isfinite(done.token_s)
        arrived, begun, ended = (
            served & (np.round(times * US) <= event["ts"])
            for times in (done.arrival_s, done.begin_s, done.end_s)
        )
        assert event["args"]["waiting"] == arrived.sum() - begun.sum()
        assert event["args"]["running"] == begun.sum() - ended.sum()


def test_a_fleet_is_the_answer(tmp_path: Path, capsys: Streams) -> None:
    """The file has the counted requests of the chosen fleet, as its TTFT and hit rate say."""
    path = tmp_path / "fleet.json.gz"
    trace = write_short(tmp_path)
    words = ("fleet", trace, "--db", ":memory:", "--capacity-blocks", "3000", "--slo", "500ms")
    words = (*words, "--router", "random,session", "--replicas", "2..3", "--perfetto", str(path))
    made = document(capsys, *words)
    whole = requests_of(events_of(path))
    assert sorted(whole) == list(range(250, 500))
    best = made["lines"][0]
    (fleet,) = [
        each
        for each in made["fleets"]
        if (each["router"], each["replicas"]) == (best["router"], made["chosen"])
    ]
    served = Counter(event["pid"] for event in whole.values())
    assert [served[pid] for pid in range(1, made["chosen"] + 1)] == [
        each["latencies"]["requests"] for each in fleet["by_replica"]
    ]
    assert ttft_of(whole) == pytest.approx(fleet["latencies"]["ttft_ms"], abs=0.002)
    hits, inputs = (
        sum(event["args"][name] for event in whole.values())
        for name in ("hit_tokens", "input_tokens")
    )
    assert hits / inputs == pytest.approx(fleet["hit_rate"], abs=1e-9)
    assert "exists" in streams_of(capsys, *words, code=ExitCode.USAGE).err
    with pytest.raises(kvscope.UsageError, match=r"exists, .* replace it with force"):
        kvscope.simulate_fleet(trace, slo="500ms", capacity_blocks=3000, perfetto=path)


def test_one_engine_is_that_of_simulate(tmp_path: Path, capsys: Streams) -> None:
    """Its queued TTFTs, rejected requests and evicted blocks are those of the run."""
    path = tmp_path / "engine.json"
    pool = (write_short(tmp_path), "--db", ":memory:", "--capacity-blocks", "3000", "--policy")
    (run,) = document(capsys, "simulate", *pool, "lru", "--capacity-model", "engine")["results"]
    words = ("fleet", *pool, "lru", "--time-model", "engine", "--slo", "500ms", "--warmup", "0%")
    streams_of(capsys, *words, "--router", "session", "--replicas", "1", "--perfetto", str(path))
    events = events_of(path)
    whole = requests_of(events)
    rejected = [event["args"]["request"] for event in events if event["ph"] == "i"]
    assert sorted([*whole, *rejected]) == list(range(500))
    assert len(rejected) == run["turned_away"] > 0
    counted = {name: [event for event in events if event["name"] == name] for name in SINCE}
    steps, evicted = ([event["args"]["since"] for event in counted[name]] for name in SINCE)
    assert len(steps) == len(evicted) == 500
    assert min(*steps, *evicted) == 0 < sum(steps)
    assert 0.9 * run["evictions"] < sum(evicted) <= run["evictions"]  # some follow the last one
    assert ttft_of(whole) == pytest.approx(run["queued_ttft_ms"], abs=0.002)
