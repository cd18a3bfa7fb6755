"""Read what pages show: from the store, or from what the background found."""

from __future__ import annotations

from functools import lru_cache

from dashboard import background_cache, connection, worker_process
from dashboard.connection import reading
from dashboard.job import Job
from kvscope.app.analyze import Analysis, resized
from kvscope.app.latency import TraceLatency, latency_for
from kvscope.core.errors import StoreBusyError
from kvscope.core.runs import Run, RunSetting
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.deployment.models import Model
from kvscope.latency.profile import LatencyProfile
from kvscope.report import stored
from kvscope.report.report import Report
from kvscope.report.stored import ReportContent, StoredReport
from kvscope.reuse_models.evidence import load_evidence
from kvscope.reuse_models.fit import fit_to
from kvscope.reuse_models.results import Fit
from kvscope.store import results, traces
from kvscope.validate.result import StoredValidation, stored_validations


def all_traces() -> list[Trace]:
    """Return every stored trace, the one last worked on first."""
    with reading() as store:
        return traces.all_traces(store)


def analysis(
    trace: Trace,
    model: Model | None = None,
    hbm_bytes: int | None = None,
    deployment: ResolvedDeployment | None = None,
) -> Analysis:
    """Return what `kvscope analyze` finds, with sizes for this model."""
    return resized(background_cache.analysis(trace), model, hbm_bytes, deployment)


@lru_cache(maxsize=16)
def latency(
    trace: Trace, profile: LatencyProfile, deployment: ResolvedDeployment | None
) -> TraceLatency:
    """Return the latency for a trace, as the commands take it. Raises InputError as they do."""

    def prompts() -> Prompts:
        with reading() as store:
            return traces.load_prompts(store, trace)

    return latency_for(trace, profile, deployment, prompts)


def stored_runs(trace: Trace) -> dict[RunSetting, list[Run]]:
    """Return the stored runs of a trace by their setting."""
    by_setting: dict[RunSetting, list[Run]] = {}
    with reading() as store:
        for stored in results.all_runs(store, trace):
            by_setting.setdefault(stored.run.setting, []).append(stored.run)
    return by_setting


def validations(trace: Trace) -> tuple[StoredValidation, ...]:
    """Return the stored results of `kvscope validate`, the latest first."""
    with reading() as store:
        return stored_validations(store, trace)


def keep(job: Job, report: Report, file: str | None = None) -> None:
    """Store what a job found, so that it can be opened again; the job notes why it could not."""
    try:
        stored.keep(connection, report, job.duration_s, file)
    except StoreBusyError as error:
        job.note(f"the report was not stored: {error}")


def reports() -> list[StoredReport]:
    """Return the stored reports over all traces, the latest first."""
    with reading() as store:
        return stored.all_reports(store)


def open_report(report_id: int) -> ReportContent:
    """Return what a stored report shows. Raises InputError where there is none."""
    with reading() as store:
        return stored.open_report(store, report_id)


def known_fit(trace: Trace) -> Fit | None:
    """Return the fit of a trace, if one was made since it was cached."""
    fit: Fit | None = background_cache.findings(trace).get("fit")
    return fit


def fit(job: Job, trace: Trace) -> None:
    """Fit what `kvscope fit` fits and cache it. Raises Stopped."""

    def step(name: str) -> None:
        job.label = f"fitting {name}"
        job.check()

    with reading() as store:
        evidence = load_evidence(store, trace)
    fitted = worker_process.call(fit_to, evidence, trace, step=step)
    background_cache.findings(trace).add("fit", fitted)
