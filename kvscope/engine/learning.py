"""What a policy with a table is told of the requests that an engine serves: classes, and rates."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from typing import Any

from kvscope.engine.conversations import MOST_CATEGORIES, Categories, Lineage, Sessions, Told
from kvscope.engine.familiar import Familiar, Seen
from kvscope.engine.observer import Request
from kvscope.engine.prefixes import Key
from kvscope.engine.returns import ReturnEstimator
from kvscope.engine.reuse import ReuseEstimator
from kvscope.policies.base import Floats, Policy
from kvscope.policies.fitted import Fitted
from kvscope.policies.gittins import CLASS_SETS, WINDOW_REFITS


class Learner:
    """Sorts requests into the rows of a policy's `table`, and fits it to what it sees of them."""

    table: Floats
    in_words = ""

    @abstractmethod
    def arrive(self, request: Request, says: Told, arrival_s: float) -> tuple[bool, Any]:
        """A request arrives: whether the table has changed, and what to remember of it."""

    @abstractmethod
    def category(self, request: Request, of: Any) -> int:
        """The row of a request that is about to free its blocks."""

    @abstractmethod
    def end(self, request: Request, of: Any) -> None:
        """A request has been served."""

    def forget(self, of: Any) -> None:
        """A request ends without having been served."""


class _Turn:
    """A turn of a conversation, and the category it is of."""

    __slots__ = ("arrival_s", "category", "turn")

    def __init__(self, arrival_s: float, category: int, turn: int) -> None:
        self.arrival_s, self.category, self.turn = arrival_s, category, turn


class Reuse(Learner):
    """For `wa`: the reuse of each category, which is a type and a turn."""

    def __init__(self, policy: Policy, block_size: int) -> None:
        self._block_size = block_size
        self._estimator = ReuseEstimator(policy.values["refit_s"], MOST_CATEGORIES)
        self._categories, self._sessions = Categories(), Sessions()
        self._lineage = Lineage(block_size)
        self._arrived = 0

    @property
    def table(self) -> Floats:  # type: ignore[override]  # read only
        """The latest fit."""
        return self._estimator.table

    def arrive(self, request: Request, says: Told, arrival_s: float) -> tuple[bool, _Turn]:
        """Its category is known at once."""
        changed = self._estimator.arrive(arrival_s)
        number, self._arrived = self._arrived, self._arrived + 1
        if says.session is not None:
            _, turn = self._sessions.begin(says.session, number, says.turn)
        else:
            inferred = self._lineage.turn(request.block_hashes, request.num_prompt_tokens)
            turn = says.turn or inferred
        return changed, _Turn(arrival_s, self._categories.number(says.type, turn), turn)

    def category(self, request: Request, of: _Turn) -> int:
        """As it was when it arrived."""
        return of.category

    def end(self, request: Request, of: _Turn) -> None:
        """What it touched is touched now."""
        self._lineage.end(
            request.block_hashes, request.num_prompt_tokens, request.num_tokens, of.turn
        )
        keys = request.block_hashes[: computed_blocks(request, self._block_size)]
        self._estimator.touch(keys, of.category, of.arrival_s)


class Returns(Learner):
    """For `gittins`: how soon the blocks of each class of requests return.

    By a `fitted` table, which stays; or, where it says so, until as much has been seen here as it
    was fitted to; or by what is seen here alone.
    """

    def __init__(self, policy: Policy, block_size: int, fitted: Fitted | None) -> None:
        self._block_size = block_size
        self._features = CLASS_SETS[fitted.class_set if fitted else 0]
        refit_s = policy.values["refit_s"]
        self._familiar = Familiar(WINDOW_REFITS * refit_s)
        self._estimator: ReturnEstimator | None = None
        self._from_s = 0.0
        if fitted is None or fitted.refits:
            self._estimator = ReturnEstimator(refit_s, fitted.class_set if fitted else 0)
            self._from_s = fitted.window_s if fitted else 0.0
            self.table = self._estimator.table
        if fitted is not None:
            self.table = fitted.values
        self.in_words = self._words(fitted, refit_s)

    def _words(self, fitted: Fitted | None, refit_s: float) -> str:
        by = ", ".join(name for name, _ in self._features)
        how = f", classes by {by}, without the simulator's guard"
        if fitted is None:
            return f"fitted every {refit_s:g} s to what is served{how}"
        more = f", and after {fitted.window_s:g} s to what is served" if fitted.refits else ""
        return f"fitted once to {fitted.requests} requests{more}{how}"

    def arrive(self, request: Request, says: Told, arrival_s: float) -> tuple[bool, Seen]:
        """It touches its prompt."""
        changed, estimator = False, self._estimator
        if estimator is not None and estimator.at(arrival_s) and arrival_s >= self._from_s:
            self.table, changed = estimator.table, True
        keys = request.block_hashes[: request.num_prompt_tokens // self._block_size]
        seen = self._familiar.arrive(keys, arrival_s)
        if estimator is not None:
            every = self._familiar.every
            estimator.arrive(seen.number, arrival_s, seen.followed * every, seen.stretches, every)
        return changed, seen

    def category(self, request: Request, of: Seen) -> int:
        """Its class, by the output it has got until now."""
        full = request.num_prompt_tokens // self._block_size
        values = {
            "new_tokens": (full - of.known_blocks) * self._block_size,
            "turns": of.turns,
            "since_s": of.since_s,
            "output_tokens": request.num_tokens - request.num_prompt_tokens,
        }
        number = 0
        for name, edges in self._features:
            number = number * (len(edges) + 1) + bisect_right(edges, values[name])
        return number

    def end(self, request: Request, of: Seen) -> None:
        """It touches what it has been answered, and its class is settled."""
        full = request.num_prompt_tokens // self._block_size
        more: list[Key] = request.block_hashes[full : computed_blocks(request, self._block_size)]
        followed, stretches = self._familiar.end(more, of.number)
        if self._estimator is not None:
            every = self._familiar.every
            kind = self.category(request, of)
            self._estimator.end(of.number, kind, followed * every, stretches, every)

    def forget(self, of: Seen) -> None:
        """What it touched stays touched; it is of no class."""
        if self._estimator is not None:
            self._estimator.forget(of.number)


def computed_blocks(request: Request, block_size: int) -> int:
    """Full blocks of prompt and output whose KV was computed: never the last output token's."""
    tokens = min(max(request.num_tokens - 1, 0), request.num_computed_tokens)
    return int(tokens // block_size)
