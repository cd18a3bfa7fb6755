"""What the page Recommendation runs: `kvscope tune` with its defaults, for an SLO."""

from __future__ import annotations

import tempfile
from pathlib import Path

from dashboard import background_cache
from dashboard.job import Job
from kvscope.app.requests import TuneRequest
from kvscope.app.tune import Recommendation, tune, write_recommended
from kvscope.core.trace import Trace
from kvscope.tuning.trial import Stopped

Asking = tuple[Trace, TuneRequest]


def recommend(job: Job, trace: Trace, request: TuneRequest) -> Recommendation | None:
    """Return the recommendation; None where the job was stopped."""
    try:
        return tune(trace, background_cache.lru_for(job, trace).prompts, request, job)
    except Stopped:
        return None


def as_file(found: Recommendation) -> str:
    """Return the text of recommendation.toml."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recommendation.toml"
        write_recommended(path, found, background_cache.lru(found.trace).prompts)
        return path.read_text(encoding="utf-8")
