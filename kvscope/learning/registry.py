"""The learner of each policy that has a table."""

from __future__ import annotations

from kvscope.learning.ends.file import FittedEnds
from kvscope.learning.ends.online import Ends
from kvscope.learning.fitted import Fit
from kvscope.learning.online.learners import Learner, Returns, Reuse
from kvscope.learning.returns.file import Fitted
from kvscope.policies.base import LanePolicy


def learner_for(policy: LanePolicy, block_size: int, fitted: Fit | None) -> Learner | None:
    """What learns for a policy, if it has a table; what was `fitted` is the policy's own."""
    if policy.table == "reuse":
        return Reuse(policy, block_size)
    if policy.table == "returns":
        return Returns(policy, block_size, fitted if isinstance(fitted, Fitted) else None)
    return Ends(block_size, fitted) if isinstance(fitted, FittedEnds) else None
