"""How many replicas an SLO takes, and how certain that number is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.arrays import Bools, Float64s, Int32s
from kvscope.core.units import format_percentile
from kvscope.tuning.bootstrap import Bootstrap, interval
from kvscope.tuning.target import Target


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
    replicas = _fewest((values <= target.slo_s) & ~grows, counts)
    fewest = _fewest((resamples <= target.slo_s) & ~grows, counts).astype(np.float64)
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


def _fewest(meets: Bools, counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the place of `fewest` of the counts on the last axis; the axis' length for none."""
    fewest = np.full(meets.shape[:-1], len(counts))
    for place in map(counts.index, reversed(doubled(counts))):
        lasting = np.logical_and.accumulate(meets[..., place::-1], axis=-1).sum(axis=-1)
        fewest = np.where(lasting > 0, place + 1 - lasting, fewest)
    return fewest
