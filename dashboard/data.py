"""What pages read: the store, and what is costly to find, kept by content."""

from __future__ import annotations

from dashboard import background_cache
from dashboard.connection import reading
from dashboard.job import Job
from dashboard.worker_process import apart
from kvscope.app.analyze import Analysis, resized
from kvscope.characterize.prefixes import Prefix
from kvscope.core.kv_size import ModelKv
from kvscope.core.runs import Run, RunSetting
from kvscope.core.trace import Trace
from kvscope.reuse_models.evidence import load_evidence
from kvscope.reuse_models.fit import fit_to
from kvscope.reuse_models.results import Fit
from kvscope.store import results, traces
from kvscope.validate.result import StoredValidation, stored_validations

_MOST_FITS = 4
_FITS: dict[Trace, Fit] = {}  # made by jobs, which run outside Streamlit's threads


def all_traces() -> list[Trace]:
    """Every stored trace, the one last worked on first."""
    with reading() as store:
        return traces.all_traces(store)


def analysis(trace: Trace, model: ModelKv | None = None, hbm_bytes: int | None = None) -> Analysis:
    """What `kvscope analyze` finds, sizes for this model."""
    return resized(background_cache.analysis(trace), model, hbm_bytes)


def prefixes(trace: Trace) -> tuple[Prefix, ...]:
    """The prefixes that are reused most."""
    return background_cache.prefixes(trace)


def stored_runs(trace: Trace) -> dict[RunSetting, list[Run]]:
    """The runs over a trace that the store keeps, by what they count and assume."""
    by_setting: dict[RunSetting, list[Run]] = {}
    with reading() as store:
        for one in results.all_runs(store, trace):
            by_setting.setdefault(one.run.setting, []).append(one.run)
    return by_setting


def validations(trace: Trace) -> tuple[StoredValidation, ...]:
    """What `kvscope validate` stored of the trace, the latest first."""
    with reading() as store:
        return stored_validations(store, trace)


def known_fit(trace: Trace) -> Fit | None:
    """What `kvscope fit` finds, if somebody here has asked for it before."""
    return _FITS.get(trace)


def fitted(job: Job, trace: Trace) -> Fit:
    """The fit itself, which may take long. Raises Stopped."""

    def step(what: str) -> None:
        job.label = f"fitting {what}"
        job.check()

    with reading() as store:
        evidence = load_evidence(store, trace)
    found = apart(fit_to, evidence, trace, step=step)
    while len(_FITS) >= _MOST_FITS:
        _FITS.pop(next(iter(_FITS)), None)
    _FITS[trace] = found
    return found
