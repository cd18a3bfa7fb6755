"""`kvscope watch`: a window's numbers are those of `simulate`; what begins a window anew."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from benchmarks.watch_soak import soak
from kvscope.app.requests import latency_profile
from kvscope.app.watch import (
    FACTORS,
    WARMUP,
    Advice,
    Watch,
    WatchOptions,
    WatchRequest,
    measure,
    watch_request,
)
from kvscope.core.errors import InputError, UsageError
from kvscope.core.files import data_folder
from kvscope.core.hits import standard
from kvscope.policies.lru import Lru
from kvscope.replay.settings import run_setting, with_capacity_model
from tests.cli.replayed import simulated
from tests.cli.shell import Streams

REQUESTS = 400
BLOCKS = 3_000


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    """Return a recording of the sample's conversations: every second line has cached tokens."""
    sample = gzip.decompress((data_folder("sample_traces") / "to-c.jsonl.gz").read_bytes())
    recorded = []
    for number, line in enumerate(sample.splitlines()[:REQUESTS]):
        row = json.loads(line) | {"block_size": 16}
        if number % 2:
            row["cached_tokens"] = row["input_length"] // 4
        recorded.append(json.dumps(row).encode())
    return recorded


def request(**stated: Any) -> WatchRequest:
    return WatchRequest(WatchOptions(**{"window_requests": REQUESTS, "every": 0.0} | stated))


def request_with(advice: Advice) -> WatchRequest:
    return replace(request(), advice=advice)


def test_it_is_simulate_on_the_same_window(
    lines: list[bytes], tmp_path: Path, capsys: Streams
) -> None:
    """LRU at every factor, the recommendation at its capacity, and the ideal: the same digits."""
    window = lines[100:]
    path = tmp_path / "window.jsonl"
    path.write_bytes(b"\n".join(window) + b"\n")
    advice = tmp_path / "recommendation.toml"
    before = Path(__file__).parents[1] / "written_before" / "recommendation-tlru.toml"
    text = re.sub(r"token_hit_rate = [0-9.e-]+", "token_hit_rate = 0.25", before.read_text())
    advice.write_text(text)
    stated = WatchOptions(recommendation=str(advice), capacity_blocks=BLOCKS, drift=0.2)
    hits = measure(window, watch_request(stated))
    common = (str(path), "--db", ":memory:", "--warmup", "50%")
    factors = ",".join(str(factor * BLOCKS) for factor in FACTORS)
    replayed = simulated(capsys, *common, "--policy", "lru", "--capacity-blocks", factors)
    rates = [each["token_hit_rate"] for each in replayed["results"]]
    assert list(hits.lru.values()) == rates
    assert sorted(set(rates)) == rates  # not one rate thrice
    enough = simulated(capsys, *common, "--policy", "lru", "--capacity-blocks", "10M")
    assert hits.ideal == enough["results"][0]["token_hit_rate"]
    advised = simulated(capsys, *common, "--recommendation", str(advice))["results"]
    (recommended,) = (each for each in advised if each["policy"] == "tlru")
    assert hits.recommended == recommended["token_hit_rate"]
    assert hits.drift == pytest.approx(hits.recommended / 0.25 - 1)
    assert hits.tune_again == (abs(hits.drift) > 0.2)
    counted = [json.loads(line) for line in window[len(window) // 2 :]]
    reporting = [each for each in counted if "cached_tokens" in each]
    assert hits.observed == sum(each["cached_tokens"] for each in reporting) / sum(
        each["input_length"] for each in reporting
    )
    assert (hits.requests, hits.block_size, hits.capacity_blocks) == (300, 16, BLOCKS)


def test_requests_that_no_pool_holds(lines: list[bytes], tmp_path: Path, capsys: Streams) -> None:
    """As `simulate` counts what its engine turns away, of the later half."""
    engine = with_capacity_model(
        run_setting(standard(warmup=WARMUP), latency_profile(None)),
        "engine",
        max_num_seqs=8,
        max_num_batched_tokens=2048,
    )
    blocks = 100
    hits = measure(lines, request_with(Advice(Lru(), engine, 16 * blocks, None)))
    path = tmp_path / "window.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    options = ("--policy", "lru", "--capacity-model", "engine", "--capacity-blocks", str(blocks))
    limits = ("--max-num-seqs", "8", "--max-num-batched-tokens", "2048", "--warmup", "50%")
    (run,) = simulated(capsys, str(path), "--db", ":memory:", *options, *limits)["results"]
    assert 0 < run["turned_away"] == hits.rejected < REQUESTS / 2
    assert hits.recommended == run["token_hit_rate"]


def test_what_is_counted_and_what_is_kept(lines: list[bytes]) -> None:
    """All requests are counted, the latest kept; lines that are none are bad."""
    watch = Watch(request(window_requests=50, capacity_blocks=BLOCKS))
    line = lines[0].decode()
    bad = [
        *("no JSON", "[1]", '{"chat_id": 1}', line[:-1], f'{{"x": {"[" * 10_000}'),
        *(re.sub(r'("input_length": )\d+', rf"\g<1>{number}", line) for number in ("-1", "1e9")),
        re.sub(r'("timestamp": )[0-9.]+', r"\g<1>1e999", line),
    ]
    watch.add([*lines[:60], b"\xff", *(each.encode() for each in bad)])
    assert (watch.requests, watch.bad_lines, len(watch.window)) == (60, 9, 50)
    assert watch.window == lines[10:60]
    rows = [json.loads(line) for line in lines[:60]]
    assert watch.input_tokens == sum(row["input_length"] for row in rows)
    assert watch.cached_tokens == sum(row.get("cached_tokens", 0) for row in rows)


def test_another_recording_begins_another_window(lines: list[bytes]) -> None:
    """As told, or where a file begins with a time before the window's; counts go on."""
    watch = Watch(request(window_requests=20, capacity_blocks=BLOCKS))
    watch.add(lines[:30])
    watch.add(lines[30:32], switched=True)  # the same recording: times go on
    assert (watch.restarts, len(watch.window)) == (0, 20)
    watch.add(lines[:2], switched=True)
    assert (watch.restarts, watch.window, watch.requests) == (1, lines[:2], 34)
    watch.restart()
    assert (watch.restarts, watch.window) == (2, [])


def test_replays_happen_beside_the_reading(lines: list[bytes]) -> None:
    """Only of new requests; one that fails leaves the hits before and says why."""
    watch = Watch(request(capacity_blocks=BLOCKS))
    watch.refresh()
    assert watch._computing is None
    watch.add(lines[:50])
    watch.refresh()
    assert watch._computing is not None
    watch._computing.result()
    watch.refresh()
    assert watch.hits is not None
    assert (watch.hits.requests, watch.failure, watch._computing) == (50, None, None)
    watch.restart()
    row = msgspec.json.decode(lines[0]) | {"input_length": 3, "hash_ids": []}
    watch.add([msgspec.json.encode(row)])
    watch.refresh()
    assert watch._computing is not None
    with pytest.raises(InputError):
        watch._computing.result()
    watch.refresh()
    assert "has only lengths" in str(watch.failure)
    assert watch.hits.requests == 50


def test_a_capacity_in_bytes() -> None:
    """In blocks of the recording; one below a block is refused."""
    stated = WatchOptions(capacity=1 << 30, model="llama3-8b")
    wanted = watch_request(stated)
    assert wanted.blocks(16) == 512  # 128 KiB a token
    with pytest.raises(UsageError, match="holds no block of 16384 tokens"):
        wanted.blocks(16_384)


def test_the_soak_is_short_here() -> None:
    """The benchmark of memory runs, and its window is bounded."""
    table = soak(accesses=500, window=40)
    assert "resident memory was between" in table.description
    assert table.rows[-1][0] != "0"
