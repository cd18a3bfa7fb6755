"""Who learns for a policy in an engine."""

from __future__ import annotations

from kvscope.engine.ends import Ends
from kvscope.engine.learning import Learner, Returns, Reuse
from kvscope.policies.base import LanePolicy
from kvscope.policies.fits import Fit
from kvscope.policies.fitted import Fitted
from kvscope.policies.fitted_ends import FittedEnds


def learner_for(policy: LanePolicy, block_size: int, fitted: Fit | None) -> Learner | None:
    """What learns for a policy, if it has a table; what was `fitted` is the policy's own."""
    if policy.table == "reuse":
        return Reuse(policy, block_size)
    if policy.table == "returns":
        return Returns(policy, block_size, fitted if isinstance(fitted, Fitted) else None)
    return Ends(block_size, fitted) if isinstance(fitted, FittedEnds) else None
