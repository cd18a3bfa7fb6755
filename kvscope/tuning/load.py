"""Load: whether replicas keep up with the arrivals, how many would, and what share fits.

A queue that grows over the whole window has no percentile worth quoting: a longer window has a
worse one.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from kvscope.policies.lru import Lru
from kvscope.replay.metrics import QueueTimes, ServedRequests
from kvscope.tuning.fewest import fewest, most_tried
from kvscope.tuning.replicas import thinned
from kvscope.tuning.trial import Advance, Evaluator, Trial

_SHARE_STEPS = 6  # of a bisection: the share carried is exact to 1/64


def ttft_growth(served: ServedRequests, rate_scale: float = 1.0) -> float:
    """Return the growth of the queue of the counted requests; 0 without times."""
    queue = _queue(served, rate_scale)
    return 0.0 if queue is None else queue.growth


class Load(Struct, frozen=True):
    """How the replicas of a deployment bear the arrivals of one window, under LRU.

    `growth` is that of the queue. The rest is set where they are `overloaded`: the least number
    of replicas that keep up, None where none up to `most_tried` do; the largest share of the
    conversations that the present ones carry, and LRU's trial on that share.
    """

    growth: float
    overloaded: bool
    replicas_at_least: int | None = None
    carried_share: float | None = None
    carried: Trial | None = None


def keeps_up(served: ServedRequests, slo_s: float, rate_scale: float = 1.0) -> bool:
    """Return whether the queue of the counted requests does not grow; True without times."""
    queue = _queue(served, rate_scale)
    return queue is None or queue.keeps_up(slo_s)


def _queue(served: ServedRequests, rate_scale: float) -> QueueTimes | None:
    """Return the counted requests that got a token, None where the trace has no times."""
    if served.queued_ttft_s is None:
        return None
    counted = slice(served.first, None)
    times, arrival_s = served.queued_ttft_s[counted], served.prompts.arrival_s / rate_scale
    answered = np.isfinite(times)
    waited_s = (times - served.ttft_s[counted])[answered]
    return QueueTimes(arrival_s[counted][answered], times[answered], waited_s, float(arrival_s[0]))


def load_of(
    evaluator: Evaluator, capacity_blocks: int, replicas: int, advance: Advance | None = None
) -> Load:
    """Return how `replicas` with this capacity bear the evaluator's window under LRU."""
    workload, target = evaluator.workload, evaluator.target
    scale = workload.setting.rate_scale

    def keeps(other: Evaluator) -> bool:
        if advance is not None:
            advance(1)
        served = other.served(Lru(), capacity_blocks)
        counted = served.first < len(served.ttft_s)  # a small share may have none
        return counted and keeps_up(served, target.slo_s, scale)

    growth = ttft_growth(evaluator.served(Lru(), capacity_blocks), scale)
    if keeps(evaluator):
        return Load(growth, overloaded=False)
    more = range(replicas + 1, most_tried(replicas) + 1)
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
