"""What is to be tuned: the target, what may replace LRU, and at which capacities."""

from __future__ import annotations

from dataclasses import dataclass

from kvscope.simulate.variants import Variant
from kvscope.tune.objective import Target

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
