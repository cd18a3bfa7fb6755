"""Turns of conversations, and the probability that another turn follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from kvscope.characterize.distributions import Summary, Weighted, Windows, round_windows, summary
from kvscope.characterize.history import History
from kvscope.characterize.traffic import share
from kvscope.core.arrays import Int64s
from kvscope.core.disk_columns import stretches
from kvscope.core.trace import Trace
from kvscope.store.db import Store


class TurnCount(Struct, frozen=True):
    """Number of conversations with this many turns."""

    turns: int
    conversations: int


class UserTurns(Struct, frozen=True):
    """Distributions over users of the mean and the standard deviation of turns per conversation.

    `deviation` is over users with several conversations, None if there are none.
    """

    users: int
    mean: Summary
    deviation: Summary | None


class ConversationTurns(Struct, frozen=True):
    """Turns per conversation."""

    conversations: int
    turns: Summary
    single_turn_share: float
    histogram: tuple[TurnCount, ...]
    users: UserTurns | None


class NextTurn(Struct, frozen=True):
    """Share of requests that another turn follows.

    `probability` counts all requests, also late ones whose next turn lies beyond the trace's end.
    `settled_probability` counts only requests `NextTurns.settle_s` or more before the end.
    """

    requests: int
    probability: float | None
    settled_requests: int
    settled_probability: float | None


class CategoryNextTurn(Struct, frozen=True):
    """Share of one category's requests that another turn follows."""

    category: str
    next_turn: NextTurn


class WindowNextTurn(Struct, frozen=True):
    """The share of one category's requests in a window that another turn follows.

    `settled`: the window ends `NextTurns.settle_s` or more before the trace does.
    """

    start_s: float
    category: str
    requests: int
    probability: float
    settled: bool


class NextTurns(Struct, frozen=True):
    """Probability of a next turn; requests `settle_s` or more before the end are settled."""

    settle_s: float
    window_s: float
    overall: NextTurn
    after_first_turn: NextTurn
    after_later_turns: NextTurn
    by_category: tuple[CategoryNextTurn, ...]
    over_time: tuple[WindowNextTurn, ...]


def turns(store: Store, trace: Trace) -> ConversationTurns | None:
    """Return turns per conversation, as far as inside the trace; None without a lineage.

    Source: KVCache Cache in the Wild (ATC'25), section 3 (turns).
    """
    if trace.lineage == "none":
        return None
    rows = store.rows("characterize/turns", trace_id=trace.trace_id)
    counts = Weighted(
        np.array([row["turns"] for row in rows], dtype=np.float64),
        np.array([row["conversations"] for row in rows], dtype=np.int64),
    )
    turns_summary = summary(counts)
    if turns_summary is None:
        return None
    conversations = sum(row["conversations"] for row in rows)
    single = sum(row["conversations"] for row in rows if row["turns"] == 1)
    return ConversationTurns(
        conversations=conversations,
        turns=turns_summary,
        single_turn_share=single / conversations,
        histogram=tuple(TurnCount(**row) for row in rows),
        users=_user_turns(store, trace) if trace.has_users else None,
    )


def _user_turns(store: Store, trace: Trace) -> UserTurns | None:
    """Return turns by user, the first that a conversation's requests name; None without users."""
    row = store.row("characterize/user_turns", trace_id=trace.trace_id)
    if not row["users"]:
        return None
    return UserTurns(
        users=row["users"],
        mean=_read_summary(row, "average"),
        deviation=_read_summary(row, "deviation") if row["deviation_users"] else None,
    )


def _read_summary(row: Mapping[str, Any], name: str) -> Summary:
    """Return the summary in the columns NAME_mean, NAME_at (a list of quantiles) and NAME_max."""
    numbers = (row[f"{name}_mean"], *row[f"{name}_at"], row[f"{name}_max"])
    return Summary(*(float(number) for number in numbers))


def next_turns(trace: Trace, history: History, windows: Windows | None = None) -> NextTurns | None:
    """Return the probability that another turn follows a request, by category and over time.

    The trace's end hides next turns of late requests. So each value comes twice: for all requests
    and for settled ones, `settle_s` or more before the end. `settle_s` is the p90 of the time from
    a request to its next turn in this trace (0 without next turns). One of the `windows` (None:
    `round_windows`) is settled if all of it is. None without a lineage. Source: KVCache Cache in
    the Wild (ATC'25), section 3 (turns).
    """
    if trace.lineage == "none":
        return None
    windows = windows or round_windows(trace)
    settled_until_s = trace.span_s - history.settle_s
    counts = _counts(history, windows, settled_until_s)
    turns_of = np.array(history.turn_buckets)
    return NextTurns(
        settle_s=history.settle_s,
        window_s=windows.length_s,
        overall=_next_turn(counts),
        after_first_turn=_next_turn(counts[:, turns_of == "1"]),
        after_later_turns=_next_turn(counts[:, turns_of != "1"]),
        by_category=tuple(
            CategoryNextTurn(category, _next_turn(counts[:, [k]]))
            for k, category in enumerate(history.categories)
        ),
        over_time=tuple(
            WindowNextTurn(
                start_s=windows.start_s(window),
                category=history.categories[k],
                requests=int(counts[0, k, window]),
                probability=float(counts[1, k, window] / counts[0, k, window]),
                settled=windows.start_s(window + 1) <= settled_until_s,
            )
            for k, window in np.argwhere(counts[0]).tolist()
        ),
    )


def next_turns_over_time(
    trace: Trace, windows: Windows, history: History
) -> dict[str, list[float | None]]:
    """Return probabilities of a next turn by window, for each category; {} without lineage.

    None: no requests of the category in that window.
    """
    if trace.lineage == "none":
        return {}
    requests, continued, *_ = _counts(history, windows, trace.span_s).tolist()
    return {
        category: [share(some, every) for some, every in zip(*of_category, strict=True)]
        for category, *of_category in zip(history.categories, continued, requests, strict=True)
    }


def _counts(history: History, windows: Windows, settled_until_s: float) -> Int64s:
    """Return counts, 4 × categories × windows: all, continued, settled, settled and continued."""
    shape = len(history.categories), windows.count
    counts = np.zeros((4, shape[0] * shape[1]), dtype=np.int64)
    for part in stretches(len(history.arrival_s)):
        arrival_s, continued = history.arrival_s[part], history.continued[part]
        cell = history.category[part] * np.int64(windows.count) + windows.index(arrival_s)
        settled = arrival_s <= settled_until_s
        cells = (cell, cell[continued], cell[settled], cell[settled & continued])
        counts += [np.bincount(some, minlength=counts.shape[1]) for some in cells]
    return counts.reshape(4, *shape)


def _next_turn(counts: Int64s) -> NextTurn:
    requests, continued, settled, settled_continued = counts.sum(axis=(1, 2)).tolist()
    return NextTurn(
        requests, share(continued, requests), settled, share(settled_continued, settled)
    )
