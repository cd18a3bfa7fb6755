"""Facts on conversations: how many turns, and whether another one comes."""

from __future__ import annotations

from dataclasses import dataclass

from kvscope.characterize.facts.numbers import Summary


@dataclass(frozen=True, slots=True)
class TurnCount:
    """So many conversations have so many turns."""

    turns: int
    conversations: int


@dataclass(frozen=True, slots=True)
class UserTurns:
    """Each user's mean turns per conversation, and their standard deviation, over the users."""

    users: int
    mean: Summary
    deviation: Summary | None


@dataclass(frozen=True, slots=True)
class ConversationTurns:
    """Turns per conversation."""

    conversations: int
    turns: Summary
    single_turn_share: float
    histogram: tuple[TurnCount, ...]
    users: UserTurns | None


@dataclass(frozen=True, slots=True)
class NextTurn:
    """How often a request is followed by another turn.

    `probability` takes all requests, so the last ones pull it down: their next turn lies beyond the
    trace's end. `settled_probability` takes only requests old enough.
    """

    requests: int
    probability: float | None
    settled_requests: int
    settled_probability: float | None


@dataclass(frozen=True, slots=True)
class CategoryNextTurn:
    """The next turn after requests of one category."""

    category: str
    next_turn: NextTurn


@dataclass(frozen=True, slots=True)
class WindowNextTurn:
    """The next turn after requests of one category in one window; `settled`: old enough whole."""

    start_s: float
    category: str
    requests: int
    probability: float
    settled: bool


@dataclass(frozen=True, slots=True)
class NextTurns:
    """Probability of a next turn. A request is settled `settle_s` before the trace's end."""

    settle_s: float
    window_s: float
    overall: NextTurn
    after_first_turn: NextTurn
    after_later_turns: NextTurn
    by_category: tuple[CategoryNextTurn, ...]
    over_time: tuple[WindowNextTurn, ...]
