"""What a window shows: worked out by hand, and never anything that comes after it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.reuse_models.evidence import Evidence, Span, load_evidence
from kvscope.store.db import Store
from kvscope.synth.base import ROOT
from tests.characterize.tiny import tiny_store
from tests.small_traces import requests, stored


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
