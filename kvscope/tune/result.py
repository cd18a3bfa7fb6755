"""From judged figures to one of four words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvscope.core.runs import RunSetting
from kvscope.replay.summary import CategoryOutcome
from kvscope.replay.variants import Found
from kvscope.tune.bootstrap import Drawn, Gain
from kvscope.tune.objective import Target, Trial
from kvscope.tune.split import Split

Verdict = Literal["switch", "keep-lru", "add-capacity", "unreachable"]


@dataclass(frozen=True, slots=True)
class Judged:
    """One policy at one capacity on the judged part, its parameters chosen before.

    `gains` are over LRU at the capacity that the user has, by the names of kvscope.tune.bootstrap;
    empty for LRU there; `drawn` is what they are computed from, `keeps` the share (0-1) of its
    draws in which the target is met. `ttft_s` are the latencies of the judged requests in order of
    arrival, in the target's view.
    """

    trial: Trial
    gains: Mapping[str, Gain]
    drawn: Drawn
    keeps: float
    ttft_s: NDArray[np.float64]
    categories: tuple[CategoryOutcome, ...]


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
    capacity_origin: str
    found: Mapping[str, Found]
    verdict: Verdict
    recommended: Judged
    baseline: Judged
    chosen: Judged
    contenders: tuple[Judged, ...]
    ceilings: tuple[Judged, ...]
    infinite: Judged
    infinite_chosen: Trial
    least_lru: Least | None
    least_best: Least | None
    explored: tuple[Trial, ...]
    scaled: tuple[Scaled, ...]


def decide(*, lru_meets: bool, best_meets: bool, best_is_sure: bool, reachable: bool) -> Verdict:
    """What to do, given whether LRU and the best policy keep the SLO on the judged part.

    `best_is_sure`: the interval of its gain over LRU lies above 0. `reachable`: some capacity keeps
    the SLO. A gain that is not sure is none, and where LRU keeps the SLO none is needed.
    """
    if lru_meets:
        return "keep-lru"
    if not reachable:
        return "unreachable"
    return "switch" if best_meets and best_is_sure else "add-capacity"
