"""The functions of a policy as kernels call them: by their addresses, so that all share one."""

from __future__ import annotations

from typing import NamedTuple

from kvscope.core.jit import Function, Referenced, once
from kvscope.policies.base import LanePolicy, PathPolicy


class LaneFunctions(NamedTuple):
    """The functions of a lane policy."""

    admits: Function
    place: Function
    score: Function
    next_step_s: Function
    adapts: Function
    adapt: Function


@once
def lane_functions(policy: type[LanePolicy]) -> LaneFunctions:
    """Return the functions of a lane policy."""
    return LaneFunctions(
        admits=Function(policy.admits, PathPolicy.admits),
        place=Function(policy.place, LanePolicy.place),
        score=Function(policy.score, LanePolicy.score),
        next_step_s=Function(policy.next_step_s, LanePolicy.next_step_s),
        adapts=Function(policy.adapts, LanePolicy.adapts),
        adapt=Function(policy.adapt, LanePolicy.adapt),
    )


@once
def referenced_functions(policy: type[LanePolicy]) -> Referenced:
    """Return the functions of a lane policy, as an argument of kernels."""
    return Referenced(lane_functions(policy))
