"""What analyze says of a new trace, and of sessions without a common clock."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from kvscope.app.monitor import Monitor
from kvscope.app.options import AS_STORED
from kvscope.app.traces import TraceSource
from kvscope.core.hits import Outputs, standard
from kvscope.report.overview import headline
from kvscope.store.db import MEMORY, open_store
from kvscope.usecases.analyze import USE_CASE, Analysis, AnalyzeRequest, analyze, run
from kvscope.usecases.base import Opened
from tests import small_traces
from tests.tuning.examples import BLOCK
from tests.tuning.test_session_starts import BLOCKS, back_to_back

SESSIONS = 40


def conversations(path: Path) -> str:
    """Write conversations of two turns, most of them held again after different numbers of others.

    So what a first turn generates recurs as well, beyond the prompt.
    """
    lines = []
    for number in [0, 1, 2, 3, 0, 2, 1, 4, 3, 0]:
        first, ids = len(lines), [100 * number + depth for depth in range(8)]
        for turn, blocks in ((1, 3), (2, 8)):
            line = {
                "chat_id": first + turn - 1,
                "parent_chat_id": first if turn == 2 else -1,
                "timestamp": float(first + turn),
                "input_length": 16 * blocks,
                "output_length": 64,
                "type": "text",
                "turn": turn,
                "hash_ids": ids[:blocks],
            }
            lines.append(json.dumps(line) + "\n")
    path.write_text("".join(lines))
    return str(path)


@pytest.mark.parametrize("outputs", ["carried", "ignored"])
def test_a_new_trace_is_analyzed_as_a_stored_one(tmp_path: Path, outputs: Outputs) -> None:
    """LRU's curve, ideal rates and misses are the same, whether outputs are carried or ignored."""
    path = conversations(tmp_path / "a.jsonl")
    request = AnalyzeRequest(definition=standard(outputs=outputs))
    with open_store(MEMORY) as store:
        load = partial(TraceSource.of(path).load, store, Monitor(), AS_STORED)
        opened = Opened(store, path, load)
        new, stored = (run(opened, request, Monitor()).caching for _ in range(2))
    assert new is not None
    assert stored is not None
    assert new.hit_rates == stored.hit_rates
    assert new.misses == stored.misses
    for one, other in ((new.lru, stored.lru), (new.lru_by_token, stored.lru_by_token)):
        assert np.array_equal(one.knots, other.knots)
        assert np.array_equal(one.hits, other.hits)


def analyzed(*, clocks: bool) -> Analysis:
    """Return the analysis of sessions of one prompt each, one session after the other."""
    with open_store(MEMORY) as store:
        trace = small_traces.stored(store, back_to_back(SESSIONS, clocks=clocks), BLOCK)
        return analyze(store, trace)


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
