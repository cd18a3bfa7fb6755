"""The fewest replicas and the least capacity that meet an SLO, and the load that replicas carry.

Where replicas do not keep up with the arrivals, the queue grows over the whole window, and
percentiles are meaningless: those of a longer window are worse.

The window holds the counted requests: those after the warm-up. The sweep determines whether a
replica is a simulated vLLM or a queue of prefills.
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
from kvscope.policies.lru import Lru
from kvscope.replay.curve import first_counted
from kvscope.replay.metrics import QueueTimes, ServedRequests
from kvscope.routers.base import Router
from kvscope.tuning.bootstrap import Bootstrap, clusters_of, interval
from kvscope.tuning.replicas import thinned
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Advance, Evaluator, Trial

MOST_REPLICAS = 64
"""The most replicas that are tried, where no numbers are stated."""


class FewestReplicas(Struct, frozen=True):
    """The fewest replicas with a policy behind a router that meet the SLO.

    `tried` is the largest number replayed, `replicas` None if none up to it meets the SLO. `size`
    has the 95 % interval of `replicas` among the numbers up to `compared` (an end of None: more);
    it is None without `replicas`, or if none but the only present replica was tried.
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
        """The 95 % interval (low, high), None without `size`; an end above `compared` is None."""
        return None if self.size is None else (self.size.low, self.size.high)


def fewest(meets: Callable[[Sequence[int]], Iterable[bool]], counts: Sequence[int]) -> int | None:
    """Return the fewest of ascending counts that meet the SLO; None if no tried count does.

    Counts double until one meets the SLO, then decrease by one as long as they meet it: if a count
    misses the SLO and a smaller one meets it, that is luck. `meets` returns a bool for each count.
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
    """Return the fewest of ascending `counts` of replicas that meet the SLO. Raises Stopped.

    The default executor uses threads.
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
    """Return the most replicas to try for a deployment with `present` replicas."""
    return max(MOST_REPLICAS, 2 * present)


def most_compared(replicas: int) -> int:
    """Return the most replicas to replay for the interval, if `replicas` is the answer."""
    return max(2 * replicas, replicas + 2)


def size_of(sweep: FleetSweep, runs: Sequence[FleetRun]) -> FleetSize:
    """Return the fewest replicas of `runs`, with an interval; a run's worst seed counts."""
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

    Each is None if it is more than the largest number that was replayed.
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
    """Return the fewest replicas that meet the target, by the rule of `fewest`, with an interval.

    `ttft_s` maps each number of replicas to the latencies (s) of the counted requests, in order of
    arrival; `conversation` has their conversations. An `overloaded` fleet's queue grows, so it
    meets the target in no resample. The interval is over resamples of the requests, the same for
    all numbers of replicas, and the widest over all kinds of resamples.
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
    """Return a subset of ascending counts, from the first to the last, in steps of at most double.

    Where no larger count is within twice the previous one, the step goes to the next count.
    """
    chosen = list(counts[:1])
    while chosen and chosen[-1] < counts[-1]:
        larger = [count for count in counts if count > chosen[-1]]
        chosen.append(max((each for each in larger if each <= 2 * chosen[-1]), default=larger[0]))
    return chosen


def _fewest_of(meets: Bools, counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the index in `counts` of `fewest`, for each row of `meets`; `len(counts)` for none."""
    fewest = np.full(meets.shape[:-1], len(counts))
    for place in map(counts.index, reversed(doubled(counts))):
        lasting = np.logical_and.accumulate(meets[..., place::-1], axis=-1).sum(axis=-1)
        fewest = np.where(lasting > 0, place + 1 - lasting, fewest)
    return fewest


PRECISION = 0.01
GRID = 8
_KEPT = 3  # settings that go on from the grid
SMALLEST_SHARE = 1 / 16  # of the capacity that LRU needs: no policy gets by with less


def least_for_lru(
    evaluator: Evaluator, low: int, high: int, advance: Advance | None = None
) -> Trial | None:
    """Return LRU's trial at the least capacity from `low` to `high` blocks that meets the target.

    None if even `high` does not. The capacity is at most 1 % (PRECISION) or a block above the true
    one: a larger LRU cache holds all blocks of a smaller one, so no request gets slower with more.
    Source: Mattson et al., "Evaluation techniques for storage hierarchies", 1970 (inclusion).
    """
    failing, meeting = evaluator.evaluate([(Lru(), low), (Lru(), high)], advance)
    if failing.meets(evaluator.target):
        return failing
    if not meeting.meets(evaluator.target):
        return None
    while inner := _between(failing.capacity_blocks, meeting.capacity_blocks):
        for trial in evaluator.evaluate([(Lru(), blocks) for blocks in inner], advance):
            if trial.meets(evaluator.target):
                meeting = trial
                break
            failing = trial
    return meeting


def least_for_any(
    evaluator: Evaluator,
    settings: Sequence[Policy],
    low: int,
    high: int,
    advance: Advance | None = None,
    *,
    also: int | None = None,
) -> Trial | None:
    """Return the best trial at the least capacity from which on any of `settings` meets the target.

    One of `settings` meets it at every tried capacity from there up to `high`; a smaller capacity
    that meets it by chance, below one that misses it, is ignored. None if `high` misses it. `also`
    is a capacity to try if it lies between `low` and `high`.
    """
    target = evaluator.target
    between = {also} if also is not None and low < also < high else set()
    points = sorted({low, *_grid(low, high), *between, high})
    failing, least = 0, None
    while points:
        pairs = [(policy, blocks) for blocks in points for policy in settings]
        trials = iter(evaluator.evaluate(pairs, advance))
        by_capacity = [
            sorted((next(trials) for _ in settings), key=lambda trial: trial.rank(target))
            for _ in points
        ]
        for ranked in reversed(by_capacity):
            if not ranked[0].meets(target):
                failing = ranked[0].capacity_blocks
                break
            least = ranked[0]
            settings = [trial.policy for trial in ranked[:_KEPT]]
        if least is None or least.capacity_blocks == low:
            break
        points = _between(failing, least.capacity_blocks)
    return least


def _between(failing: int, meeting: int) -> list[int]:
    """Return one or two capacities in between, geometrically spaced; none within PRECISION."""
    if meeting - failing <= max(1, int(PRECISION * meeting)):
        return []
    points = np.geomspace(max(failing, 1), meeting, 4)[1:3].round().astype(int)
    inside = sorted({int(blocks) for blocks in points if failing < blocks < meeting})
    return inside or [(failing + meeting) // 2]


def _grid(low: int, high: int) -> list[int]:
    least = max(low, int(high * SMALLEST_SHARE), 1)
    return [int(blocks) for blocks in np.geomspace(least, max(high, least), GRID).round()]


_SHARE_STEPS = 6  # of a bisection: the share carried is exact to 1/64


def ttft_growth(served: ServedRequests) -> float:
    """Return the growth of the counted requests' queue (s per s); 0 for a trace without times."""
    queue = _queue(served)
    return 0.0 if queue is None else queue.growth


class Load(Struct, frozen=True):
    """Whether the replicas of a deployment keep up with one window's arrivals, under LRU.

    `growth` is the queue's (s per s). If the replicas are `overloaded`: the least number that keeps
    up (None: no tried number), the largest share (0-1) of the conversations that the present ones
    can serve, and LRU's trial on that share (`carried`; None: no share). Else the rest is None.
    """

    growth: float
    overloaded: bool
    replicas_at_least: int | None = None
    carried_share: float | None = None
    carried: Trial | None = None


def keeps_up(served: ServedRequests, slo_s: float) -> bool:
    """Return whether the counted requests' queue keeps up (`QueueTimes`); True without times."""
    queue = _queue(served)
    return queue is None or queue.keeps_up(slo_s)


def _queue(served: ServedRequests) -> QueueTimes | None:
    """Return queue times of the counted requests with a token; None without queued TTFTs."""
    if served.queued_ttft_s is None:
        return None
    counted = slice(served.first, None)
    times, arrival_s = served.queued_ttft_s[counted], served.prompts.arrival_s
    answered = np.isfinite(times)
    waited_s = (times - served.ttft_s[counted])[answered]
    return QueueTimes(arrival_s[counted][answered], times[answered], waited_s, float(arrival_s[0]))


def load_of(
    evaluator: Evaluator,
    capacity_blocks: int,
    replicas: int,
    most: int,
    advance: Advance | None = None,
) -> Load:
    """Return the load of `replicas` under LRU on the evaluator's window; tries up to `most`."""
    workload, target = evaluator.workload, evaluator.target

    def keeps(other: Evaluator) -> bool:
        if advance is not None:
            advance(1)
        served = other.served(Lru(), capacity_blocks)
        counted = served.first < len(served.ttft_s)  # a small share may have none
        return counted and keeps_up(served, target.slo_s)

    growth = ttft_growth(evaluator.served(Lru(), capacity_blocks))
    if keeps(evaluator):
        return Load(growth, overloaded=False)
    more = range(replicas + 1, most + 1)
    needed = fewest(lambda counts: (keeps(evaluator.over(replicas=each)) for each in counts), more)
    carried, failing = 0.0, 1.0
    for _ in range(_SHARE_STEPS):
        middle = (carried + failing) / 2
        part = evaluator.over(workload=thinned(workload, middle), replicas=replicas)
        carried, failing = (middle, failing) if keeps(part) else (carried, middle)
    if not carried:
        return Load(growth, overloaded=True, replicas_at_least=needed)
    part = evaluator.over(workload=thinned(workload, carried), replicas=replicas)
    trial = part.trial(Lru(), capacity_blocks)
    return Load(growth, True, needed, carried, trial)
