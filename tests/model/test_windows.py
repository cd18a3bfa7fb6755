"""Sliding windows: where they lie, and what stands still in them is called stable."""

from __future__ import annotations

import pytest

from kvscope.ingest.pipeline import ingest
from kvscope.model.evidence import Span
from kvscope.model.facts import Windows
from kvscope.model.fit import fit
from kvscope.model.windows import default_length_s, sliding
from kvscope.paths import data_folder
from kvscope.store.db import MEMORY, open_store


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


def windows_of(sample: str, length_s: float) -> Windows:
    with open_store(MEMORY) as store:
        path = str(data_folder("sample_traces") / f"{sample}.jsonl.gz")
        found = fit(store, ingest(store, path).trace, window_s=length_s).windows
    assert found is not None
    return found


def test_a_process_that_does_not_change_is_stable() -> None:
    """The birth-death sample: 0.0233 reuses a second and p = 0.71 in every window."""
    found = windows_of("birth-death", 3_600.0)
    assert found.step_s == 1_800
    assert {one.between for one in found.stability} == {"window"}
    assert all(one.stable for one in found.stability)
    for one in found.fits:
        assert one.reuse_probability == pytest.approx(5 / 7, abs=0.15)
        assert one.rate_per_s == pytest.approx(7 / 300, rel=0.35)
        assert list(one.observed) == sorted(one.observed)
        later = [w for w in found.fits if w.start_s == one.end_s and w.category == one.category]
        assert (one.distance is None) == (not later)


def test_each_window_is_fitted_to_its_own_past() -> None:
    """A window's numbers are those of a trace that ends with it."""
    from kvscope.model.choose import choose
    from kvscope.model.evidence import load_evidence

    path = str(data_folder("sample_traces") / "birth-death.jsonl.gz")
    with open_store(MEMORY) as store:
        trace = ingest(store, path).trace
        found = fit(store, trace, window_s=3_600.0).windows
        evidence = load_evidence(store, trace)
    assert found is not None
    one = found.fits[0]
    place = evidence.categories.index(one.category)
    alone = choose(evidence.waits(Span(one.start_s, one.end_s))[place]).exponential
    assert one.reuse_probability == pytest.approx(alone.reuse_probability_)
    assert one.rate_per_s == pytest.approx(alone.params_["rate_per_s"])
