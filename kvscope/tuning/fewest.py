"""The fewest replicas that meet an SLO: one answer to "how many", for every command.

Requests are those after the warm-up, cut into a validation and a held-out window: the SLO has to be
met on both. Each replica is what the sweep simulates, behind a named router.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """The fewest replicas with a policy behind a router that meet the SLO.

    `replicas` is None where `tried` do not meet it. `size` is its interval, of which None stands
    for more than `compared`. `ends` has the number at each end of what is not known exactly, by the
    end's name.
    """

    router: Router
    policy: Policy
    replicas: int | None
    tried: int
    size: FleetSize | None = None
    ends: Mapping[str, int | None] = {}

    @property
    def compared(self) -> int:
        """The most replicas that the interval looks at."""
        return min(most_around(self.replicas or self.tried), self.tried)


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
    ends: Mapping[str, FleetSweep] | None = None,
    counts: Sequence[int] = range(1, MOST_REPLICAS + 1),
) -> FewestReplicas:
    """Return the fewest replicas, with the 95 % interval, and their number at each end."""
    for _ in sweep.prepare([Fleet(router, policy, counts[0])]):
        pass

    def searched(at: FleetSweep) -> tuple[int | None, Callable[[int], FleetRun]]:
        run = cache(lambda count: at.run(Fleet(router, policy, count)))
        return fewest(lambda count: run(count).meets, counts), run

    enough, run = searched(sweep)
    size = None
    if enough is not None:
        size = size_of(sweep, [run(count) for count in counts if count <= most_around(enough)])
    at_ends = {name: searched(at)[0] for name, at in (ends or {}).items()}
    return FewestReplicas(router, policy, enough, counts[-1], size, at_ends)


def most_around(replicas: int) -> int:
    """Return the most replicas that the interval of so many looks at."""
    return max(2 * replicas, replicas + 2)


def size_of(sweep: FleetSweep, runs: Sequence[FleetRun]) -> FleetSize:
    """Return the interval of the fewest replicas, each number with its worst seed.

    Where two windows are judged, the larger number of both.
    """
    prompts, slo = sweep.prompts, sweep.slo
    target = Target(slo.ttft_s, slo.percentile)
    begin, end = first_counted(prompts, sweep.workload.setting.definition), len(prompts.leaf)
    cut = sweep.held_out_from or end
    ttft_s, fails = {}, {}
    for run in runs:
        target_s = [outcome.target_ttft_s for outcome in run.outcomes]
        worst = int(np.argmax(target_s))
        outcome = run.outcomes[worst]
        ttft_s[run.fleet.replicas] = np.nan_to_num(
            sweep.replay(run.fleet, worst).ttft_s, nan=np.inf
        )  # rejected
        slow = not outcome.meets and outcome.target_ttft_s <= slo.ttft_s  # by its TPOT
        fails[run.fleet.replicas] = outcome.latencies.overloaded or slow
    sizes = []
    for window in (slice(begin, cut), slice(cut, end)):
        if window.start < window.stop:
            clusters = clusters_of(prompts.conversation[window], prompts.user[window])
            times = {count: each[window] for count, each in ttft_s.items()}
            sizes.append(fleet_size(times, fails, clusters, target))

    def largest(numbers: Sequence[int | None]) -> int | None:
        known = [number for number in numbers if number is not None]
        return max(known) if len(known) == len(numbers) else None

    return FleetSize(
        *(largest([getattr(each, name) for each in sizes]) for name in FleetSize.__struct_fields__)
    )
