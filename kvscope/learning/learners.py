"""From a policy to its learner: what fits the table that the policy scores by.

A policy declares its learner by the name of a folder here: `learner = "returns"`. The folder's
`online` module names as LEARNER the class that learns from the requests of an engine, in the
engine's own process; its `offline` module the object that learns from a whole trace
(kvscope.learning.offline). A policy that no engine runs has the second half alone.
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
    """A fit to `requests` requests that a policy file carries, in a table beside its `[policy]`."""

    requests: int

    @abstractmethod
    def document(self) -> dict[str, object]:
        """Return the table by its name, in TOML's types; reading it returns the same numbers."""

    def refitted_in_engine(self) -> Self:
        """Return the fit as one that an engine replaces by its own in time, if it can."""
        return self


class OnlineLearner:
    """Sorts an engine's requests into the rows of a policy's `table`, and fits it to them.

    `arrive` returns what to remember of a request; the engine passes it back as `memo`. `in_words`
    is for the log.
    """

    table: Float64s
    in_words = ""

    @abstractmethod
    def __init__(self, policy: LanePolicy, block_size: int, fitted: Any) -> None:
        """Start with a `fitted` table, if a file has one."""

    @staticmethod
    def read_fit(document: Mapping[str, Any], where: str) -> FittedTable | None:
        """Return the fit in the document at `where`, None without one; raises InputError."""
        return None

    @abstractmethod
    def arrive(self, request: Request, arrival_s: float) -> tuple[bool, Any]:
        """Take a new request in; return whether the table has changed, and the memo."""

    @abstractmethod
    def category(self, request: Request, memo: Any) -> int:
        """Return the class of a request that is about to free its blocks."""

    def cuts(self, memo: Any) -> Sequence[int]:
        """Return the depths, ascending, at which its path is cut into parts with rows of their own.

        Without a cut the class is its row; else they are as in `kvscope.replay.replay.Tables`.
        """
        return ()

    @abstractmethod
    def end(self, request: Request, memo: Any) -> None:
        """Learn from a request that has been served."""

    def forget(self, memo: Any) -> None:
        """Drop a request that ends without having been served."""

    def cleared(self) -> None:
        """Take note that the engine's cache was emptied."""

    def guard(self, capacity_blocks: int) -> None:
        """Start guarding the use of the table in a cache of `capacity_blocks`."""


def learner_class(policy: type[Policy]) -> type[OnlineLearner] | None:
    """Return the class that learns for a policy in an engine; None for policies without a table."""
    if policy.learner is None or not policy.runs_in_plugin():
        return None
    learner: type[OnlineLearner] = import_module(f"{__package__}.{policy.learner}.online").LEARNER
    return learner


def online_learner(
    policy: LanePolicy, block_size: int, fitted: FittedTable | None
) -> OnlineLearner | None:
    """Return a new learner for a policy, None for one without a table."""
    learner = learner_class(type(policy)) if policy.reads_table else None
    return None if learner is None else learner(policy, block_size, fitted)


def read_fit(document: Mapping[str, Any], policy: Policy, where: str) -> FittedTable | None:
    """Return the fit for `policy` in the document at `where`; None where it has none.

    Raises InputError with the place, the key, the value and the remedy.
    """
    learner = learner_class(type(policy))
    return None if learner is None else learner.read_fit(document, where)


def reads_fit(policy: type[Policy]) -> bool:
    """Return whether a policy file can carry a fit for a policy."""
    learner = learner_class(policy)
    return learner is not None and learner.read_fit is not OnlineLearner.read_fit


def computed_blocks(request: Request, block_size: int) -> int:
    """Return the full blocks of prompt and output with KV: never the last output token's."""
    tokens = min(max(request.num_tokens - 1, 0), request.num_computed_tokens)
    return int(tokens // block_size)
