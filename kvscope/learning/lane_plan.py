"""The lanes along a request's path: where its blocks go once it has been served."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, TypeAlias

from kvscope.policies.base import LanePolicy, Turn

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
    parts, end = len(cuts) + 1, None
    for part in range(len(cuts), -1, -1):
        begin = cuts[part - 1] if part else 0
        if begin == end:
            continue
        category = turn.category * parts + part
        depth, deep, shallow = policy.place(turn._replace(category=category), block_size, p)
        if end is None or depth < end:
            plan.append((max(depth, begin), deep))
        if depth > begin:
            plan.append((begin, shallow))
        end = begin
    return tuple(plan)


def head_lane(policy: LanePolicy, turn: Turn, cuts: Sequence[int], block_size: int, p: Any) -> int:
    """Return the lane of blocks that the next turn needs, in the first part of the path."""
    category = turn.category * (len(cuts) + 1) + bisect_right(cuts, 0)
    return policy.place(turn._replace(category=category), block_size, p)[2]


def lane_at(plan: LanePlan, end: int) -> tuple[int, int]:
    """Return the step of the plan for the block that ends at `end`: its depth and its lane."""
    for step in plan:
        if end > step[0]:
            return step
    return plan[-1]
