"""Contention between groups of requests: evictions of one by another, and the effect of quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.errors import UsageError
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import Prompts
from kvscope.replay.attribution import Attribution, CacheLookups
from kvscope.replay.derived_traces import select
from kvscope.replay.traffic import walk

By = Literal["type", "user"]
MOST_GROUPS = 6


class PushedOut(Struct, frozen=True):
    """A group's evicted `tokens` that the requests of the group `name` pushed out."""

    name: str
    tokens: int


class GroupLosses(Struct, frozen=True):
    """A group's hits in the shared cache, and its evicted tokens by the group that evicted them.

    `evicted_by` adds up to `evicted_tokens`: a request's evicted tokens are divided among the
    groups by the blocks that each wrote to the cache since the first evicted block was last used.
    `quota_blocks` is the group's share of the cache by input tokens; in a cache of its own with
    that capacity, the group hits `quota_hit_tokens`. Both are null with several workers.
    """

    name: str
    requests: int
    input_tokens: int
    hit_tokens: int
    evicted_tokens: int
    evicted_by: tuple[PushedOut, ...]
    quota_blocks: int | None
    quota_hit_tokens: int | None


def grouped(prompts: Prompts, by: By) -> tuple[Int32s, tuple[str, ...]]:
    """Return each request's group (R), and the names of the groups, at most MOST_GROUPS.

    Of more groups, those with the fewest input tokens are merged into the last. Raises UsageError
    for fewer than two groups.
    """
    if by == "type":
        types = [name.rpartition(" ")[0] for name in prompts.categories]
        names = sorted(set(types))
        group = np.array([names.index(each) for each in types])[prompts.category]
    else:
        known = prompts.user >= 0
        numbers, group = np.unique(prompts.user, return_inverse=True)
        names = [f"user {number}" if number >= 0 else "no user" for number in numbers]
        names = names if known.any() else names[:1]
    if len(names) < 2:
        raise UsageError(
            f"the trace names fewer than two {by}s",
            where=f"--by {by}",
            remedy="leave --by out, or take the other of type and user",
        )
    inputs = np.bincount(group, prompts.input_tokens, len(names))
    if len(names) > MOST_GROUPS:
        largest = np.sort(np.argsort(-inputs, kind="stable")[: MOST_GROUPS - 1])
        others = f"{len(names) - len(largest)} others"
        place = np.full(len(names), MOST_GROUPS - 1)
        place[largest] = np.arange(len(largest))
        group, names = place[group], [*(names[at] for at in largest), others]
    return group.astype(np.int32), tuple(names)


def group_losses(
    prompts: Prompts,
    definition: HitDefinition,
    causes: Attribution,
    groups: tuple[Int32s, tuple[str, ...]] | None,
    worker: Int32s,
    alone: tuple[int, Callable[[Prompts, int], CacheLookups]] | None,
) -> tuple[GroupLosses, ...]:
    """Return the hits and evicted tokens of each group, the most evicted first; () without groups.

    `groups` is from `grouped`; `worker` (R) numbers workers, with a cache each. Of a single cache,
    `alone` is the capacity in blocks, and a function that replays requests in one of N blocks.
    """
    if groups is None:
        return ()
    group, names = groups
    matrix = pushed_out(prompts, definition, causes, group, len(names), worker)
    inputs = causes.input_tokens
    losses = []
    for number, name in enumerate(names):
        own = np.flatnonzero(group == number)
        tokens = int(causes.tokens["evicted"][own].sum())
        bounds = np.rint(np.cumsum([0.0, *matrix[number]])).astype(np.int64)
        quota = hits = None
        if alone is not None:
            blocks, replayed = alone
            quota = max(round(blocks * inputs[own].sum() / inputs.sum()), 1)
            part = select(prompts, own)
            tokens_of = replayed(part, quota).lookups.hit.astype(np.int64) * prompts.block_size
            hits = int(np.minimum(tokens_of, inputs[own]).sum())
        losses.append(
            GroupLosses(
                name,
                len(own),
                int(inputs[own].sum()),
                int(causes.hit_tokens[own].sum()),
                tokens,
                tuple(map(PushedOut, names, np.diff(bounds).tolist())),
                quota,
                hits,
            )
        )
    return tuple(sorted(losses, key=lambda each: -each.evicted_tokens))


def pushed_out(
    prompts: Prompts,
    definition: HitDefinition,
    causes: Attribution,
    group: Int32s,
    groups: int,
    worker: Int32s,
) -> Float64s:
    """Return the evicted tokens of each group (rows) by the group that evicted them (columns).

    If no block was written since the last use (concurrent requests), its own group counts.
    """
    steps, evicted = walk(prompts, definition), causes.tokens["evicted"]
    written = np.maximum(steps.length - causes.lookups.hit, 0) + steps.anonymous
    written = np.where(causes.tokens["rejected"] > 0, 0, written)
    matrix = np.zeros((groups, groups))
    for each in np.unique(worker):
        own = np.flatnonzero(worker == each)
        until = np.zeros((len(own) + 1, groups), dtype=np.int64)  # by each group, before a request
        until[np.arange(1, len(own) + 1), group[own]] = written[own]
        np.cumsum(until, axis=0, out=until)
        at = np.flatnonzero(evicted[own])
        since = np.searchsorted(own, causes.lookups.last_use[own[at]]) + 1
        between = until[at] - until[since]
        total, of = between.sum(axis=1, keepdims=True), group[own[at]]
        shares = np.where(total > 0, between / np.maximum(total, 1), np.eye(groups)[of])
        np.add.at(matrix, of, evicted[own[at], None] * shares)
    return matrix
