"""The fewest replicas that meet an SLO: one answer to "how many", for every command.

Replicas are what a sweep of fleets simulates, behind a named router, and the SLO is judged on the
requests that the sweep counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from msgspec import Struct

from kvscope.fleet.sweep import Fleet, FleetRun, FleetSweep
from kvscope.policies.base import Policy
from kvscope.replay.curve import first_counted
from kvscope.routers.base import Router
from kvscope.tuning.bootstrap import clusters_of
from kvscope.tuning.fleet_size import FleetSize, fleet_size
from kvscope.tuning.target import Target

MOST_REPLICAS = 64
"""The most replicas that are tried, where no numbers are stated."""


class FewestReplicas(Struct, frozen=True):
    """The fewest replicas with a policy behind a router that meet the SLO; None for above `tried`.

    `size` is the 95 % interval of the number, of which None stands for more than were compared.
    """

    router: Router
    policy: Policy
    replicas: int | None
    tried: int
    size: FleetSize | None = None


def doubled(counts: Sequence[int]) -> list[int]:
    """Return of ascending counts the first, those at twice the previous or next to it, the last."""
    taken = [counts[0]]
    while taken[-1] < counts[-1]:
        below = [count for count in counts if count <= 2 * taken[-1]]
        taken.append(max(below[-1], next(count for count in counts if count > taken[-1])))
    return taken


def fewest(meets: Callable[[int], bool], counts: Sequence[int]) -> int | None:
    """Return the fewest of ascending counts that meet the SLO, None where none does.

    Doubled until one does, then one fewer at a time while they do: between the answer and the
    doubled number all meet it, so that a lucky split below is not the answer.
    """
    enough = next((count for count in doubled(counts) if meets(count)), None)
    if enough is None:
        return None
    for count in reversed([count for count in counts if count < enough]):
        if not meets(count):
            break
        enough = count
    return enough


def fewest_replicas(
    sweep: FleetSweep,
    router: Router,
    policy: Policy,
    counts: Sequence[int] = range(1, MOST_REPLICAS + 1),
) -> FewestReplicas:
    """Return the fewest replicas with their 95 % interval."""
    run = cache(lambda count: sweep.run(Fleet(router, policy, count)))
    for _ in sweep.prepare([Fleet(router, policy, counts[0])]):
        pass
    enough = fewest(lambda count: run(count).meets, counts)
    size = None
    if enough is not None:
        size = size_of(sweep, [run(count) for count in counts if count <= most_around(enough)])
    return FewestReplicas(router, policy, enough, counts[-1], size)


def most_around(replicas: int) -> int:
    """Return the most replicas that the interval of so many looks at."""
    return max(2 * replicas, replicas + 2)


def size_of(sweep: FleetSweep, runs: Sequence[FleetRun]) -> FleetSize:
    """Return the interval of the fewest replicas, each number with its worst seed."""
    prompts, slo = sweep.prompts, sweep.slo
    counted = slice(first_counted(prompts, sweep.workload.setting.definition), None)
    ttft_s, fails = {}, {}
    for run in runs:
        worst = int(np.argmax([outcome.target_ttft_s for outcome in run.outcomes]))
        outcome = run.outcomes[worst]
        replayed_s = sweep.replay(run.fleet, worst).ttft_s[counted]
        ttft_s[run.fleet.replicas] = np.nan_to_num(replayed_s, nan=np.inf)  # rejected
        slow = not outcome.meets and outcome.target_ttft_s <= slo.ttft_s  # by its TPOT
        fails[run.fleet.replicas] = outcome.latencies.overloaded or slow
    clusters = clusters_of(prompts.conversation[counted], prompts.user[counted])
    return fleet_size(ttft_s, fails, clusters, Target(slo.ttft_s, slo.percentile))
