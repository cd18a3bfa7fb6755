"""The lanes along a request's path: where its blocks go once it has been served."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, TypeAlias

from kvscope.policies.base import MOST_TOKENS, LanePolicy, Turn

LanePlan: TypeAlias = tuple[tuple[int, int], ...]
"""(depth, lane) from the deep end on: blocks that end beyond the depth are in that lane.

The last depth is 0. Depths count whatever the caller counts: blocks, or tokens.
"""


def lane_plan(
    policy: LanePolicy, turn: Turn, cuts: Sequence[int], block_size: int, p: Any
) -> LanePlan:
    """Return where the policy places the parts of a path that ascending `cuts` (in blocks) make.

    `turn` has the request's class; each part has a category of its own, see `Tables.classes`.
    """
    plan: list[tuple[int, int]] = []
    parts, end = len(cuts) + 1, int(MOST_TOKENS)
    for part in range(len(cuts), -1, -1):
        cut, of_part = cuts[part - 1] if part else 0, _in_part(turn, parts, part)
        while end > cut:
            begin, lane = policy.place(of_part, end, block_size, p)
            end = max(begin, cut)
            plan.append((end, lane))
    return tuple(plan)


def head_lane(policy: LanePolicy, turn: Turn, cuts: Sequence[int], block_size: int, p: Any) -> int:
    """Return the lane of blocks that the next turn needs, in the first part of the path."""
    of_part = _in_part(turn, len(cuts) + 1, bisect_right(cuts, 0))
    return policy.place(of_part, 0, block_size, p)[1]


def _in_part(turn: Turn, parts: int, part: int) -> Turn:
    return turn._replace(category=turn.category * parts + part)


def lane_at(plan: LanePlan, end: int) -> tuple[int, int]:
    """Return the step of the plan for the block that ends at `end`: its depth and its lane."""
    for step in plan:
        if end > step[0]:
            return step
    return plan[-1]
