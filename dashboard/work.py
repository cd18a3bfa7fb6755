"""What the pages' jobs compute in another process: functions of the store's path and a monitor.

Streamlit is not loaded here.
"""

from __future__ import annotations

import time
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from dashboard.wording import uploaded
from kvscope.app.monitor import Monitor
from kvscope.app.options import Reading
from kvscope.app.requests import SimulateRequest
from kvscope.app.traces import ingest_file, load_range, replayable
from kvscope.app.worker_process import Reporter
from kvscope.core.trace import Trace
from kvscope.report.stored import ReportContent, keep_answer
from kvscope.store.file import StoreFile
from kvscope.usecases.base import Opened, use_case

PATIENCE_S = 5.0  # a page that waits longer looks broken


class Comparison(Struct, frozen=True):
    """A simulation, with the distributions of TTFT by capacity as far as they are known."""

    simulation: Any
    distributions: dict[int, tuple[Any, ...]] = field(default_factory=dict)


def store_at(path: str) -> StoreFile:
    """Return the dashboard's store, which has to exist."""
    return StoreFile(path, patience_s=PATIENCE_S, create=False)


def result(database: str, name: str, trace: Trace, request: Any, monitor: Monitor) -> Any:
    """Return what a use case computes of a trace."""
    return use_case(name).run(Opened(store_at(database), load=lambda _: trace), request, monitor)


def answer(database: str, name: str, trace: Trace, request: Any, monitor: Monitor) -> ReportContent:
    """Return the report on what a use case computes of a trace; the store keeps it."""
    began_s = time.monotonic()
    computed, stores = result(database, name, trace, request, monitor), store_at(database)
    took_s = time.monotonic() - began_s
    return keep_answer(stores, use_case(name), request, computed, took_s, monitor.note)


def fitted(database: str, trace: Trace, _: Monitor) -> Any:
    """Return the models that are fitted to a trace."""
    from kvscope.reuse_models.evidence import load_evidence
    from kvscope.reuse_models.fit import fit_to

    with store_at(database).reading() as store:
        evidence = load_evidence(store, trace)
    return fit_to(evidence, trace)


def analyze_trace(database: str, trace: Trace, monitor: Reporter) -> None:
    """Report LRU's curve, the analysis and the prefixes that are reused most, each once known."""
    from kvscope.characterize.sources import hot_prefixes
    from kvscope.characterize.summary import STEPS
    from kvscope.replay.metrics import LruAnywhere
    from kvscope.usecases.analyze import StartedCaching, analyze

    stores = store_at(database)
    with monitor.steps("Analyzing the trace", STEPS + 2) as advance:

        def step(_: str) -> None:
            monitor.check()
            advance(1)

        step("requests")
        if not trace.has_hashes:
            monitor.add_part("analysis", analyze(stores, trace, step=step))
            return
        prompts = replayable(stores, trace)
        monitor.add_part("lru", LruAnywhere.over(prompts))
        started = StartedCaching(prompts)
        monitor.add_part("analysis", analyze(stores, trace, started=started, step=step))
        step("prefixes")
        with stores.reading() as store:
            monitor.add_part("prefixes", hot_prefixes(store, trace))


def pool_hits(database: str, trace: Trace, request: Any, monitor: Monitor) -> Any:
    """Return what LRU hits in the pools of a deployment."""
    from kvscope.usecases.analyze import pool_hits as hits

    return hits(store_at(database), trace, request, monitor)


def compare(database: str, trace: Trace, request: SimulateRequest, monitor: Monitor) -> Comparison:
    """Return runs, from the store or replayed and stored, with the distributions of their TTFT."""
    from kvscope.app.simulate import simulate, ttft_by_request
    from kvscope.report import ttft
    from kvscope.report.runs import names

    stores = store_at(database)
    simulation = simulate(stores, trace, replayable(stores, trace), request, monitor)
    name, distributions = names(simulation.runs), {}
    with monitor.steps("distributions of TTFT", len(simulation.capacities)) as advance:
        for blocks in simulation.capacities:
            if monitor.stop.is_set():
                break
            distributions[blocks] = tuple(
                ttft.distribution(name(run), run.policy, ttft_by_request(simulation, run) * 1e3)
                for run in simulation.at(blocks)
            )
            advance(1)
    return Comparison(replace(simulation, workload=None), distributions)


def vary_xi(database: str, trace: Trace, request: SimulateRequest, monitor: Monitor) -> Any:
    """Return LRU and the policy of the request with every xi worth a look."""
    from kvscope.app.simulate import simulate_over_xi

    stores = store_at(database)
    computed = simulate_over_xi(stores, trace, replayable(stores, trace), request, monitor)
    return replace(computed, workload=None)


def read_upload(
    database: str, name: str, content: bytes, reading: Reading, monitor: Monitor
) -> Trace:
    """Ingest an uploaded file."""
    with uploaded(name, content) as path:
        return read(database, path, reading, monitor)


def read(database: str, path: str, reading: Reading, monitor: Monitor) -> Trace:
    """Ingest a file."""
    return ingest_file(store_at(database), path, monitor, reading).trace


def read_range(database: str, trace: Trace, low: int, high: int, monitor: Monitor) -> Trace:
    """Make a range of a trace (seconds after its start) a trace of its own."""
    with store_at(database).writing() as store:
        return load_range(store, trace, low, high, monitor)
