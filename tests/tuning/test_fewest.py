"""The fewest replicas that meet an SLO, and the interval of that number: one for every command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvscope
from kvscope.tuning.least import FleetSize, doubled, fewest, fleet_size
from kvscope.tuning.target import Target
from tests.long import long

TARGET = Target(slo_s=1.0, percentile=0.95)
FEW = np.arange(400, dtype=np.int32) // 4
SAMPLES = Path(__file__).parents[2] / "sample_traces"
COUNTS = st.sets(st.integers(1, 80), min_size=1).map(sorted)


@given(counts=COUNTS, needed=st.integers(1, 90))
def test_where_more_are_better_the_fewest_are_those_of_a_scan(
    counts: list[int], needed: int
) -> None:
    """The first of the counts that is enough, None where none is."""
    scan = next((count for count in counts if count >= needed), None)
    assert fewest(lambda some: [count >= needed for count in some], counts) == scan


@given(counts=COUNTS, enough=st.sets(st.integers(1, 80)))
def test_one_fewer_does_not_meet(counts: list[int], enough: set[int]) -> None:
    """Also where more are not always better; a lazy answer gives the same without more replays."""
    asked: list[int] = []

    def lazily(count: int) -> bool:
        asked.append(count)
        return count in enough

    least = fewest(lambda some: [count in enough for count in some], counts)
    assert fewest(lambda some: map(lazily, some), counts) == least
    assert len(asked) == len(set(asked))
    if least is None:
        assert not enough & set(doubled(counts))
        return
    assert least in enough
    place = counts.index(least)
    assert place == 0 or counts[place - 1] not in enough


@settings(deadline=None)
@given(counts=COUNTS, enough=st.sets(st.integers(1, 80)))
def test_the_interval_is_of_the_same_rule(counts: list[int], enough: set[int]) -> None:
    """Where all requests are alike, all resamples are, and the number is that of the search."""
    ttft_s = {count: np.full(20, 0.5 if count in enough else 2.0) for count in counts}
    size = fleet_size(
        ttft_s, dict.fromkeys(counts, False), np.arange(20, dtype=np.int32), Target(1.0)
    )
    least = fewest(lambda some: [count in enough for count in some], counts)
    assert (size.replicas, size.low, size.high) == (least, least, least)


def test_doubled() -> None:
    """Ascending, each at most twice the previous where that is a count, to the last one."""
    assert doubled(range(1, 17)) == [1, 2, 4, 8, 16]
    assert doubled([]) == []
    assert doubled([3]) == [3]
    assert doubled([4, 8, 12]) == [4, 8, 12]
    assert doubled([1, 5, 6]) == [1, 5, 6]
    assert doubled(range(3, 11)) == [3, 6, 10]


@pytest.mark.parametrize(
    ("name", "slo", "gpu", "replicas"),
    [
        long("to-c", "200ms", "h100", 2),
        long("to-c", "150ms", "h100", None),
        long("to-c", "8s", "l4", 6),
        long("to-b", "300ms", "l40s", 9),
        ("agent", "2s", "h100", 2),
    ],
)
def test_tune_and_fleet_have_one_number(
    name: str, slo: str, gpu: str, replicas: int | None
) -> None:
    """With LRU behind the router that `tune` names, with its interval, on the same requests."""
    with kvscope.open_trace(SAMPLES / f"{name}.jsonl.gz") as trace:
        where: dict[str, Any] = {"gpu": gpu, "model": "llama3-8b"}
        tuned = kvscope.tune(trace, slo=slo, policy="lru", **where).to_dict()
        (lru,) = tuned["recommendation"]["fewest"]
        study = kvscope.simulate_fleet(trace, slo=slo, router=lru["router"], **where).to_dict()
    assert lru["router"] == "session"
    assert lru["replicas"] == study["fewest"] == replicas
    assert lru["replicas_interval"] == study["fewest_interval"]


def latencies(slow: int) -> np.ndarray:
    """Return 400 latencies of which so many break the SLO, all over the window."""
    times = np.full(400, 0.5)
    times[np.linspace(0, 399, slow).astype(int)] = 2.0
    return times


@pytest.mark.parametrize(
    ("late", "overloaded", "size"),
    [
        ({1: 400, 2: 200, 3: 0, 4: 0}, (), FleetSize(3, 3, 3)),
        ({2: 40, 3: 19, 4: 0}, (), FleetSize(3, 3, 4)),  # 20 may be late: many resamples have more
        # Four of eight replicas miss the SLO, so that three are luck; beyond four none matters.
        ({1: 400, 2: 400, 3: 0, 4: 400, 5: 0, 6: 0, 7: 400, 8: 0}, (), FleetSize(8, 8, 8)),
        ({1: 400, 2: 400, 3: 0, 4: 0, 5: 0, 6: 0, 7: 400, 8: 0}, (), FleetSize(3, 3, 3)),
        ({1: 0, 2: 0}, (1,), FleetSize(2, 2, 2)),  # an overloaded fleet never meets an SLO
        ({1: 0, 2: 0}, (1, 2), FleetSize(None, None, None)),
    ],
    ids=["clear", "close", "luck below four", "beyond four", "one overloaded", "all overloaded"],
)
def test_the_fewest_by_late_requests(
    late: dict[int, int], overloaded: tuple[int, ...], size: FleetSize
) -> None:
    tried = {count: latencies(slow) for count, slow in late.items()}
    assert fleet_size(tried, {each: each in overloaded for each in tried}, FEW, TARGET) == size
