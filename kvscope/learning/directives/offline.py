"""Directives of requests as the tables of the policies that honour them; nothing is learned."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.directives import DEFAULT_PRIORITY, Directives, StatedDirectives
from kvscope.learning.offline.learners import OfflineLearner
from kvscope.policies.base import Policy
from kvscope.policies.soft_ttl import PAUSE_TTL, PIN_SHARE
from kvscope.policies.trtllm_priority import TrtllmPriority
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.leases import hold
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import Traffic

STATED = "directives"
"""The learner of policies whose tables are what requests state."""
_END = 2**31 - 1
_MOST_KEPT = 1024  # rows of requests that do not refresh, before TTLs are cut
Row = tuple[float, float]
"""A time to live in seconds, and a priority."""
_NOTHING: Row = (0.0, DEFAULT_PRIORITY)


class DirectivesOffline(OfflineLearner):
    """Tables of a trace whose requests state nothing: all blocks are alike, as under LRU."""

    def tables(self, traffic: Traffic, every: float) -> Tables:
        """Return a row of no directive for each category."""
        categories = int(traffic.category.max(initial=0)) + 1
        return Tables.of(np.zeros(1, dtype=np.int64), np.array([[_NOTHING] * categories]))


def stated_tables(traffic: Traffic, stated: StatedDirectives, policy: type[Policy]) -> Tables:
    """Return the tables by which `policy` honours the directives of R requests.

    Classes are the distinct sequences of times to live and priorities along a prompt; `cuts` are
    the blocks where they change: a block goes by its first token. For `soft-ttl`, which pins for a
    pause and under a budget, they are chosen with the policy's parameters and the capacity. A
    request that does not refresh leaves its blocks the end of their TTL; TensorRT-LLM's priorities
    are always those of the last request.
    """
    if policy is TrtllmPriority:
        return _tables(traffic, stated.number + 1, [_parts(each) for each in stated.distinct])

    refreshes = np.array([True, *(each.refresh for each in stated.distinct)])

    def choose(bound: Policy, capacity_blocks: int) -> Tables:
        parts = [_pinned(each, bound.values[PAUSE_TTL]) for each in stated.distinct]
        longest = np.array([0.0, *(max(ttl for _, (ttl, _) in each) for each in parts)])
        budget = int(bound.values[PIN_SHARE] * capacity_blocks)
        granted = hold(traffic, longest[stated.number + 1], budget).granted
        own = np.where(granted, stated.number + 1, 0)
        unrefreshed = np.flatnonzero(~refreshes[stated.number + 1])
        for digits in (None, 2, 1):
            kept = _unrefreshed(traffic, own, parts, unrefreshed, digits)
            distinct = {tuple(each): None for each in kept}
            if len(distinct) <= _MOST_KEPT:
                break
        number = {each: len(parts) + 1 + at for at, each in enumerate(distinct)}
        own[unrefreshed] = [number[tuple(each)] for each in kept]
        return _tables(traffic, own, [*parts, *map(list, distinct)])

    unpinned = Tables.of(
        np.zeros(1, dtype=np.int64), np.array([[_NOTHING]]), np.zeros_like(stated.number)
    )
    return replace(unpinned, choose=choose)


Parts = list[tuple[int, Row]]
"""Where each part of a prompt begins, in tokens, and its row."""


def _parts(directives: Directives) -> Parts:
    """Return the parts of a prompt by priority and TTL; a range without a TTL is for good."""
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


def _pinned(directives: Directives, pause_ttl_s: float) -> Parts:
    """Return the parts for `soft-ttl`: nothing after a conversation's end, a pin for a pause."""
    if directives.ends:
        return [(0, _NOTHING)]
    parts = _parts(directives)
    if directives.pause and all(ttl == 0.0 for _, (ttl, _) in parts):
        return [(0, (pause_ttl_s, DEFAULT_PRIORITY))]
    return parts


def _unrefreshed(
    traffic: Traffic, own: Int64s, parts: list[Parts], requests: Int64s, digits: int | None
) -> list[Parts]:
    """Return the parts of `requests` that do not refresh: TTLs that the requests before have left.

    What no request touched before goes by the request's own directive: `own` (R entries) counts
    `parts` from 1, 0 is none. TTLs are cut to so many significant digits.
    """
    every: list[Parts] = [[(0, _NOTHING)], *parts]
    segments, size = last_touch_segments(traffic), traffic.block_size
    start, blocks = segments.start, traffic.length + traffic.anonymous
    ends: dict[int, Parts] = {}  # the same with the time at which each TTL ends

    def within(request: int, begin: int, end: int) -> Parts:
        """Return what lies on a request's blocks from `begin` to `end`, with the TTLs' ends."""
        now_s = float(traffic.arrival_s[request])
        of = ends.get(request)
        if of is None:
            of = [(token, (now_s + ttl, level)) for token, (ttl, level) in every[own[request]]]
        first = [-(-token // size) for token, _ in of]
        return [
            (max(at, begin) * size, row)
            for at, until, (_, row) in zip(first, [*first[1:], end], of, strict=True)
            if max(at, begin) < min(until, end)
        ]

    kept = []
    for request in requests.tolist():
        reached, pieces = 0, list[tuple[int, Row]]()
        for at in range(segments.starts[request], segments.starts[request + 1]):
            reached = int(segments.end[at])
            pieces += within(int(segments.previous[at]), int(start[at]), reached)
        pieces += within(request, reached, int(blocks[request]))
        ends[request] = pieces or [(0, _NOTHING)]
        now_s = float(traffic.arrival_s[request])
        left = [
            (token, (_cut(max(end_s - now_s, 0.0), digits), level))
            for token, (end_s, level) in ends[request]
        ]
        kept.append(
            [piece for at, piece in enumerate(left) if not at or piece[1] != left[at - 1][1]]
        )
    return kept


def _cut(ttl_s: float, digits: int | None) -> float:
    """Return a TTL with no more than so many significant digits, never a longer one."""
    if digits is None or not 0 < ttl_s < math.inf:
        return ttl_s
    unit = 10.0 ** (math.floor(math.log10(ttl_s)) + 1 - digits)
    return math.floor(ttl_s / unit) * unit


def _tables(traffic: Traffic, own: Int64s | Int32s, parts: list[Parts]) -> Tables:
    """Return the tables of R requests: `own` counts their `parts` from 1, 0 is none."""
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
    """Return the blocks at which parts begin, the first aside (directives x parts - 1)."""
    cuts = np.full((len(every), most - 1), _END, dtype=np.int32)
    for number, each in enumerate(every):
        for part, (_, (begin, _)) in enumerate(pairwise(each)):
            cuts[number, part] = min(-(-begin // block_size), _END)
    return cuts


LEARNER = DirectivesOffline()
