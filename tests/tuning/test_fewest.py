"""The fewest replicas: one rule, and one number for `tune` and `fleet`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvscope
from kvscope.core.files import data_folder
from kvscope.tuning.fewest import doubled, fewest

DEPLOYMENT: dict[str, Any] = {"gpu": "h100", "model": "llama3-8b"}
COUNTS = st.sets(st.integers(1, 80), min_size=1).map(sorted)


@given(counts=COUNTS, needed=st.integers(1, 90))
def test_where_more_are_better_the_fewest_are_those_of_a_scan(
    counts: list[int], needed: int
) -> None:
    """The first of the counts that is enough, None where none is."""
    scan = next((count for count in counts if count >= needed), None)
    assert fewest(lambda count: count >= needed, counts) == scan


@given(counts=COUNTS, enough=st.sets(st.integers(1, 80)))
def test_one_fewer_does_not_meet(counts: list[int], enough: set[int]) -> None:
    """Also where more are not always better."""
    answer = fewest(enough.__contains__, counts)
    if answer is None:
        assert not enough & set(doubled(counts))
        return
    assert answer in enough
    at = counts.index(answer)
    assert at == 0 or counts[at - 1] not in enough


def test_doubled() -> None:
    """Ascending, each at most twice the previous where that is a count, to the last one."""
    assert doubled(range(1, 17)) == [1, 2, 4, 8, 16]
    assert doubled([3]) == [3]
    assert doubled([4, 8, 12]) == [4, 8, 12]
    assert doubled([1, 5, 6]) == [1, 5, 6]
    assert doubled(range(3, 11)) == [3, 6, 10]


@pytest.mark.parametrize(("name", "slo"), [("to-c", "200ms"), ("to-c", "350ms"), ("to-b", "150ms")])
def test_tune_and_fleet_have_one_number(name: str, slo: str) -> None:
    """With LRU behind the router that tune names: replicas, percentile and hits."""
    sample = str(data_folder("sample_traces") / f"{name}.jsonl.gz")
    with kvscope.open_trace(sample) as trace:
        tuned = kvscope.tune(trace, slo=slo, policies="lru", **DEPLOYMENT).to_dict()
        study = kvscope.simulate_fleet(trace, slo=slo, router="session", **DEPLOYMENT).to_dict()
    today, *others = tuned["plan"]["options"]
    more = [each for each in others if each["router"] == "session"]
    option = more[0] if more else today
    assert study["fewest"] == (option["replicas"] if more or option["slo"] != "misses" else None)
    if study["fewest"] is not None:
        assert study["figures"]["p95"] == pytest.approx(option["target_ms"] / 1e3, rel=1e-9)
        assert study["figures"]["hit-rate"] == pytest.approx(option["hit_rate"], rel=1e-9)
