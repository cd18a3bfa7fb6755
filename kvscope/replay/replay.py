"""One policy at one capacity over one trace: the leading blocks that each request hits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s
from kvscope.core.jit import Referenced
from kvscope.core.prefix import Paths, paths
from kvscope.policies.base import KeyPolicy, LanePolicy, NextUsePolicy, Policy, QueuePolicy
from kvscope.replay.kernels.keys import Keys, empty_keys, keys_kernel
from kvscope.replay.kernels.lanes import Lanes, empty_lanes, lanes_kernel, referenced_functions
from kvscope.replay.kernels.loop import TablePeriods
from kvscope.replay.kernels.next_use import NextUses, empty_next_uses, next_uses_kernel
from kvscope.replay.kernels.queues import empty_queues, queues_kernel
from kvscope.replay.last_touch import NextTouches, Segments, last_touch_segments, next_touches
from kvscope.replay.structures.runs import END
from kvscope.replay.traffic import Traffic


class Replay(Struct, frozen=True):
    """Hits and evictions of one policy at one capacity.

    `hit_blocks` (R entries) are the leading blocks that each request hits, capped by the last-token
    rule; `evictions` counts blocks. `at_end` is the final state of the cache: for queue policies a
    mask of the cached blocks (N + 1 entries, the root's first), for others the depth at which each
    request's run of cached blocks ends (R).
    """

    policy: Policy
    capacity_blocks: int
    hit_blocks: Int32s
    evictions: int
    at_end: Bools | Int32s


class Tables(Struct, frozen=True):
    """The tables that a policy has learned, and the request from which on each one holds.

    Table k holds from request `since[k]` on; `since[0]` is 0. Its row for category c is
    `values[rows[k, c]]`: tables share rows that are equal. For policies with classes of their own,
    `classes` (R entries) replace the traffic's categories; for those that divide a path into P + 1
    parts, `cuts` (R x P) replace its cuts, and each class has a category per part, from the head
    on. Where tables depend on the policy's parameters and the capacity, `choose` returns them.
    """

    since: Int64s
    rows: Int32s
    values: Float64s
    classes: Int32s | None = None
    cuts: Int32s | None = None
    choose: Callable[[Policy, int], Tables] | None = None

    @classmethod
    def of(
        cls,
        since: Int64s,
        tables: Float64s,
        classes: Int32s | None = None,
        cuts: Int32s | None = None,
    ) -> Tables:
        """Return the record of `tables` (periods x categories x columns), which share no rows.

        Table k holds from request `since[k]` on; `classes` and `cuts` are as in `Tables`.
        """
        periods, categories, columns = tables.shape
        rows = np.arange(periods * categories, dtype=np.int32).reshape(periods, categories)
        return cls(since, rows, tables.reshape(periods * categories, columns), classes, cuts)

    @property
    def categories(self) -> int:
        """The number of categories that have a row in each table."""
        return int(self.rows.shape[1])

    def at(self, period: int) -> Float64s:
        """Return a copy of the table of a period (categories x columns)."""
        table: Float64s = self.values[self.rows[period]]
        return table

    def periods(self) -> TablePeriods:
        """Return the tables in the form that kernels read, with the first one in force."""
        return TablePeriods(self.since, self.rows, self.values, self.at(0))

    def category(self, traffic: Traffic) -> Int32s:
        """Return the category of each request, as these tables number them."""
        return traffic.category if self.classes is None else self.classes

    def of_requests(self, requests: Int64s) -> Tables:
        """Return the tables for a replay of only these requests (ascending numbers)."""
        classes = None if self.classes is None else self.classes[requests]
        cuts = None if self.cuts is None else self.cuts[requests]
        since = np.searchsorted(requests, self.since)
        return replace(self, since=since, classes=classes, cuts=cuts)

    def chosen(self, policy: Policy, capacity_blocks: int) -> Tables:
        """Return the tables for this policy in a cache of this capacity."""
        return self if self.choose is None else self.choose(policy, capacity_blocks)

    def classified(self, policy: Policy, traffic: Traffic) -> Traffic:
        """Return the traffic with the policy's classes as categories.

        Raises ValueError where the policy's table lacks a row for one of them.
        """
        traffic = traffic._replace(category=self.category(traffic)[: len(traffic.category)])
        if self.cuts is not None:
            traffic = traffic._replace(cuts=self.cuts[: len(traffic.cuts)])
        rows = (traffic.category.max(initial=0) + 1) * (traffic.cuts.shape[1] + 1)
        if isinstance(policy, LanePolicy) and policy.by_category:
            rows *= policy.lanes
        if policy.reads_table and self.categories < rows:
            raise ValueError(f"{policy.name} needs a row of its table for every category and lane")
        return traffic


class TouchHistory(Struct, frozen=True):
    """The order of touches in one traffic: the same for every policy and capacity."""

    segments: Segments
    next_touches: NextTouches
    paths: Paths


def touch_history(traffic: Traffic) -> TouchHistory:
    """Return the touch history of `traffic`, for its replays."""
    segments = last_touch_segments(traffic)
    return TouchHistory(
        segments,
        next_touches(segments),
        paths(traffic.block_parent, traffic.leaf, traffic.length),
    )


NO_TABLES = Tables.of(np.zeros(1, dtype=np.int64), np.zeros((1, 1, 1)))


def replay(
    traffic: Traffic,
    policy: Policy,
    capacity_blocks: int,
    *,
    history: TouchHistory | None = None,
    tables: Tables = NO_TABLES,
    mandatory: bool = False,
) -> Replay:
    """Replay `traffic` with `policy` in the `cache` capacity model: exact, request by request.

    A request is looked up, its path joins the cache, then the policy evicts down to the capacity.
    `history` saves work where one trace is replayed many times; `tables` are for policies that read
    them. `mandatory` evicts other blocks before the request's own, as caches do that cannot refuse
    an insertion; policies with `makes_room` always do.
    """
    tables = tables.chosen(policy, capacity_blocks)
    traffic = tables.classified(policy, traffic)
    history = history or touch_history(traffic)
    p = policy.settings()
    mandatory = mandatory or policy.makes_room
    hits = np.zeros(len(traffic.leaf), dtype=np.int32)
    kernel = kernel_of(type(policy))
    if isinstance(policy, QueuePolicy):
        queues = empty_queues(type(policy), traffic, capacity_blocks)
        evictions = kernel(traffic, history.paths, queues, capacity_blocks, p, mandatory, hits)
        cached = queues.cached[: len(traffic.block_parent)]
        return Replay(policy, capacity_blocks, hits, evictions, cached)
    state = _empty_state(policy, traffic, history, tables)
    ttl_s = policy.values["ttl_s"]
    evictions = kernel(
        traffic, history.segments, state, capacity_blocks, p, tables.periods(), ttl_s,
        mandatory, hits, functions_of(policy),
    )  # fmt: skip
    end = state.runs.of[:, END].copy()  # not a view, which would keep all runs
    return Replay(policy, capacity_blocks, hits, evictions, end)


def functions_of(policy: Policy) -> Referenced | None:
    """Return a lane policy's functions, which kernels call by their addresses; None for others."""
    return referenced_functions(type(policy)) if isinstance(policy, LanePolicy) else None


def _empty_state(
    policy: Policy, traffic: Traffic, history: TouchHistory, tables: Tables
) -> Lanes | NextUses | Keys:
    if isinstance(policy, LanePolicy):
        lanes = tables.categories if policy.by_category else policy.lanes
        return empty_lanes(policy, traffic, lanes)
    if isinstance(policy, NextUsePolicy):
        needed = policy.needed(traffic.input_tokens, traffic.look, traffic.block_size)
        return empty_next_uses(traffic, needed, history.next_touches)
    if isinstance(policy, KeyPolicy):
        return empty_keys(policy, traffic, history.segments, history.paths)
    raise TypeError(f"{policy.name} is of no known shape")


def kernel_of(policy: type[Policy]) -> Callable[..., int]:
    """Return the kernel that replays a policy: a queue, lane, next-use or key policy.

    It fills an array with the leading blocks that each request hits, and returns the number of
    blocks evicted. `queues_kernel` and `replay_loop` (other policies) name its arguments: traffic,
    an empty cache, its capacity, the policy's parameters and that array.
    """
    if issubclass(policy, QueuePolicy):
        return queues_kernel(policy)
    if issubclass(policy, LanePolicy):
        return lanes_kernel(policy)
    if issubclass(policy, NextUsePolicy):
        return next_uses_kernel
    if issubclass(policy, KeyPolicy):
        return keys_kernel(policy)
    raise TypeError(f"{policy.name} is of no known shape")
