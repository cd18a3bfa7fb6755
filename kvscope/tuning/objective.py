"""What is to be tuned: the target, what may replace LRU, and at which capacities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.core.errors import InputError
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Outcome
from kvscope.policies.base import Policy
from kvscope.replay.metrics import ServedRequests, summarize
from kvscope.replay.policy_options import Variant
from kvscope.tuning.target import Target, View

Rank = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Trial:
    """One policy at one capacity, and how the counted requests of one part fared.

    `target_s` is the nearest-rank TTFT at the target's percentile, `violation_share` (0-1) and
    `tel_s` (summed over requests) are in the target's view too. `served_per_s` is how many requests
    an engine that does nothing but their prefill could take, a proxy for throughput.
    """

    policy: Policy
    capacity_blocks: int
    outcome: Outcome
    target_s: float
    violation_share: float
    tel_s: float
    served_per_s: float

    def meets(self, target: Target) -> bool:
        """Whether the SLO is kept, as the target counts."""
        return self.target_s <= target.slo_s

    def rank(self, target: Target) -> Rank:
        """What to order trials by, the best first: the measure, then TEL, then the hits."""
        first = self.target_s if target.measure == "percentile" else self.violation_share
        return first, self.tel_s, -self.outcome.token_hit_rate


def times_ms(outcome: Outcome, view: View) -> Percentiles:
    """Percentiles of TTFT in a view, of the requests that got a token."""
    queued = outcome.queued_ttft_ms if view == "queued" else None
    return queued or outcome.ttft_ms


def ttft_s(served: ServedRequests, target: Target) -> NDArray[np.float64]:
    """TTFT of the counted requests in the target's view; infinite for one that got no token.

    Raises InputError where the view needs times that the trace does not tell.
    """
    times = served.ttft_s if target.view == "unloaded" else served.queued_ttft_s
    if times is None:
        raise InputError(
            "the trace tells no time, so that nothing can be said of queues",
            where="--view queued",
            remedy="take --view unloaded",
        )
    counted = times[served.first :]
    return np.where(np.isnan(counted), np.inf, counted)


def tried(policy: Policy, capacity_blocks: int, served: ServedRequests, target: Target) -> Trial:
    """How a replay did."""
    times = ttft_s(served, target)
    rank = int(np.ceil(target.percentile * len(times) - 1e-9)) - 1
    beyond = times[times > target.slo_s]
    return Trial(
        policy=policy,
        capacity_blocks=capacity_blocks,
        outcome=summarize(served, target.slo_s),
        target_s=float(np.partition(times, rank)[rank]),
        violation_share=len(beyond) / len(times),
        tel_s=float((beyond - target.slo_s).sum()),
        served_per_s=len(times) / float(served.ttft_s[served.first :].sum()),
    )


WARMUP, JUDGED = 0.2, 0.4
SCALES = (0.5, 2.0)  # prefill that takes half and twice as long as assumed


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be tuned: the target, the variants that compete with LRU, and the capacities.

    `capacity_blocks` is what the user has; None: where LRU gets half of its hits. The least
    capacity is looked for from `lowest_blocks` to `highest_blocks`, None: to where LRU loses none.
    `warmup` and `judged` are shares of the requests. `scales` are further speeds of prefill to
    answer for, as factors of its time.
    """

    target: Target
    variants: tuple[Variant, ...]
    capacity_blocks: int | None = None
    lowest_blocks: int = 0
    highest_blocks: int | None = None
    warmup: float = WARMUP
    judged: float = JUDGED
    scales: tuple[float, ...] = ()
