"""Read what pages show: from the store, or from what the background analyzed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st
from msgspec import Struct
from msgspec.structs import replace

from dashboard import background_cache, connection, work
from dashboard.connection import reading
from kvscope.app.latency import TraceLatency, latency_for
from kvscope.app.monitor import Monitor
from kvscope.app.simulate import Simulation, ordered
from kvscope.app.worker_process import in_process
from kvscope.characterize.distributions import round_windows
from kvscope.core import units
from kvscope.core.errors import StoreBusyError
from kvscope.core.runs import PartOutcome, Run, RunSetting
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.deployment.models import Model
from kvscope.latency.profile import LatencyProfile
from kvscope.replay.findings import PoolHits
from kvscope.replay.metrics import over_time, serve
from kvscope.report import stored
from kvscope.report.runs import run_name
from kvscope.report.stored import ReportContent, StoredReport
from kvscope.store import results, traces
from kvscope.usecases.analyze import Analysis, resized
from kvscope.usecases.explain import ExplainOptions, explain_request


def served_over_time(
    trace: Trace, analyzed: Analysis, profile: LatencyProfile
) -> list[PartOutcome]:
    """Return how LRU serves each window with the memory there is; nothing where that is unknown."""
    if not trace.has_hashes or not analyzed.present_blocks:
        return []
    lru = background_cache.lru(trace)
    served = lru.served(analyzed.present_blocks, profile)
    if analyzed.pool is not None:  # as replayed in the pools
        blocks = (analyzed.pool.hit_tokens // trace.block_size).astype(served.hit_blocks.dtype)
        served = serve(lru.prompts, lru.definition, blocks, profile)
    return list(over_time(served, round_windows(trace)))


def all_traces() -> list[Trace]:
    """Return every stored trace, the one last worked on first.

    While another process writes the store, they are those that were read last.
    """
    known, path = _traces_read(), connection.database()
    try:
        with reading() as store:
            known[path] = traces.all_traces(store)
    except StoreBusyError:
        if path not in known:
            raise
    return known[path]


def stated_before(trace: Trace) -> dict[str, Any]:
    """Return what commands on a trace stated of deployment and SLO, as the session began."""
    known: dict[str, dict[str, Any]] = st.session_state.setdefault("stated", {})
    if trace.name not in known:
        try:
            with reading() as store:
                known[trace.name] = traces.stated(store, trace)
        except StoreBusyError:
            return {}
    return known[trace.name]


@st.cache_resource(show_spinner=False)
def _traces_read() -> dict[str, list[Trace]]:
    return {}


def analysis(
    trace: Trace,
    model: Model | None = None,
    hbm_bytes: int | None = None,
    deployment: ResolvedDeployment | None = None,
    stated: Mapping[str, Any] | None = None,
) -> Analysis:
    """Return what `kvscope analyze` finds, with sizes for this model.

    `stated` are the deployment's options.
    """
    pool = None
    if deployment is not None and trace.has_hashes:
        known = {*ExplainOptions.__struct_fields__}
        named = {name: value for name, value in (stated or {}).items() if name in known}
        pool = _pool(trace, deployment, ExplainOptions(**named))
    return resized(background_cache.analysis(trace), model, hbm_bytes, deployment, pool)


@lru_cache(maxsize=16)  # by the deployment too: what kvscope.toml states is no option
def _pool(trace: Trace, deployment: ResolvedDeployment, options: ExplainOptions) -> PoolHits | None:
    request, database = explain_request(options), connection.database()
    hits: PoolHits | None = in_process(work.pool_hits, database, trace, request, monitor=Monitor())
    return hits


@lru_cache(maxsize=16)
def latency(
    trace: Trace, profile: LatencyProfile, deployment: ResolvedDeployment | None
) -> TraceLatency:
    """Return the latency for a trace, as the commands take it. Raises InputError as they do."""

    def prompts() -> Prompts:
        with reading() as store:
            return traces.load_prompts(store, trace)

    return latency_for(trace, profile, deployment, prompts)


def store_stamp() -> tuple[float, ...]:
    """Return what changes with each change of the store's file."""
    files = (Path(connection.database()), Path(f"{connection.database()}.wal"))
    return tuple(file.stat().st_mtime for file in files if file.exists())


SWEEP = 4  # runs that differ in parameters alone
Runs = dict[int, tuple[Trace, Run]]
"""The stored runs over all traces by their ids, the latest first, without their parts."""


class StoredResults(Struct, frozen=True):
    """The reports and runs of the store as it was at `stamp`; `busy` says why not since then.

    `validated`: whether it has results of `kvscope validate`.
    """

    reports: tuple[StoredReport, ...]
    runs: Runs
    stamp: tuple[float, ...]
    validated: bool = False
    busy: str = ""


def stored_results() -> StoredResults:
    """Return what the store keeps; what was read last while another process writes the store."""
    path, stamp = connection.database(), store_stamp()
    known: StoredResults | None = _last_read().get(path)
    if known is not None and known.stamp == stamp:
        return known
    try:
        with reading() as store:
            reports, known_traces = stored.all_reports(store), traces.all_traces(store)
            runs = {
                each.run_id: (trace, each.run)
                for trace in known_traces
                for each in results.all_runs(store, trace)
            }
            validated = any(results.all_validations(store, trace) for trace in known_traces)
    except StoreBusyError as error:
        return replace(known or StoredResults((), {}, ()), busy=str(error))
    latest = {number: runs[number] for number in sorted(runs, reverse=True)}
    _last_read()[path] = StoredResults(tuple(reports), latest, stamp, validated)
    return _last_read()[path]


@st.cache_resource(show_spinner=False)
def _last_read() -> dict[str, StoredResults]:
    return {}


def run_with_parts(trace: Trace, run: Run, run_id: int) -> tuple[Trace, Run]:
    """Return a run with its outcomes by category and over time."""
    digest = results.digest_of(run)
    with reading() as store:
        (known,) = results.with_parts(store, [results.KnownRun(run_id, digest, "", run)])
    return trace, known.run


def alike(run: Run) -> tuple[Any, ...]:
    """Return what the runs of one sweep share: setting, deployment, policy and capacity."""
    return str(run.setting), str(run.deployment), run.policy, run.capacity_blocks


def newest_simulation(trace: Trace, asked: RunSetting) -> Simulation | None:
    """Return the newest stored runs of one setting of a trace: the one `asked`, if it has some.

    Sweeps of parameters do not count. None without runs.
    """
    of_trace = [(key, run) for key, (owner, run) in stored_results().runs.items() if owner == trace]
    sizes = Counter(alike(run) for _, run in of_trace)
    plain = [(key, run) for key, run in of_trace if sizes[alike(run)] < SWEEP]
    newest = next((each for each in plain if each[1].setting == asked), next(iter(plain), None))
    if newest is None:
        return None
    setting, where = alike(newest[1])[:2]
    chosen = [(key, run) for key, run in plain if alike(run)[:2] == (setting, where)]
    runs = tuple(run_with_parts(trace, run, key)[1] for key, run in chosen)
    curve = background_cache.lru(trace).curve if is_on_curve(trace, newest[1].setting) else None
    return Simulation(trace, None, newest[1].setting, tuple(ordered(runs)), curve)


def is_on_curve(trace: Trace, setting: RunSetting) -> bool:
    """Return whether a setting counts hits as LRU's curve does: in one cache, of all requests."""
    plain = not setting.holds_running and not setting.tiers and setting.isolate is None
    return plain and setting.exact and setting.definition == background_cache.lru(trace).definition


def run_in_words(trace: Trace, run: Run) -> str:
    """Return how to call a run among those of all traces."""
    slo_s = run.setting.slo_s
    words = [f"{trace.name}: {run_name(run)}", f"{units.format_count(run.capacity_blocks)} blocks"]
    return ", ".join([*words, *([f"SLO {units.duration_in_words(slo_s)}"] if slo_s else [])])


def open_report(report_id: int) -> ReportContent:
    """Return what a stored report shows. Raises InputError where there is none."""
    with reading() as store:
        return stored.open_report(store, report_id)
