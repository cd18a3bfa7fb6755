"""The fewest replicas that meet an SLO, and how certain that number is: for every command.

The window is the counted requests: those after the warm-up. What a replica is, a simulated vLLM or
a queue of prefills, the sweep says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from threading import Event
from typing import ClassVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.arrays import Bools, Float64s, Int32s
from kvscope.core.errors import Stopped
from kvscope.core.executor import Executor
from kvscope.core.units import format_percentile
from kvscope.fleet.sweep import Fleet, FleetRun, FleetSweep
from kvscope.policies.base import Policy
from kvscope.replay.curve import first_counted
from kvscope.routers.base import Router
from kvscope.tuning.bootstrap import Bootstrap, clusters_of, interval
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


class FleetSize(Struct, frozen=True):
    """The fewest replicas that meet an SLO, and the 95 % interval of that number.

    None stands for more than the most that were tried.
    """

    replicas: int | None
    low: int | None
    high: int | None


def fleet_size(
    ttft_s: Mapping[int, Float64s],
    overloaded: Mapping[int, bool],
    conversation: Int32s,
    target: Target,
) -> FleetSize:
    """Return the fewest replicas that meet the target, by the rule of `fewest`.

    `ttft_s` has the latencies of the counted requests (s, in order of arrival) for each number of
    replicas tried, `conversation` their conversations. Where a fleet is `overloaded` its queue
    grows, so no resample of it meets the target. The interval is that of the number in resamples
    of the requests, the same ones for all numbers; the widest one of all kinds of resamples.
    """
    counts = sorted(ttft_s)
    bootstrap = Bootstrap(conversation, target)
    at = bootstrap.names.index(format_percentile(target.percentile))
    figures = [bootstrap.figures(ttft_s[count]) for count in counts]
    grows = np.array([overloaded[count] for count in counts])
    values = np.array([each.value[at] for each in figures])
    resamples = np.stack([each.resamples[..., at] for each in figures], axis=-1)
    replicas = _fewest_of((values <= target.slo_s) & ~grows, counts)
    fewest = _fewest_of((resamples <= target.slo_s) & ~grows, counts).astype(np.float64)
    low, high = interval(fewest, figures[min(int(replicas), len(counts) - 1)].clusters[:, at])
    tried = [*counts, None]
    return FleetSize(tried[int(replicas)], tried[int(low)], tried[int(high)])


def doubled(counts: Sequence[int]) -> list[int]:
    """Return some of ascending counts: each the largest that is at most twice the one before.

    The next one where there is none; the first and the last are among them.
    """
    chosen = list(counts[:1])
    while chosen and chosen[-1] < counts[-1]:
        larger = [count for count in counts if count > chosen[-1]]
        chosen.append(max((each for each in larger if each <= 2 * chosen[-1]), default=larger[0]))
    return chosen


def _fewest_of(meets: Bools, counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the place of `fewest` of the counts on the last axis; the axis' length for none."""
    fewest = np.full(meets.shape[:-1], len(counts))
    for place in map(counts.index, reversed(doubled(counts))):
        lasting = np.logical_and.accumulate(meets[..., place::-1], axis=-1).sum(axis=-1)
        fewest = np.where(lasting > 0, place + 1 - lasting, fewest)
    return fewest
