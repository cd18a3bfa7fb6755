"""From judged figures to one of four words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvscope.core.runs import PartOutcome, RunSetting
from kvscope.replay.parameter_estimates import ParameterEstimate
from kvscope.tuning.bootstrap import Drawn, Gain
from kvscope.tuning.objective import Trial
from kvscope.tuning.split import Split
from kvscope.tuning.target import Target

Verdict = Literal["switch", "keep-lru", "add-capacity", "unreachable"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Judged:
    """One policy at one capacity on the judged part, its parameters chosen before.

    `gains` are over LRU at the capacity that the user has, by the names in tuning.bootstrap;
    empty for LRU there; `drawn` is what they are computed from, `keeps` the share (0-1) of its
    draws in which the target is met. `ttft_s` are the latencies of the judged requests in order of
    arrival, in the target's view.
    """

    trial: Trial
    gains: Mapping[str, Gain]
    drawn: Drawn
    keeps: float
    ttft_s: NDArray[np.float64]
    categories: tuple[PartOutcome, ...]


@dataclass(frozen=True, slots=True)
class Least:
    """The least capacity that keeps the SLO: as found on the part to choose on, and as judged.

    `would_need_blocks` is what the judged part itself would have needed, where `judged` does not
    keep the SLO; None where it does, or where no capacity would.
    """

    chosen: Trial
    judged: Trial
    would_need_blocks: int | None


@dataclass(frozen=True, slots=True)
class Scaled:
    """What the answer is if prefill takes `times` as long: what to run, and what it would give.

    Latencies are at the target's percentile, of LRU at the user's capacity and of what to run.
    """

    times: float
    verdict: Verdict
    policy: str
    params: Mapping[str, float]
    capacity_blocks: int
    baseline_s: float
    expected_s: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """The recommendation and all that it rests on.

    `chosen` is the policy that did best on the part to choose on, judged at the capacity the user
    has; `recommended` is what to run, which may be LRU, or have another capacity. `contenders` are
    the best of each policy, judged, in the order of the part to choose on; `explored` are all
    trials on that part, `infinite_chosen` is that of an infinite cache.
    """

    target: Target
    setting: RunSetting
    split: Split
    capacity_blocks: int
    found: Mapping[str, ParameterEstimate]
    verdict: Verdict
    recommended: Judged
    baseline: Judged
    chosen: Judged
    contenders: tuple[Judged, ...]
    infinite: Judged
    infinite_chosen: Trial
    least_lru: Least | None
    least_best: Least | None
    explored: tuple[Trial, ...]
    capacity_origin: str = ""
    ceilings: tuple[Judged, ...] = ()
    scaled: tuple[Scaled, ...] = ()


def decide(
    lru: T,
    best: T,
    larger: Callable[[], T | None],
    *,
    lru_meets: bool,
    best_meets: bool,
    best_is_better: bool,
    reachable: bool,
) -> tuple[Verdict, T]:
    """Return the verdict and what to run: `lru`, the `best` contender, or one with more capacity.

    `lru_meets` and `best_meets` the SLO, on the held-out window. `best_is_better` than LRU,
    significantly. `reachable`: some capacity meets the SLO. `larger` is called for `add-capacity`
    alone; it returns None where no larger capacity is known to help.
    """
    if lru_meets:
        return "keep-lru", lru
    choice = best if best_is_better else lru
    if not reachable:
        return "unreachable", choice
    if best_meets and best_is_better:
        return "switch", best
    return "add-capacity", larger() or choice
