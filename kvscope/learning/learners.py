"""From a policy to its learner, which fits the table that the policy's scores read.

A policy declares its learner by the name of a folder here: `learner = "returns"`. The folder's
`online` module names as LEARNER the class that learns from the requests of an engine, in the
engine's own process; its `offline` module the object that learns from a whole trace
(kvscope.learning.offline). A policy that no engine runs has only the offline half.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Self

from kvscope.core.arrays import Float64s
from kvscope.learning.observer import Request
from kvscope.policies.base import LanePolicy, Policy


class FittedTable(ABC):
    """A fit to `requests` requests, stored in a policy file as a table beside `[policy]`."""

    requests: int

    @abstractmethod
    def document(self) -> dict[str, object]:
        """Return {name of the table: its TOML values}; `read_fit` restores the same numbers."""

    def refitted_in_engine(self) -> Self:
        """Return the fit, marked for an engine to replace it later by fits to its own requests.

        The engine does so after as many requests as the fit was fitted to. A learner without fits
        of its own in an engine returns the same fit.
        """
        return self


class OnlineLearner:
    """Sorts an engine's requests into the rows of a policy's `table`, and fits the table to them.

    `arrive` returns a memo of the request, which the engine passes back as `memo`. `in_words`
    describes the learner in the log.
    """

    table: Float64s
    in_words = ""

    @abstractmethod
    def __init__(self, policy: LanePolicy, block_size: int, fitted: Any) -> None:
        """Start with the `fitted` table of a policy file, None without one."""

    @staticmethod
    def read_fit(document: Mapping[str, Any], where: str) -> FittedTable | None:
        """Return the fit in a parsed policy file (path `where`), or None. Raises InputError."""
        return None

    @abstractmethod
    def arrive(self, request: Request, arrival_s: float) -> tuple[bool, Any]:
        """Note a new request; return whether `table` has changed, and the memo of the request."""

    @abstractmethod
    def category(self, request: Request, memo: Any) -> int:
        """Return the class of a request that is about to free its blocks."""

    def cuts(self, memo: Any) -> Sequence[int]:
        """Return the ascending depths that cut a request's path into parts with rows of their own.

        With C cuts, part p of class c counts as category c * (C + 1) + p; without cuts, as c.
        """
        return ()

    @abstractmethod
    def end(self, request: Request, memo: Any) -> None:
        """Learn from a request that has been served."""

    def forget(self, memo: Any) -> None:
        """Drop a request that ends without having been served."""

    def cleared(self) -> None:
        """Note that the engine's cache was emptied."""

    def guard(self, capacity_blocks: int) -> None:
        """Start the policy's guard, if it has one, for a cache of `capacity_blocks`.

        From then on `table` is that of the candidate in force: LRU's until evidence, of a policy
        file or of shadow caches of this size, shows that another one is better.
        """


def learner_class(policy: type[Policy]) -> type[OnlineLearner] | None:
    """Return the class that learns for a policy in kvscope's plugin; None if none does."""
    if policy.learner is None or not policy.runs_in_plugin():
        return None
    learner: type[OnlineLearner] = import_module(f"{__package__}.{policy.learner}.online").LEARNER
    return learner


def online_learner(
    policy: LanePolicy, block_size: int, fitted: FittedTable | None
) -> OnlineLearner | None:
    """Return a new learner for a policy, None for a policy without a table."""
    learner = learner_class(type(policy)) if policy.reads_table else None
    return None if learner is None else learner(policy, block_size, fitted)


def read_fit(document: Mapping[str, Any], policy: Policy, where: str) -> FittedTable | None:
    """Return the fit for `policy` in a parsed policy file (`document`); None where it has none.

    Raises InputError with the path `where`, the key, the value and the remedy.
    """
    learner = learner_class(type(policy))
    return None if learner is None else learner.read_fit(document, where)


def reads_fit(policy: type[Policy]) -> bool:
    """Return whether a policy file can carry a fit for a policy."""
    learner = learner_class(policy)
    return learner is not None and learner.read_fit is not OnlineLearner.read_fit


def computed_blocks(request: Request, block_size: int) -> int:
    """Return the number of full blocks with KV, which the last output token does not have."""
    tokens = min(max(request.num_tokens - 1, 0), request.num_computed_tokens)
    return int(tokens // block_size)
