"""What analyze says of sessions without a common clock."""

from __future__ import annotations

from kvscope.ingest.formats.base import Request
from kvscope.report.overview import headline
from kvscope.store.db import MEMORY, open_store
from kvscope.usecases.analyze import USE_CASE, Analysis, analyze
from tests import small_traces

BLOCKS, TURNS, SESSIONS = 20, 25, 40


def analyzed(*, clocks: bool) -> Analysis:
    """Return the analysis of sessions of one prompt each, one session after the other."""
    trace = [
        Request(
            input_tokens=BLOCKS * 16,
            output_tokens=1,
            arrival_s=float(number * TURNS + turn),
            hash_ids=[number * 1_000 + depth for depth in range(BLOCKS)],
            session_id=number,
            clock=number if clocks else None,
        )
        for number in range(SESSIONS)
        for turn in range(TURNS)
    ]
    with open_store(MEMORY) as store:
        return analyze(store, small_traces.stored(store, trace, 16))


def test_needed_capacity_is_given_for_other_session_starts() -> None:
    """Back to back one session has to fit, with sixteen starts in a session's time many have."""
    analysis = analyzed(clocks=True)
    assert analysis.caching is not None
    back_to_back = next(mark for mark in analysis.caching.landmarks if mark.share_of_ideal == 0.9)
    assert back_to_back.point.capacity_blocks <= BLOCKS
    needed = [layout.capacity_blocks for layout in analysis.layouts]
    assert len(needed) == 5
    assert min(needed) <= 3 * BLOCKS
    assert 8 * BLOCKS <= max(needed) <= SESSIONS * BLOCKS
    document = USE_CASE.report(analysis).document()
    assert document["layouts"] == analysis.layouts
    text = " ".join(headline(analysis).sentences)
    assert f"{min(needed):,} blocks to {max(needed):,} blocks" in text
    assert "sessions open (Poisson arrivals, 5 layouts)" in text


def test_a_common_clock_has_no_other_layouts() -> None:
    """Nothing is varied, and nothing said of it."""
    analysis = analyzed(clocks=False)
    assert analysis.layouts == ()
    assert "layouts" not in " ".join(headline(analysis).sentences)
