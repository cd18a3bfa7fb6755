"""A validation in words and tables."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from kvscope.core.percentiles import Percentiles
from kvscope.report.validation import stored
from kvscope.validate.result import EngineFacts, Figures, RunFacts, StoredValidation

_FIGURES = Figures(10, 0.5, Percentiles(1.0, 2.0, 3.0, 4.0), None, None)
_ENGINE = EngineFacts("vLLM", "0.32.0", "cpu", "tiny", 100, 16, ())


def _run(predicted: list[int], measured: list[int], mismatched: int | None) -> RunFacts:
    count = len(predicted)
    return RunFacts(
        policy="lru",
        leaves="any",
        params={},
        repeat=0,
        flags=(),
        predicted=_FIGURES,
        measured=_FIGURES,
        counted=np.array([False] + [True] * (count - 1)),
        mismatched_requests=mismatched,
        mismatched_tokens=None if mismatched is None else 48,
        predicted_hit_tokens=np.array(predicted),
        measured_hit_tokens=np.array(measured),
        predicted_ttft_s=np.full(count, 0.1),
        measured_ttft_s=np.full(count, 0.1),
        failed={},
    )


def _stored(run: RunFacts) -> StoredValidation:
    then = datetime(2026, 1, 2, 3, 4)  # noqa: DTZ001  (as the store tells it, UTC)
    return StoredValidation(
        created_at=then,
        engine=_ENGINE,
        pace="one by one",
        forced_outputs=True,
        latency="a profile",
        tolerance=0.1,
        slo_s=None,
        verdict="confirmed",
        ended="",
        runs=(run,),
    )


def test_mismatches_are_listed() -> None:
    """Of the counted requests those with other hits than predicted, the farthest off first."""
    sections = stored(_stored(_run([99, 16, 32, 0], [0, 32, 32, 32], 2)))
    (table,) = [table for table in sections[1].tables if "other hits" in table.title]
    assert table.rows == (("lru 1", "3", "0", "32", "+32"), ("lru 1", "1", "16", "32", "+16"))


def test_no_mismatches_no_list() -> None:
    """Neither where all is as predicted nor where the engine tells no hits."""
    for run in (_run([16, 16], [0, 16], 0), _run([16, 16], [0, 0], None)):
        assert len(stored(_stored(run))[1].tables) == 2
