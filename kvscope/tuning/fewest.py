"""The fewest replicas that meet an SLO: one search and one window for every command.

The window is the counted requests: those after the warm-up. What a replica is, a simulated vLLM or
a queue of prefills, the sweep says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from threading import Event
from typing import ClassVar

import numpy as np
from msgspec import Struct

from kvscope.core.errors import Stopped
from kvscope.core.executor import Executor
from kvscope.fleet.sweep import Fleet, FleetRun, FleetSweep
from kvscope.policies.base import Policy
from kvscope.replay.curve import first_counted
from kvscope.routers.base import Router
from kvscope.tuning.bootstrap import clusters_of
from kvscope.tuning.fleet_size import FleetSize, doubled, fleet_size
from kvscope.tuning.target import Target

MOST_REPLICAS = 64
"""The most replicas that are tried, where no numbers are stated."""


class FewestReplicas(Struct, frozen=True):
    """The fewest replicas with a policy behind a router that meet the SLO.

    `replicas` is None where up to `tried` do not meet it. `size` has its 95 % interval, in which
    None stands for more than `compared`; None without the fewest.
    """

    DOCUMENT: ClassVar[str] = (
        "router=router.name policy=policy.name replicas replicas_interval"
        " replicas_compared=compared replicas_tried=tried"
    )
    router: Router
    policy: Policy
    replicas: int | None
    tried: int
    compared: int
    size: FleetSize | None

    @property
    def replicas_interval(self) -> tuple[int | None, int | None] | None:
        """The 95 % interval of the number, None without one."""
        return None if self.size is None else (self.size.low, self.size.high)


def fewest(meets: Callable[[Sequence[int]], Iterable[bool]], counts: Sequence[int]) -> int | None:
    """Return the fewest of ascending counts that meet the SLO; None where none of those tried does.

    Doubled until one does, then one fewer at a time while they do: a lower count that meets the SLO
    where a larger one does not is luck. `meets` says of each of some counts whether it does.
    """
    failing = 0
    for count in doubled(counts):
        if all(meets([count])):
            fewer = [each for each in reversed(counts) if failing < each < count]
            met = zip(fewer, meets(fewer), strict=False)  # a lazy answer is not read to its end
            return min([count, *(each for each, _ in takewhile(lambda pair: pair[1], met))])
        failing = count
    return None


def fewest_replicas(
    sweep: FleetSweep,
    router: Router,
    policy: Policy,
    counts: Sequence[int],
    *,
    stop: Event | None = None,
    executor: Executor | None = None,
) -> FewestReplicas:
    """Return the fewest replicas of ascending `counts` that meet the sweep's SLO. Raises Stopped.

    The default executor are threads.
    """
    runs: dict[int, FleetRun] = {}

    def replayed(wanted: Sequence[int]) -> list[FleetRun]:
        missing = [Fleet(router, policy, count) for count in wanted if count not in runs]
        if missing:
            runs.update((run.fleet.replicas, run) for run in sweep.sweep(missing, stop, executor))
        if stop is not None and stop.is_set():
            raise Stopped("stopped before the fewest replicas were known")
        return [runs[count] for count in wanted]

    for _ in sweep.prepare([Fleet(router, policy, counts[0])]):
        pass
    enough = fewest(lambda wanted: [run.meets for run in replayed(wanted)], counts)
    compared = counts[-1] if enough is None else min(most_compared(enough), counts[-1])
    size = None
    if enough is not None:
        size = size_of(sweep, replayed([count for count in counts if count <= compared]))
    return FewestReplicas(router, policy, enough, max(runs), compared, size)


def most_tried(present: int) -> int:
    """Return the most replicas that are tried where so many run."""
    return max(MOST_REPLICAS, 2 * present)


def most_compared(replicas: int) -> int:
    """Return the most replicas that the interval of so many looks at."""
    return max(2 * replicas, replicas + 2)


def size_of(sweep: FleetSweep, runs: Sequence[FleetRun]) -> FleetSize:
    """Return the interval of the fewest replicas, each number with its worst seed."""
    prompts, slo = sweep.prompts, sweep.slo
    counted = slice(first_counted(prompts, sweep.workload.setting.definition), None)
    ttft_s, fails = {}, {}
    for run in runs:
        target_s = [outcome.target_ttft_s for outcome in run.outcomes]
        worst = int(np.argmax(target_s))
        outcome = run.outcomes[worst]
        replayed_s = sweep.replay(run.fleet, worst).ttft_s[counted]
        ttft_s[run.fleet.replicas] = np.nan_to_num(replayed_s, nan=np.inf)  # rejected
        slow = not outcome.meets and outcome.target_ttft_s <= slo.ttft_s  # by its TPOT
        fails[run.fleet.replicas] = outcome.latencies.overloaded or slow
    clusters = clusters_of(prompts.conversation[counted], prompts.user[counted])
    return fleet_size(ttft_s, fails, clusters, Target(slo.ttft_s, slo.percentile))
