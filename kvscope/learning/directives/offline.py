"""Directives of requests as the tables of the policies that honour them; nothing is learned."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.trace import DEFAULT_PRIORITY, Directives, StatedDirectives
from kvscope.learning.offline.learners import OfflineLearner
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import Traffic

STATED = "directives"
"""The name of the learner whose tables are what requests state."""
_END = 2**31 - 1
Row = tuple[float, float]
"""A time to live in seconds, and a priority."""
_NOTHING: Row = (0.0, DEFAULT_PRIORITY)


class DirectivesOffline(OfflineLearner):
    """Tables of a trace whose requests state nothing: all blocks are alike, as under LRU."""

    def tables(self, traffic: Traffic, every: float) -> Tables:
        """Return tables with a row of "no directive" for each category."""
        categories = int(traffic.category.max(initial=0)) + 1
        return Tables.of(np.zeros(1, dtype=np.int64), np.array([[_NOTHING] * categories]))


def stated_tables(traffic: Traffic, stated: StatedDirectives) -> Tables:
    """Return the tables by which a policy honours the directives of R requests.

    Classes are the distinct sequences of times to live and priorities along a prompt; `cuts` are
    the blocks where they change: a block belongs to the part of its first token.
    """
    return _tables(traffic, stated.number + 1, [_parts(each) for each in stated.distinct])


Parts = list[tuple[int, Row]]
"""Where each part of a prompt begins, in tokens, and its row."""


def _parts(directives: Directives) -> Parts:
    """Return where each part of a prompt begins (token), and its TTL (s) and priority.

    Successive parts differ in either; the last part ends with the prompt. A range without a
    TTL never expires (infinity); tokens in no range have a TTL of 0 and the default priority.
    """
    bounds = {0, *(each.start for each in directives.retain)}
    bounds |= {each.to for each in directives.retain if each.to is not None}
    parts: Parts = []
    for begin in sorted(bounds):
        row = _NOTHING
        for each in directives.retain:
            if each.start <= begin and (each.to is None or begin < each.to):
                row = (np.inf if each.ttl_s is None else each.ttl_s, float(each.priority))
        if not parts or parts[-1][1] != row:
            parts.append((begin, row))
    return parts


def _tables(traffic: Traffic, own: Int32s, parts: list[Parts]) -> Tables:
    """Return the tables of R requests; `own` is 1 + the index in `parts`, 0 without directives."""
    every: list[Parts] = [[(0, _NOTHING)], *parts]
    most = max(map(len, every))
    classes: dict[tuple[Row, ...], int] = {}
    class_of, cuts_of = np.zeros(len(every), dtype=np.int32), _cuts(every, most, traffic.block_size)
    for number, each in enumerate(every):
        rows = [row for _, row in each]
        filled = tuple(rows + rows[-1:] * (most - len(rows)))
        class_of[number] = classes.setdefault(filled, len(classes))
    table: Float64s = np.array([[row for rows in classes for row in rows]], dtype=np.float64)
    return Tables.of(np.zeros(1, dtype=np.int64), table, class_of[own], cuts_of[own])


def _cuts(every: list[Parts], most: int, block_size: int) -> Int32s:
    """Return the block at which each part after the first begins, a row for each of `every`.

    A row has `most` - 1 columns, `most` the largest number of parts. Where there are fewer, the
    others begin at block 2^31 - 1, beyond any path.
    """
    cuts = np.full((len(every), most - 1), _END, dtype=np.int32)
    for number, each in enumerate(every):
        for part, (_, (begin, _)) in enumerate(pairwise(each)):
            cuts[number, part] = min(-(-begin // block_size), _END)
    return cuts


LEARNER = DirectivesOffline()
