"""Which router for which traffic: routers on every trace, at the same load and pressure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from benchmarks import held_out
from benchmarks.processes import note
from benchmarks.table import Table
from kvscope.characterize.distributions import Windows
from kvscope.core.files import data_folder
from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.fleet.outcome import Slo
from kvscope.fleet.sweep import Fleet, FleetRun, FleetSweep
from kvscope.ingest.pipeline import ingest
from kvscope.latency.profile import PRESETS
from kvscope.policies.lru import Lru
from kvscope.replay.settings import run_setting
from kvscope.replay.workload import Workload
from kvscope.routers.base import Router
from kvscope.routers.dynamo import Dynamo
from kvscope.routers.llm_d import LlmDPrecise
from kvscope.routers.registry import ROUTERS
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts

REPLICAS = 8
LOAD = 1.0
HELD = 0.75
LATENCY = PRESETS["llama2-7b-a100"]
LAGS_S = 0.0, 0.1, 1.0, 10.0
_SETTING = (
    f"{REPLICAS} replicas with LRU, which together hold as many blocks as one LRU cache needs"
    f" for {HELD:.0%} of the possible hits; arrivals sped up until the replicas, without any"
    f" hit, would prefill {LOAD:.0%} of the time at the latency of {LATENCY.name}. Hit rate,"
    " p95 TTFT; routers that draw: the median of 3 seeds."
)


def samples() -> Table:
    """Return the hit rate and the p95 TTFT of each router on each sample and published trace."""
    routers = [router() for router in ROUTERS]
    runs = {
        trace.name.removeprefix("Sample "): _runs(trace.name, trace.prompts, routers)
        for trace in chain(held_out.samples(), held_out.published())
    }
    rows = []
    for number, router in enumerate(routers):
        star = "\\*" if router.reference else ""
        cells = [_cell(of_trace, number) for of_trace in runs.values()]
        rows.append([f"`{router.name}`{star}", *cells])
    description = (
        f"{_SETTING} Bold: the lowest p95 TTFT of a router that can be run (references have a"
        " star); overloaded: the queue grows."
    )
    return Table("Routers on samples and published traces", description, ("router", *runs), rows)


def event_lag(mooncake: Path) -> Table:
    """Return the same of routers whose KV events come late, also on the Mooncake trace."""
    paths = [mooncake, *sorted(data_folder("sample_traces").glob("*.jsonl.gz"))]
    kinds: tuple[type[Router], ...] = (LlmDPrecise, Dynamo)
    routers = [kind({"event_lag_s": lag_s}) for kind in kinds for lag_s in LAGS_S]
    runs = {_name(path): _runs(path.name, _prompts(path), routers) for path in paths}
    rows = []
    for number, router in enumerate(routers):
        cells = [_figures(of_trace[number]) for of_trace in runs.values()]
        rows.append([f"`{router.name}`, {router.values['event_lag_s']:g} s", *cells])
    description = f"{_SETTING} overloaded: the queue grows."
    return Table("KV events that come late", description, ("router, lag", *runs), rows)


def _name(path: Path) -> str:
    return path.name.removesuffix(".jsonl.gz")


def _prompts(path: Path) -> Prompts:
    with open_store(MEMORY) as store:
        return load_prompts(store, ingest(store, str(path)).trace)


def _runs(name: str, prompts: Prompts, routers: Sequence[Router]) -> list[FleetRun]:
    """Return the run of each router on one trace."""
    note(f"routers: {name}")
    setting = run_setting(standard(), LATENCY)
    workload = Workload(_at_load(prompts), setting, Windows(1.0, 1))
    curve = workload.curve
    capacity = max(curve.capacity_for(HELD * curve.ideal) // REPLICAS, 1)
    sweep = FleetSweep(workload, capacity, Slo(1.0))
    fleets = [Fleet(router, Lru(), REPLICAS) for router in routers]
    for _ in sweep.prepare(fleets):
        pass
    return list(sweep.sweep(fleets))


def _at_load(prompts: Prompts) -> Prompts:
    """Return the trace with arrivals at which prefills without hits keep LOAD of the replicas."""
    tokens = prompts.input_tokens.astype(np.int64)
    busy_s = float(LATENCY.ttft_s(tokens, np.zeros_like(tokens)).sum())
    start_s = float(prompts.arrival_s[0])
    factor = busy_s / (LOAD * REPLICAS * float(prompts.arrival_s[-1] - start_s))
    return replace(prompts, arrival_s=(prompts.arrival_s - start_s) * factor)


def _cell(runs: list[FleetRun], number: int) -> str:
    """Return a router's figures on one sample, bold where it is the best that can be run."""
    outcome, cell = runs[number].outcome, _figures(runs[number])
    real = [run.outcome.target_ttft_s for run in runs if not run.fleet.router.reference]
    best = not outcome.latencies.overloaded and outcome.target_ttft_s == min(real)
    return f"**{cell}**" if best else cell


def _figures(run: FleetRun) -> str:
    """Return the hit rate and the p95 TTFT of a run."""
    outcome = run.outcome
    overloaded = outcome.latencies.overloaded
    ttft = "overloaded" if overloaded else f"{outcome.target_ttft_s:.3g} s"
    return f"{outcome.taken:.1%}, {ttft}"
