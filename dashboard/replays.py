"""What the policy lab runs: replays that the store lacks, kept one by one as they finish."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np

from dashboard import background_cache, connection
from dashboard.job import Job
from kvscope.app.requests import Capacities, SimulateRequest
from kvscope.app.simulate import Simulation, simulate, workload_for
from kvscope.app.simulate import replay as replayed_runs
from kvscope.core.runs import Run, RunSetting
from kvscope.core.trace import Trace
from kvscope.policies.base import Leaves, Policy
from kvscope.policies.lru import Lru
from kvscope.policies.registry import by_name
from kvscope.replay.capacity_models import serve_replay, tier_request
from kvscope.replay.policy_options import Variant
from kvscope.replay.workload import ReplayRequest
from kvscope.report.runs import names
from kvscope.report.ttft import Distribution, distribution
from kvscope.tuning import search
from kvscope.tuning.target import Target

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
    """What came of it. `ttft` has each request's TTFT by capacity, and fills as it is looked at."""

    found: Simulation
    ttft: dict[int, tuple[Distribution, ...]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether no replay was stopped."""
        return not self.found.unfinished


def replay(job: Job, asking: Asking) -> Replays:
    """The runs asked for, from the store or replayed and kept."""
    lru = background_cache.lru_for(job, asking.trace)
    request = SimulateRequest(
        asking.setting, asking.variants, Capacities(blocks=asking.capacities_blocks)
    )
    made = Replays(simulate(connection, asking.trace, lru.prompts, request, job))
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
    lru = background_cache.lru_for(job, asking.trace)
    workload = workload_for(asking.trace, lru.prompts, asking.setting)
    half = max(lru.curve.capacity_for(lru.curve.ideal / 2), 1)
    at = next(iter(asking.capacities_blocks), half)
    target = Target(asking.setting.slo_s or 0.0)
    with job.steps("looking where xi matters"):
        policies: list[Policy] = [Lru(), *search.over_xi(workload, asking.variants[0], at, target)]
    asked = [ReplayRequest(policy, at) for policy in policies]
    return Replays(replayed_runs(connection, asking.trace, workload, asked, job))


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


def _ttft_ms(made: Replays, run: Run) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    workload = made.found.workload
    assert workload is not None  # noqa: S101  (for mypy: `replay` and `over_xi` have it)
    policy = by_name(run.policy)(dict(run.params), cast("Leaves", run.leaves))
    asked = (
        tier_request(workload, policy, made.found.estimates)
        if run.setting.tiers
        else ReplayRequest(policy, run.capacity_blocks)
    )
    workload.prepare([policy])
    served = serve_replay(workload, asked).served
    times = served.ttft_s[served.first :]
    return times[np.isfinite(times)] * 1e3
