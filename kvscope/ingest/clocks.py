"""Sessions with clocks of their own, and sessions whose rows hold only the new part of a prompt.

Where each session has a clock of its own, the trace says when a request arrives within its session,
but not when the session begins, nor how many sessions are open at a time. Such clocks show in one
of three ways: the format says so, sessions begin with a request without a time, or all sessions
begin at one instant.

A row of a session holds the whole prompt, or only the tokens after those of the session's previous
row; earlier rows then complete the prompt. Rows of new tokens repeat no block of their session, and
do not get longer from row to row.
Source: ai-dynamo/aiperf (Mooncake sessions); ai-dynamo/aisimulate (TraceFileFormat::MooncakeDelta).
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.errors import InputError
from kvscope.ingest.columns import Columns, Gaps
from kvscope.ingest.formats.base import TraceFormat, Turns
from kvscope.ingest.limits import MAX_TOKENS

_LEAST_FOLLOWING = 3
"""With fewer follow-up rows, rows count as whole prompts unless the user states otherwise."""
_REPEATING = 0.01
"""Largest share of follow-up rows that begin with a known block, if rows hold only new tokens."""
_MIXED = 0.1
"""Least such share from which rows are whole prompts; between the two, rows contradict both."""
_GROWING = 0.75
"""Rows are also whole prompts if this share of the other follow-up rows is at least as long as all
earlier rows of their session."""

_EPOCH_S = 946_684_800, 4_102_444_800
"""The years 2000 to 2100, in seconds since 1970."""


def turns(gaps: Gaps, chosen: type[TraceFormat], stated: Turns | None, where: str) -> Turns:
    """Return whether rows of sessions hold whole prompts or only their new part.

    This is `stated`; if None, "whole" for fewer than _LEAST_FOLLOWING follow-up rows or a format
    (`chosen`) without new parts, else what `gaps` show. Raises InputError at `where`, the trace's
    path, if rows contradict a stated "delta", or, with None stated, contradict both values.
    """
    following, repeating = gaps.following, gaps.repeating
    if stated == "delta" and repeating > _REPEATING * following:
        raise InputError(
            f"{repeating:,} of {following:,} follow-up rows repeat blocks of their session: rows"
            " are whole prompts",
            where=where,
            remedy="leave out --turns delta",
        )
    if stated is not None or not chosen.has_deltas or following < _LEAST_FOLLOWING:
        return stated or "whole"
    if gaps.growing >= _GROWING * (following - repeating) or repeating >= _MIXED * following:
        return "whole"
    if repeating > _REPEATING * following:
        raise InputError(
            f"rows of sessions are neither whole prompts nor only what is new: {repeating:,} of"
            f" {following:,} follow-up rows repeat blocks of their session,"
            f" {following - repeating - gaps.growing:,} begin anew and are shorter",
            where=where,
            remedy="state --turns whole or --turns delta",
        )
    return "delta"


def complete_sessions(columns: Columns, where: str) -> str:
    """Prepend to each row the blocks of earlier rows of its session and tenant; return a note.

    Each row begins with a new block, so its predecessor's tokens count as whole blocks. Raises
    InputError for sessions longer than a request may be.
    """
    rows, size = columns.arrays(), columns.block_size
    sessions, tenants = rows["session"].tolist(), rows["tenant"].tolist()
    leaves, inputs = rows["leaf"].tolist(), rows["input_tokens"].tolist()
    parent, hash_id = columns.trie.parent, columns.trie.hash_id
    before: dict[tuple[int, int], tuple[list[int], int]] = {}  # ids and tokens of each session
    paths: list[Sequence[int]] = []
    completed = 0
    for row, session in enumerate(sessions):
        path: list[int] = []
        block = leaves[row]
        while block:
            path.append(int(hash_id[block]))
            block = int(parent[block])
        path.reverse()
        if session >= 0:
            ids, tokens = before.get((session, tenants[row]), ([], 0))
            if tokens:
                completed += 1
                path = ids + path
                inputs[row] = tokens + max(inputs[row], (len(path) - len(ids)) * size)
            whole = max(inputs[row], len(path) * size)
            if whole > MAX_TOKENS:
                raise InputError(
                    f"a session of more than {MAX_TOKENS:,} tokens",
                    where=where,
                    remedy="state --turns whole if each row is a whole prompt",
                )
            before[session, tenants[row]] = path, whole
        paths.append(path)
    columns.replace_paths(paths, inputs)
    return (
        f"rows of a session hold only what is new: {completed:,} prompts are completed by the rows"
        " before, without answers (--turns whole: each row is a whole prompt)"
    )


def correct_epoch(rows: MutableMapping[str, NDArray[Any]]) -> list[str]:
    """Correct arrivals in `rows` that are s since 1970 but were read as ms; return notes on it."""
    first = float(rows["arrival_s"].min()) * 1000
    if not _EPOCH_S[0] <= first < _EPOCH_S[1]:
        return []
    rows["arrival_s"] = rows["arrival_s"] * 1000
    day = np.datetime64(int(first), "s").astype("datetime64[D]")
    return [f"times are in seconds since 1970, not in milliseconds: the trace begins on {day}"]


_STARTS = (0.5, 0, 1), (1, 0, 1), (1, 0, 2), (2, 4, 1), (4, 16, 1)
"""Of each alternative: the rate as a multiple of the trace's, the least number of starts within a
median session, and the seed. Much rarer starts would take long: learners are refitted by time."""


class SessionStarts(Struct, frozen=True):
    """A Poisson process by which sessions without a common clock begin.

    `open_sessions`: mean number of sessions open when a request arrives, its own included.
    """

    sessions_per_s: float
    seed: int
    open_sessions: float


def other_starts(arrival_s: Float64s, clock: Int32s) -> Iterator[SessionStarts]:
    """Yield five Poisson processes, by rising rate, by which sessions may begin instead.

    Their rates are 0.5, 1, 1, 2 and 4 times that of the starts in `arrival_s`; the fourth is at
    least 4, the fifth 16 starts per median session length. `clock` numbers the sessions from 0, -1
    for a request on the trace's clock. Yields nothing where fewer than two sessions have a clock,
    or where the median session lasts 0 s (one request).
    """
    if clock.max() < 1:
        return
    begin_s, end_s = session_span(arrival_s[clock >= 0], clock[clock >= 0])
    span_s, typical_s = float(end_s.max() - begin_s.min()), float(np.median(end_s - begin_s))
    if not typical_s:
        return
    for times, least, seed in _STARTS:
        rate = max(times * len(begin_s) / span_s, least / typical_s)
        yield SessionStarts(rate, seed, open_sessions(placed(arrival_s, clock, rate, seed), clock))


def begin_together(arrival_s: Float64s, session: Int32s) -> bool:
    """Return whether all requests belong to several sessions that begin at one instant.

    `session` numbers the sessions from 0, -1 for a request without one. Such sessions have clocks
    of their own, unless all requests arrive at once (False).
    """
    if (session < 0).any() or arrival_s.min() == arrival_s.max():
        return False
    begin_s, _ = session_span(arrival_s, session)
    return len(begin_s) > 1 and bool((begin_s == begin_s[0]).all())


def placed(arrival_s: Float64s, clock: Int32s, sessions_per_s: float, seed: int) -> Float64s:
    """Return arrivals (s) with session starts moved to a Poisson process.

    `clock` numbers the sessions from 0; they start in this order, session 0 at the trace's earliest
    arrival. Requests with -1 keep their arrival.
    """
    own = clock >= 0
    begin_s, _ = session_span(arrival_s[own], clock[own])
    gaps_s = np.random.default_rng(seed).exponential(1 / sessions_per_s, len(begin_s) - 1)
    moved_s = np.concatenate([[0.0], np.cumsum(gaps_s)]) + arrival_s.min() - begin_s
    times_s = arrival_s.copy()
    times_s[own] += moved_s[clock[own]]
    return times_s


def session_span(arrival_s: Float64s, session: Int32s) -> tuple[Float64s, Float64s]:
    """Return the first and the last arrival (s) of each session, numbered from 0."""
    begin_s, end_s = np.full((2, session.max() + 1), np.inf)
    np.minimum.at(begin_s, session, arrival_s)
    np.minimum.at(end_s, session, -arrival_s)
    return begin_s, -end_s


def open_sessions(arrival_s: Float64s, clock: Int32s) -> float:
    """Return the mean number of sessions open when a request arrives, its own included."""
    at_s = arrival_s[clock >= 0]
    begin_s, end_s = (np.sort(times_s) for times_s in session_span(at_s, clock[clock >= 0]))
    begun = np.searchsorted(begin_s, at_s, side="right")
    ended = np.searchsorted(end_s, at_s, side="left")
    return float((begun - ended).mean())
