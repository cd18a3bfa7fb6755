"""What the policy lab runs: replays that the store lacks, kept one by one as they finish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import prepared
from job import Job
from kvscope.report.runs import names
from opened import reading, writing

from kvscope.app.simulate import Simulation, ordered
from kvscope.characterize.windows import round_windows
from kvscope.core.errors import StoreBusyError
from kvscope.core.runs import Run, RunSetting
from kvscope.core.trace import Trace
from kvscope.policies.base import Leaves, Policy
from kvscope.policies.lru import Lru
from kvscope.policies.registry import by_name
from kvscope.replay import run_cache as kept
from kvscope.replay.capacity_models import replayed
from kvscope.replay.capacity_options import over_tiers
from kvscope.replay.lru_point import LruAnywhere
from kvscope.replay.variants import Found, Variant, bind, found_values
from kvscope.replay.workload import WINDOWS, Asked, Workload, sweep
from kvscope.report.ttft import Distribution, distribution
from kvscope.tune import capacity as xi
from kvscope.tune.objective import Target

USUAL_POINTS = 5


@dataclass(frozen=True, slots=True)
class Asking:
    """What the lab was asked: the same fields as the options of `kvscope simulate`."""

    trace: Trace
    setting: RunSetting
    variants: tuple[Variant, ...]
    capacities_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replays:
    """What came of it; `complete` is False where it was stopped. `ttft` fills as it is looked at.

    The workload is kept, since stored runs have percentiles but not each request's TTFT.
    """

    found: Simulation
    complete: bool
    workload: Workload
    values: Mapping[str, Found]
    ttft: dict[int, tuple[Distribution, ...]] = field(default_factory=dict)


def replay(job: Job, asking: Asking) -> Replays:
    """The runs asked for, from the store or replayed and kept."""
    workload, values = _ready(asking, prepared.lru_for(job, asking.trace))
    policies = [bind(variant, values) for variant in asking.variants]
    if asking.setting.tiers:
        asked = [over_tiers(workload, policy, values) for policy in policies]
    else:
        grid = kept.grid(workload, asking.capacities_blocks, None, USUAL_POINTS)
        asked = [Asked(policy, at) for at in grid for policy in policies]
    made = _made(job, asking.trace, workload, values, asked)
    with job.steps("spreading TTFT over the requests", len(made.found.capacities)) as advance:
        for at in made.found.capacities:
            if job.stop.is_set():  # what is missing is made when it is looked at
                break
            spread(made, at)
            advance(1)
    return made


def over_xi(job: Job, asking: Asking) -> Replays:
    """The first variant with every xi worth a look, LRU beside it, at the first capacity.

    Where none is named, it is the one with which LRU gets half of the hits that there are.
    """
    lru = prepared.lru_for(job, asking.trace)
    workload, values = _ready(asking, lru)
    half = max(lru.curve.capacity_for(lru.curve.ideal / 2), 1)
    at = next(iter(asking.capacities_blocks), half)
    target = Target(asking.setting.slo_s or 0.0)
    with job.steps("looking where xi matters"):
        policies: list[Policy] = [Lru(), *xi.over_xi(workload, asking.variants[0], at, target)]
    asked = [Asked(policy, at) for policy in policies]
    return _made(job, asking.trace, workload, values, asked)


def middle(found: Simulation) -> int:
    """The capacity to begin with."""
    return found.capacities[len(found.capacities) // 2]


def spread(made: Replays, capacity_blocks: int) -> tuple[Distribution, ...]:
    """How TTFT spreads over the requests, of each run at one capacity."""
    if capacity_blocks not in made.ttft:
        name = names(made.found.runs)
        spreads = [
            distribution(name(run), run.policy, _ttft_ms(made, run))
            for run in made.found.at(capacity_blocks)
        ]
        made.ttft[capacity_blocks] = tuple(spreads)
    return made.ttft[capacity_blocks]


def _ready(asking: Asking, lru: LruAnywhere) -> tuple[Workload, Mapping[str, Found]]:
    workload = Workload(lru.prompts, asking.setting, round_windows(asking.trace, WINDOWS))
    return workload, found_values(workload.turns, workload.profile, asking.setting.slo_s)


def _made(
    job: Job,
    trace: Trace,
    workload: Workload,
    values: Mapping[str, Found],
    asked: Sequence[Asked],
) -> Replays:
    setting = workload.setting
    with reading() as store:
        wanted = kept.wanted(store, trace, setting, asked)
    runs = list(wanted.known)
    with job.steps("compiling and preparing"):
        workload.prepare([one.policy for one in wanted.missing])
    with job.steps("replaying", len(wanted.missing)) as advance:
        for run in sweep(workload, wanted.missing, stop=job.stop):
            runs.append(_keep(job, trace, run))
            advance(1)
    one_cache = setting.capacity_model == "cache" and not setting.tiers
    curve = workload.curve if one_cache else None
    found = Simulation(trace, None, setting, ordered(runs), curve)
    return Replays(found, len(runs) == wanted.count, workload, values)


def _keep(job: Job, trace: Trace, run: Run) -> Run:
    try:
        with writing() as store:
            return kept.keep(store, trace, run)
    except StoreBusyError as error:
        if not job.notes:
            job.notes.append(f"Shown, but not kept: {error}")
        return run


def _ttft_ms(made: Replays, run: Run) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    policy = by_name(run.policy)(dict(run.params), cast("Leaves", run.leaves))
    asked = (
        over_tiers(made.workload, policy, made.values)
        if run.setting.tiers
        else Asked(policy, run.capacity_blocks)
    )
    made.workload.prepare([policy])
    served = replayed(made.workload, asked).served
    times = served.ttft_s[served.first :]
    return times[np.isfinite(times)] * 1e3
