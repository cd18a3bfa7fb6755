"""What a policy with a table learns from the requests that an engine serves."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from itertools import accumulate
from typing import Any, NamedTuple

from kvscope.learning.online.conversations import (
    MOST_CATEGORIES,
    Categories,
    Lineage,
    Sessions,
    Told,
)
from kvscope.learning.online.observer import Request
from kvscope.learning.online.prefixes import Key
from kvscope.learning.online.recent_blocks import Familiar, Seen
from kvscope.learning.returns.file import Fitted
from kvscope.learning.returns.online import ReturnEstimator
from kvscope.learning.returns.online_guard import GUARDED, ReturnsGuard
from kvscope.learning.reuse.online import ReuseEstimator
from kvscope.policies.base import Floats, LanePolicy, Policy
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

    def cleared(self) -> None:
        """Nothing is cached any more."""

    def watch(self, capacity_blocks: int) -> None:
        """The cache has so many blocks."""


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


class _Asked(NamedTuple):
    """What is known of a request when it arrives, and which class set it goes by."""

    seen: Seen
    set: int
    prompt_tokens: int


class Returns(Learner):
    """For `gittins`: how soon the blocks of each class of requests return.

    By a `fitted` table, which stays; or, where it says so, until as much has been seen here as it
    was fitted to; or by what is seen here alone. As soon as it knows the cache's size (`watch`), a
    guard chooses between its classes, the other class set where tables are fitted here, need alone
    and LRU, as in the simulator.
    """

    def __init__(self, policy: LanePolicy, block_size: int, fitted: Fitted | None) -> None:
        self._policy, self._block_size, self._fitted = policy, block_size, fitted
        self._refit_s = policy.values["refit_s"]
        self._familiar = Familiar(WINDOW_REFITS * self._refit_s)
        own = fitted.class_set if fitted else 0
        self._learns = fitted is None or fitted.refits
        self._sets, self._estimators = [own], list[ReturnEstimator]()
        if self._learns:
            self._estimators.append(ReturnEstimator(self._refit_s, own))
        self._from_s = fitted.window_s if fitted and fitted.refits else 0.0
        self.table = fitted.values if fitted else self._estimators[0].table
        self._values = [self.table]  # of each class set; `table` is what is in force
        self._begins, self._set = [0], 0
        self._guard: ReturnsGuard | None = None

    def watch(self, capacity_blocks: int) -> None:
        """Have a guard choose, by shadows of a cache of so many blocks."""
        if self._learns:
            for other in range(len(CLASS_SETS)):
                if other not in self._sets:
                    self._sets.append(other)
                    self._estimators.append(ReturnEstimator(self._refit_s, other))
                    self._values.append(self._estimators[-1].table)
        lanes = [0, *accumulate(len(values) for values in self._values)]
        self._begins = [lane // 2 for lane in lanes[:-1]]
        names = [", ".join(name for name, _ in CLASS_SETS[one]) for one in self._sets]
        self._guard = ReturnsGuard(
            self._policy, self._block_size, capacity_blocks, self._values, names, self._kinds
        )
        self.table = self._guard.table

    @property
    def in_words(self) -> str:  # type: ignore[override]  # read only
        """What it goes by."""
        by = ", ".join(name for name, _ in CLASS_SETS[self._sets[0]])
        how = f", classes by {by}, {'without a guard' if self._guard is None else GUARDED}"
        fitted = self._fitted
        if fitted is None:
            return f"fitted every {self._refit_s:g} s to what is served{how}"
        more = f", and after {fitted.window_s:g} s to what is served" if fitted.refits else ""
        return f"fitted once to {fitted.requests} requests{more}{how}"

    def arrive(self, request: Request, says: Told, arrival_s: float) -> tuple[bool, _Asked]:
        """It touches its prompt."""
        changed = self._refit(arrival_s)
        guard = self._guard
        if guard is not None and guard.at(arrival_s):
            self._set, changed = guard.set, True
        if changed:
            self.table = self._values[0] if guard is None else guard.table
        keys = request.block_hashes[: request.num_prompt_tokens // self._block_size]
        seen = self._familiar.arrive(keys, arrival_s)
        every = self._familiar.every
        for one in self._estimators:
            one.arrive(seen.number, arrival_s, seen.followed * every, seen.stretches, every)
        if guard is not None:
            forgotten_s = self._familiar.forgotten_s
            guard.watch.arrive(seen, request.num_prompt_tokens, arrival_s, every, forgotten_s)
        return changed, _Asked(seen, self._set, request.num_prompt_tokens)

    def _refit(self, now_s: float) -> bool:
        """Fit anew where it is time to; whether anything has changed."""
        changed = False
        for at, one in enumerate(self._estimators):
            if one.at(now_s) and (at > 0 or now_s >= self._from_s):
                self._values[at], changed = one.table, True
        if changed and self._guard is not None:
            self._guard.use(self._values)
        return changed

    def category(self, request: Request, of: _Asked) -> int:
        """Its class, by the output it has got until now, in the set in force when it came."""
        kinds = self._classes(of.seen, of.prompt_tokens, request.num_tokens)
        return self._begins[of.set] + kinds[of.set]

    def _classes(self, seen: Seen, prompt_tokens: int, tokens: int) -> list[int]:
        """Its class in each class set."""
        values = {
            "new_tokens": (prompt_tokens // self._block_size - seen.known_blocks)
            * self._block_size,
            "turns": seen.turns,
            "since_s": seen.since_s,
            "output_tokens": tokens - prompt_tokens,
        }
        found = []
        for one in self._sets:
            number = 0
            for name, edges in CLASS_SETS[one]:
                number = number * (len(edges) + 1) + bisect_right(edges, values[name])
            found.append(number)
        return found

    def _kinds(self, seen: Seen, prompt_tokens: int, output_tokens: int) -> list[int]:
        """The same for each candidate of the guard."""
        return [0, 0, *self._classes(seen, prompt_tokens, prompt_tokens + output_tokens)]

    def end(self, request: Request, of: _Asked) -> None:
        """It touches what it has been answered, and its class is settled."""
        prompt_tokens, number = of.prompt_tokens, of.seen.number  # more may have been streamed
        full = prompt_tokens // self._block_size
        more: list[Key] = request.block_hashes[full : computed_blocks(request, self._block_size)]
        followed, stretches = self._familiar.end(more, number)
        every = self._familiar.every
        kinds = self._classes(of.seen, prompt_tokens, request.num_tokens)
        for one, kind in zip(self._estimators, kinds, strict=False):
            one.end(number, kind, followed * every, stretches, every)
        if self._guard is not None:
            output_tokens = request.num_tokens - prompt_tokens
            self._guard.watch.end(number, output_tokens, followed, stretches)

    def forget(self, of: _Asked) -> None:
        """What it touched stays touched; it is of no class."""
        for one in self._estimators:
            one.forget(of.seen.number)
        if self._guard is not None:
            self._guard.watch.forget(of.seen.number)

    def cleared(self) -> None:
        """So the shadows begin anew; what returns when is known as before."""
        if self._guard is not None:
            self._guard.watch.clear()


def computed_blocks(request: Request, block_size: int) -> int:
    """Full blocks of prompt and output whose KV was computed: never the last output token's."""
    tokens = min(max(request.num_tokens - 1, 0), request.num_computed_tokens)
    return int(tokens // block_size)
