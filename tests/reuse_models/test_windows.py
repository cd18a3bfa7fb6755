"""Evidence in any window of a trace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.sample_profiles import BirthDeath
from kvscope.core.files import data_folder
from kvscope.ingest.pipeline import ingest
from kvscope.reuse_models.evidence import Evidence, Span, load_evidence
from kvscope.reuse_models.fit import fit
from kvscope.reuse_models.results import Fit
from kvscope.reuse_models.selection import default_length_s, sliding
from kvscope.store.db import MEMORY, Store, open_store
from kvscope.synth.base import ROOT
from tests.characterize.tiny import tiny_store
from tests.small_traces import requests, stored


def test_where_windows_lie() -> None:
    """One every half window, none beyond the end; fewer if they would be too many."""
    assert [one.start_s for one in sliding(Span(10, 50), 20)] == [10, 20, 30]
    assert sliding(Span(0, 50), 50) == [Span(0, 50)]
    assert [one.start_s for one in sliding(Span(0, 59), 20)] == [0, 10, 20, 30]
    many = sliding(Span(0, 30 * 86_400), 3_600)
    assert len(many) <= 96
    assert many[-1].end_s <= 30 * 86_400
    assert many[1].start_s % 1_800 == 0
    assert default_length_s(Span(0, 100)) == 20
    assert default_length_s(Span(0, 1e6)) == 3_600


def windows_of(sample: str, length_s: float) -> Fit:
    with open_store(MEMORY) as store:
        path = str(data_folder("sample_traces") / f"{sample}.jsonl.gz")
        return fit(store, ingest(store, path).trace, window_s=length_s)


def test_a_process_that_does_not_change_is_stable() -> None:
    """The birth-death sample: 0.0233 reuses a second and p = 0.71 in every window."""
    found = windows_of("birth-death", 3_600.0)
    windows = found.windows
    assert windows is not None
    assert windows.step_s == 1_800
    assert {one.between for one in found.stability} == {"window"}
    assert all(one.stable is not False for one in found.stability)
    assert all(one.distance < 1.5 * one.by_chance for one in found.stability)
    for one in windows.fits:
        assert one.reuse_probability == pytest.approx(5 / 7, abs=0.15)
        assert one.rate_per_s == pytest.approx(7 / 300, rel=0.35)
        assert list(one.observed) == sorted(one.observed)
        later = [w for w in windows.fits if w.start_s == one.end_s and w.category == one.category]
        assert (one.distance is None) == (not later)


def test_days_are_compared_with_days(tmp_path: Path) -> None:
    """Two days and more of one process: the same hours a day apart, and they are alike."""
    path = tmp_path / "days.jsonl"
    made = BirthDeath(birth_rate_per_s=0.02).generate(requests=13_000, seed=1)
    path.write_bytes(b"\n".join(msgspec.json.encode(one) for one in made))
    with open_store(MEMORY) as store:
        found = fit(store, ingest(store, str(path)).trace, window_s=21_600.0)
    days = [one for one in found.stability if one.between == "day"]
    assert {one.category for one in days} == {
        f"text {turn}" for turn in ("1", "2", "3", "4-6", "7+")
    }
    for one in days:
        assert one.pairs >= 4
        assert one.stable is not False


def test_what_changes_is_called_changing(tmp_path: Path) -> None:
    """An hour of quick turns, an hour of slow ones."""
    from dataclasses import replace

    quick = BirthDeath(birth_rate_per_s=0.5, turn_rate_per_s=1 / 10, death_rate_per_s=1 / 25)
    slow = replace(quick, turn_rate_per_s=1 / 100, death_rate_per_s=1 / 250)
    rows = []
    for number, profile in enumerate((quick, slow)):
        for one in profile.generate(requests=6_300, seed=number):
            if one.timestamp < 3_600:
                shifted = 10**6 * number
                row = msgspec.to_builtins(one)
                row["timestamp"] += 3_600 * number
                row["chat_id"] += shifted
                row["parent_chat_id"] += shifted * (one.parent_chat_id != ROOT)
                row["hash_ids"] = [hashed + 10**8 * number for hashed in one.hash_ids]
                row.pop("block_size", None)
                rows.append(row)
    path = tmp_path / "changing.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows))
    with open_store(MEMORY) as store:
        found = fit(store, ingest(store, str(path)).trace, window_s=1_800.0)
    assert all(one.stable is False for one in found.stability)
    assert len(found.stability) >= 3


def test_each_window_is_fitted_to_its_own_past() -> None:
    """A window's numbers are those of a trace that ends with it."""
    from kvscope.reuse_models.evidence import load_evidence
    from kvscope.reuse_models.selection import choose

    path = str(data_folder("sample_traces") / "birth-death.jsonl.gz")
    with open_store(MEMORY) as store:
        trace = ingest(store, path).trace
        found = fit(store, trace, window_s=3_600.0).windows
        evidence = load_evidence(store, trace)
    assert found is not None
    one = found.fits[0]
    place = evidence.categories.index(one.category)
    alone = choose(evidence.waits(Span(one.start_s, one.end_s))[place]).models[0]
    assert one.reuse_probability == pytest.approx(alone.reuse_probability_)
    assert one.rate_per_s == pytest.approx(alone.params_["rate_per_s"])


def rows(evidence: Evidence, span: Span) -> dict[str, list[tuple[float, bool, float]]]:
    """By category, (wait, reused, blocks) of everything that waited the same, sorted."""
    found = {}
    for name, of in zip(evidence.categories, evidence.waits(span), strict=True):
        blocks = Counter[tuple[float, bool]]()
        for wait, reused, weight in zip(of.waited_s, of.reused, of.weight, strict=True):
            blocks[float(wait), bool(reused)] += weight
        found[name] = sorted((*key, count) for key, count in blocks.items())
    return found


def test_the_whole_trace_by_hand() -> None:
    """Every block of every request once: taken over after its gap, or waiting to the end."""
    with tiny_store() as (store, trace):
        evidence = load_evidence(store, trace)
        end = pytest.approx(100.0)
        assert rows(evidence, evidence.whole) == {
            # r0: b1 b2 b4 to r1 after 10 s; r3: b1 to r4 after 60 s, b2 waits for 60 s
            "chat 1": [(10.0, True, 3.0), (60.0, True, 1.0), (pytest.approx(60.0), False, 1.0)],
            # r1: b1 to r2, b2 to r3 after 30 s; b4 and b5 wait for 90 s
            "chat 2": [(10.0, True, 1.0), (30.0, True, 1.0), (pytest.approx(90.0), False, 2.0)],
            # r2: b1 to r3, b6 waits; r4: b1 and two blocks of output wait for nothing any more
            "search 1": [
                (1e-6, False, 3.0),
                (20.0, True, 1.0),
                (pytest.approx(80.0), False, 1.0),
            ],
        }
        assert evidence.whole.end_s == end


def test_a_window_by_hand() -> None:
    """Up to 35 s r1's b2 has not been reused yet, and what r3 touches is not seen at all."""
    with tiny_store() as (store, trace):
        evidence = load_evidence(store, trace)
        found = rows(evidence, Span(5.0, 35.0))
        assert found["chat 1"] == []
        assert found["chat 2"] == [(10.0, True, 1.0), (25.0, False, 3.0)]
        turns = evidence.turns(Span(0.0, 35.0))
        assert turns.waits.reused.tolist() == [True, False, False]
        assert turns.waits.waited_s.tolist() == [10.0, 25.0, 15.0]
        assert evidence.births(Span(0.0, 35.0)) == 2
        tokens, category = evidence.next_prompts(Span(0.0, 35.0))
        assert tokens.tolist() == [4.0]
        assert [evidence.categories[at] for at in category] == ["chat 1"]


def test_warmup_leaves_out_the_first_requests() -> None:
    """Two of five: what r0 and r1 touched is not counted, what r2 took from them neither."""
    with tiny_store() as (store, trace):
        evidence = load_evidence(store, trace)
        span = evidence.after(0.4)
        assert span.start_s == 20.0
        assert sum(n for found in rows(evidence, span).values() for *_, n in found) == 7
        assert evidence.births(span) == 3


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_future_changes_nothing(store: Store, data: st.DataObject) -> None:
    """A window of a trace and of that trace cut off at the window's end show the same.

    Without outputs: which blocks one consists of is known from the next turn alone, so that other
    runs make up the same blocks. Who continues nobody says so, so that no trace leaves it to guess.
    """
    trace = data.draw(requests(2, most=20, chats=True, whole=True))
    for one in trace:
        one.output_tokens = 0
        if one.parent_chat_id is None:
            one.parent_chat_id = ROOT
    end_s = data.draw(st.integers(1, 6)) + 0.5
    cut = [one for one in trace if (one.arrival_s or 0.0) < end_s]
    known, past = (load_evidence(store, stored(store, one, 2)) for one in (trace, cut))
    span = Span(0.0, end_s)
    whole, before = rows(known, span), rows(past, span)
    assert {name: found for name, found in whole.items() if found} == {
        name: found for name, found in before.items() if found
    }
    assert known.births(span) == past.births(span)
    a, b = known.turns(span).waits, past.turns(span).waits
    assert np.array_equal(a.waited_s, b.waited_s)
    assert np.array_equal(a.reused, b.reused)
    assert known.next_prompts(span)[0].tolist() == past.next_prompts(span)[0].tolist()
