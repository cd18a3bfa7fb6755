"""The functions of a policy as kernels call them: by their address, so that all policies share one."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from kvscope.core.jit import Function, Referenced
from kvscope.policies.base import LanePolicy, PathPolicy


class LaneFunctions(NamedTuple):
    """The functions of a lane policy."""

    admits: Function
    place: Function
    score: Function
    next_step_s: Function
    adapts: Function
    adapt: Function


@cache
def lane_functions(policy: type[LanePolicy]) -> Referenced:
    """Return the `LaneFunctions` of a lane policy."""
    known = LaneFunctions(
        admits=Function(policy.admits, PathPolicy.admits),
        place=Function(policy.place, LanePolicy.place),
        score=Function(policy.score, LanePolicy.score),
        next_step_s=Function(policy.next_step_s, LanePolicy.next_step_s),
        adapts=Function(policy.adapts, LanePolicy.adapts),
        adapt=Function(policy.adapt, LanePolicy.adapt),
    )
    return Referenced(known)
