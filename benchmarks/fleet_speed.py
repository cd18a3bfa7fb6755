"""Measure what one replay of a fleet costs, beside one LRU cache that replays the same trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import ROOT
from benchmarks.processes import note
from benchmarks.table import Table
from benchmarks.traces import t6
from kvscope.core.hits import standard
from kvscope.fleet.replay import asked, replay_fleet
from kvscope.ingest.pipeline import ingest
from kvscope.latency.profile import PRESETS
from kvscope.policies.lru import Lru
from kvscope.replay.replay import replay
from kvscope.replay.traffic import traffic
from kvscope.routers.balancers import RoundRobin
from kvscope.routers.base import Router
from kvscope.routers.dynamo import Dynamo
from kvscope.routers.llm_d import LlmD, LlmDPrecise
from kvscope.routers.sglang import Sglang
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts

REPLICAS = 16
SHARE = 1 / 64
"""Capacity of a replica as a share of the trace's blocks."""
AIMS_S = {"mooncake": 0.5, "t6": 10.0}
LATENCY = PRESETS["llama2-7b-a100"]
LAG_S = 1.0


def speed(mooncake: Path, rounds: int) -> Table:
    """Return the CPU seconds of a replay behind some routers, on both traces."""
    load_before = os.getloadavg()[0]
    rows = [
        *_rows("mooncake", mooncake, rounds),
        *_rows("t6", t6(ROOT / "build" / "benchmarks").path, rounds),
    ]
    description = (
        f"{REPLICAS} replicas with LRU, each of {SHARE:.2%} of the trace's blocks; time model"
        f" `queue`, latency of {LATENCY.name}. CPU seconds of a replay on one core, the trace in"
        f" memory and kernels compiled: median of {rounds} interleaved rounds, then the least."
        " The limit: one LRU cache as large as all replicas', without router and times, in the same"
        " rounds; median ratio. Load average of the machine, whose"
        f" {os.cpu_count()} cores were shared: {load_before:.1f} before, {os.getloadavg()[0]:.1f}"
        " after."
    )
    columns = ("trace, router", "CPU s", "least", "aim s", "times one LRU cache")
    return Table(f"Speed with {REPLICAS} replicas", description, columns, rows)


def _rows(name: str, path: Path, rounds: int) -> list[list[str]]:
    note(f"speed: {name}")
    with open_store(MEMORY) as store:
        prompts = load_prompts(store, ingest(store, str(path)).trace)
    steps, routed = traffic(prompts, standard()), asked(prompts)
    capacity = int(len(steps.block_parent) * SHARE)
    lagging = LlmDPrecise({"event_lag_s": LAG_S})
    routers: dict[str, Router] = {
        f"`{router.name}`": router
        for router in (RoundRobin(), Sglang(), LlmD(), LlmDPrecise(), Dynamo())
    }
    routers[f"`{lagging.name}`, events {LAG_S:g} s late"] = lagging

    def fleet(router: Router) -> Callable[[], Any]:
        return lambda: replay_fleet(steps, routed, LATENCY, Lru(), router, REPLICAS, capacity)

    contenders = {label: fleet(router) for label, router in routers.items()}
    contenders["limit"] = lambda: replay(steps, Lru(), REPLICAS * capacity)
    for contender in contenders.values():
        contender()  # compiles
    seconds: dict[str, list[float]] = {label: [] for label in contenders}
    for _ in range(rounds):
        for label, contender in contenders.items():
            started_s = time.process_time()
            contender()
            seconds[label].append(time.process_time() - started_s)
    limit = seconds.pop("limit")
    size = f"{len(prompts.leaf):,} requests, {int(steps.length.sum()):,} accesses"
    rows = [[f"{name}, {size}: one LRU cache", *_seconds(limit), "", ""]]
    for label, cpu_s in seconds.items():
        ratio = median(own / base for own, base in zip(cpu_s, limit, strict=True))
        rows.append([f"{name}: {label}", *_seconds(cpu_s), f"{AIMS_S[name]:g}", f"{ratio:.1f}"])
    return rows


def _seconds(cpu_s: list[float]) -> tuple[str, str]:
    """Return the median and the least."""
    return f"{median(cpu_s):.3f}", f"{min(cpu_s):.3f}"
