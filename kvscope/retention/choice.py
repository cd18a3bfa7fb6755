"""TTLs by category with the most hits for the memory that they hold: marginal analysis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int64s
from kvscope.core.jit import kernel
from kvscope.retention.curves import TtlCurve


class Steps(NamedTuple):
    """The upper concave hull of each category's curve, cut at its vertices, the best step first.

    Step k raises the TTL of `category[k]` to `ttl_s[k]`, which holds `block_seconds[k]` more and
    hits `hit_tokens[k]` more. `hits` are those that hold nothing: within 0 s.
    """

    category: Int64s
    ttl_s: Float64s
    block_seconds: Float64s
    hit_tokens: Int64s
    hits: int


class TtlChoice(NamedTuple):
    """TTLs by category, in seconds, and what they hit and hold by the sum of the curves.

    No TTLs within the budget hit more than `unused_hits` more by that sum; none where it ends at
    a step.
    """

    ttl_s: Float64s
    hit_tokens: int
    block_seconds: float
    unused_hits: float


def best_steps(curves: Sequence[TtlCurve]) -> Steps:
    """Return the steps of all categories in order of falling hits per block-second.

    The first of them, up to any number, are the optimum for what they hold (Lagrange: at one price
    of a block-second every category stops at its own vertex). Ties go to the earlier category.
    """
    parts, hits = [], 0
    for number, curve in enumerate(curves):
        ttl_s = curve.knots()
        held, hit = curve.held(ttl_s), curve.hits(ttl_s)
        hull = np.empty(len(held), dtype=np.int64)
        on_hull = hull[: _write_hull(held, hit.astype(np.float64), hull)]
        ttl_s, held, hit = ttl_s[on_hull], held[on_hull], hit[on_hull]
        hits += int(hit[0])
        parts.append((np.full(len(ttl_s) - 1, number), ttl_s[1:], np.diff(held), np.diff(hit)))
    if not parts:
        none = np.zeros(0)
        return Steps(none.astype(np.int64), none, none, none.astype(np.int64), 0)
    category, ttl_s, held, hit = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(-hit / held, kind="stable")
    return Steps(category[order], ttl_s[order], held[order], hit[order], hits)


def choose(steps: Steps, curves: Sequence[TtlCurve], budget_block_seconds: float) -> TtlChoice:
    """Return the TTLs of the most steps that fit into the budget, from the best one on.

    What is left of the budget goes to the category of the next step, as far as it suffices.
    """
    total = np.cumsum(steps.block_seconds)
    count = int(np.searchsorted(total, budget_block_seconds, side="right"))
    ttl_s = np.zeros(len(curves))
    np.maximum.at(ttl_s, steps.category[:count], steps.ttl_s[:count])
    held = float(total[count - 1]) if count else 0.0
    hits = steps.hits + int(steps.hit_tokens[:count].sum())
    if count == len(total):
        return TtlChoice(ttl_s, hits, held, 0.0)
    left = budget_block_seconds - held
    most = steps.hit_tokens[count] * left / steps.block_seconds[count]
    category = int(steps.category[count])
    curve, reached = curves[category], float(ttl_s[category])
    knots = curve.knots()
    more = curve.held(knots) - curve.held(reached)
    ttl_s[category] = knots[(knots == reached) | (more <= left)].max()
    added = int(curve.hits(ttl_s[category]) - curve.hits(reached))
    held += float(curve.held(ttl_s[category]) - curve.held(reached))
    return TtlChoice(ttl_s, hits + added, held, float(most) - added)


def rounded_up(ttl_s: float) -> float:
    """Return a TTL to state in a request: two significant digits, in whole seconds from 10 s on."""
    if not 0 < ttl_s < math.inf:
        return ttl_s
    unit = 10.0 ** (math.floor(math.log10(ttl_s)) - 1)
    return float(f"{math.ceil(round(ttl_s / unit, 6)) * unit:.10g}")


@kernel
def _write_hull(x: Float64s, y: Float64s, hull: Int64s) -> int:
    """Write which points, ascending in x and y, are vertices of their upper concave hull.

    Return how many they are; `hull` has room for all points.
    """
    count = 0
    for point in range(len(x)):
        while count > 0 and x[hull[count - 1]] == x[point]:
            count -= 1
        while count > 1:
            before, last = hull[count - 2], hull[count - 1]
            rise = (y[last] - y[before]) * (x[point] - x[before])
            if rise > (y[point] - y[before]) * (x[last] - x[before]):
                break
            count -= 1
        hull[count] = point
        count += 1
    return count
