"""What the policy lab runs: replays that the store lacks, kept one by one as they finish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import held
import numpy as np
from job import Job

from kvscope.characterize.windows import round_windows
from kvscope.errors import StoreBusyError
from kvscope.facts import Run, RunSetting, Trace
from kvscope.show.charts.distributions import Distribution, distribution
from kvscope.show.simulation import Simulation, names, ordered
from kvscope.simulate import kept
from kvscope.simulate.capacity_models import replayed
from kvscope.simulate.sweep import sweep
from kvscope.simulate.variants import Variant, bind, found_values
from kvscope.simulate.workload import WINDOWS, Asked, Workload
from kvscope.store.prompts import Prompts

USUAL_POINTS = 5


@dataclass(frozen=True, slots=True)
class Asking:
    """What the lab was asked: the same fields as the options of `kvscope simulate`."""

    trace: Trace
    setting: RunSetting
    variants: tuple[Variant, ...]
    capacities_blocks: tuple[int, ...]
    points: int | None = None


@dataclass(frozen=True, slots=True)
class Replays:
    """What came of it; `complete` is False where it was stopped."""

    found: Simulation
    complete: bool
    at_blocks: int
    ttft: tuple[Distribution, ...]


def replay(job: Job, asking: Asking, prompts: Prompts) -> Replays:
    """The runs asked for, from the store or replayed and kept; then TTFT request by request."""
    trace = asking.trace
    workload = Workload(prompts, asking.setting, round_windows(trace, WINDOWS))
    values = found_values(workload.turns, workload.profile, asking.setting.slo_s)
    policies = [bind(variant, values) for variant in asking.variants]
    grid = kept.grid(workload, asking.capacities_blocks, asking.points, USUAL_POINTS)
    asked = [Asked(policy, at) for at in grid for policy in policies]
    with held.opened() as store:
        wanted = kept.wanted(store, trace, workload.setting, asked)
    runs = list(wanted.known)
    with job.steps("compiling and preparing"):
        workload.prepare([one.policy for one in wanted.missing])
    with job.steps("replaying", len(wanted.missing)) as advance:
        for run in sweep(workload, wanted.missing, stop=job.stop):
            runs.append(_keep(job, trace, run))
            advance(1)
    found = Simulation(trace, None, asking.setting, ordered(runs), workload.curve)
    middle = grid[len(grid) // 2]
    with job.steps("spreading TTFT"):
        ttft = _ttft(job, workload, [one for one in asked if one.capacity_blocks == middle], found)
    return Replays(found, len(runs) == wanted.count, middle, ttft)


def _keep(job: Job, trace: Trace, run: Run) -> Run:
    try:
        with held.opened(write=True) as store:
            return kept.keep(store, trace, run)
    except StoreBusyError as error:
        if not job.notes:
            job.notes.append(f"Shown, but not kept: {error}")
        return run


def _ttft(
    job: Job, workload: Workload, asked: Sequence[Asked], found: Simulation
) -> tuple[Distribution, ...]:
    """How TTFT spreads over the requests, of each run at one capacity."""
    name = names(found.runs)
    by_policy = {
        (run.policy, run.leaves, tuple(run.params.items())): name(run)
        for run in found.runs
        if asked and run.capacity_blocks == asked[0].capacity_blocks
    }
    made = []
    for one in asked:
        params = tuple((key, float(value)) for key, value in one.policy.values.items())
        label = by_policy.get((one.policy.name, one.policy.evicts, params))
        if label is None or job.stop.is_set():
            continue
        served = replayed(workload, one).served
        times = np.asarray(served.ttft_s[served.first :])
        made.append(distribution(label, one.policy.name, times[np.isfinite(times)] * 1e3))
    return tuple(made)
