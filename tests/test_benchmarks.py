"""The benchmarks still fit the product: the trace is sound, the hooks find their functions."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.generate import BLOCK_TOKENS, records
from benchmarks.measure import measure
from benchmarks.phases import Phases
from benchmarks.table import Table, record


def test_generated_trace_is_sound() -> None:
    """Requests come in order, have their blocks, and continue what their parent's turn cached."""
    requests = list(records(500, seed=1))
    by_id = {request["chat_id"]: request for request in requests}
    for before, after in pairwise(requests):
        assert before["timestamp"] <= after["timestamp"]
    for request in requests:
        assert len(request["hash_ids"]) == -(-request["input_length"] // BLOCK_TOKENS)
        parent = by_id.get(request["parent_chat_id"])
        if parent is None:
            assert request["turn"] == 1
            continue
        full = parent["input_length"] // BLOCK_TOKENS
        assert request["hash_ids"][:full] == parent["hash_ids"][:full]
        assert request["input_length"] > parent["input_length"] + parent["output_length"]
    assert any(request["turn"] > 2 for request in requests)


def test_generated_trace_is_seeded() -> None:
    """A seed gives one trace, another seed another."""
    assert list(records(50, seed=1)) == list(records(50, seed=1))
    assert list(records(50, seed=1)) != list(records(50, seed=2))


def test_time_counts_for_the_innermost_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phases add up to the whole, without counting a stretch twice."""
    ticks = iter([0.0, 1.0, 4.0, 9.0])
    monkeypatch.setattr("benchmarks.phases.time.perf_counter", lambda: next(ticks))
    phases = Phases()
    with phases.of("outer"), phases.of("inner"):
        pass
    assert phases.seconds == {"outer": 1.0 + 5.0, "inner": 3.0}


def test_time_in_another_thread_is_told_by_itself() -> None:
    """It runs beside the phases, so it is no part of their sum."""
    phases = Phases()
    with phases.of("waiting"):
        thread = Thread(target=phases.function("work")(lambda: None))
        thread.start()
        thread.join()
    assert set(phases.seconds) == {"waiting"}
    assert set(phases.beside) == {"work"}


def test_record_replaces_what_was_measured(tmp_path: Path) -> None:
    """Recording a part twice keeps the rest of the page, and the later table alone."""
    page = tmp_path / "page.md"
    recorded = Path(__file__).parent.parent / "docs" / "evidence" / "benchmarks.md"
    page.write_text(recorded.read_text(encoding="utf-8"), encoding="utf-8")
    for figure in ("1.5", "2.5"):
        table = Table("speed", "One run.", ("what", "s"), [["all", figure]])
        record(page, table.markdown(), "peers")
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Evidence: speed and memory")
    assert "| all  | 2.5 |" in text
    assert "| all  | 1.5 |" not in text


@pytest.mark.slow
def test_every_phase_is_met(tmp_path: Path) -> None:
    """Each hooked function is part of an analysis; a renamed one fails here, not in a benchmark."""
    from benchmarks.work_analyze import FUNCTIONS

    trace = tmp_path / "trace.jsonl"
    python = (sys.executable, "-m")
    measure([*python, "benchmarks.generate", str(trace), "--requests", "300"])
    answer = measure([*python, "benchmarks.work_analyze", str(trace)]).answer
    assert answer["trace"]["requests"] == 300
    assert {phase for _, _, phase in FUNCTIONS} <= {*answer["phases_s"], *answer["beside_s"]}
