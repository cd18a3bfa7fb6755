"""A trace cut by time: what warms the cache, what parameters are chosen on, what judges them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvscope.characterize.windows import Windows
from kvscope.core.errors import InputError, UsageError
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.core.units import format_percentile
from kvscope.ingest.lineage import carried, conversations, inferred
from kvscope.replay.derived_traces import select
from kvscope.replay.workload import Workload

_BUCKETS = np.array(["1", "2", "3", "4-6", "7+"])
_FIRST_TURNS = (2, 3, 4, 7)  # that the buckets after the first one begin with


def first_requests(prompts: Prompts, seen: int, lineage: Lineage) -> Prompts:
    """The first `seen` requests, as ingest would have had them if they were all there is."""
    leaf = np.where(
        prompts.blocks > prompts.full_blocks, prompts.block_parent[prompts.leaf], prompts.leaf
    )
    known = replace(prompts, carried_leaf=leaf, carried_blocks=prompts.full_blocks)
    cut = select(known, np.arange(seen))
    full_leaf = cut.carried_leaf
    parent = cut.parent
    if lineage == "inferred":
        parent = inferred(cut.block_parent, full_leaf, cut.input_tokens, cut.output_tokens)
    conversation, turn = conversations(parent)
    carried_leaf, carried_blocks = carried(
        cut.block_parent,
        cut.block_size,
        parent,
        full_leaf,
        cut.full_blocks,
        cut.input_tokens,
        cut.output_tokens,
    )
    category, categories = _categories(cut, turn)
    return replace(
        cut,
        parent=parent,
        conversation=conversation,
        carried_leaf=carried_leaf,
        carried_blocks=carried_blocks,
        category=category,
        categories=categories,
    )


def _categories(cut: Prompts, turn: NDArray[np.int32]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Category of each request, and their names, with turns as they are now if never told."""
    named = [name.rpartition(" ") for name in cut.categories]
    kinds, kind = np.unique([one[0] for one in named], return_inverse=True)
    bucket = np.searchsorted(_BUCKETS, [one[2] for one in named])[cut.category]
    if np.array_equal(bucket, _bucket(conversations(cut.parent)[1])):  # else the trace told them
        bucket = _bucket(turn)
    found, category = np.unique(kind[cut.category] * len(_BUCKETS) + bucket, return_inverse=True)
    names = (f"{kinds[one // len(_BUCKETS)]} {_BUCKETS[one % len(_BUCKETS)]}" for one in found)
    return category.astype(np.int32), tuple(names)


def _bucket(turn: NDArray[np.int32]) -> NDArray[np.int64]:
    return np.searchsorted(_FIRST_TURNS, turn, side="right")


FEWEST = 100
BEYOND = 5
"""Requests that each part must have, at least, and beyond the percentile that is asked for."""


@dataclass(frozen=True, slots=True)
class Split:
    """How many requests, in order of arrival, each part has.

    Both parts are replayed from the trace's first request on, so that the cache is warm and nothing
    that is chosen has seen a judged request.
    """

    warmup_requests: int
    chosen_on_requests: int
    judged_requests: int
    judged_from_s: float


def split(prompts: Prompts, warmup: float, judged: float, percentile: float) -> Split:
    """The first share `warmup` of the requests, the last share `judged`, and what lies between.

    Raises UsageError for shares that leave nothing between or at the end, InputError where too few
    requests are left to choose on or to judge by.
    """
    if not (judged > 0 and 0 <= warmup < 1 - judged):
        raise UsageError(
            f"{warmup:.3g} and {judged:.3g} of the requests leave none to choose on or judge by",
            where="--warmup, --judge",
            remedy="take for example 20% and 40%",
        )
    requests = len(prompts.leaf)
    first, judge = int(requests * warmup), int(requests * (1 - judged))
    found = Split(
        warmup_requests=first,
        chosen_on_requests=judge - first,
        judged_requests=requests - judge,
        judged_from_s=float(prompts.arrival_s[judge]) if judge < requests else float("nan"),
    )
    fewest = max(FEWEST, math.ceil(BEYOND / (1 - percentile) - 1e-9))
    if min(found.chosen_on_requests, found.judged_requests) < fewest:
        raise InputError(
            f"{requests:,} requests are too few to choose on some and judge on others",
            remedy=f"take a longer trace: for {format_percentile(percentile)} each part needs"
            f" {fewest:,} requests",
        )
    return found


def parts(
    prompts: Prompts, parted: Split, setting: RunSetting, windows: Windows, lineage: Lineage
) -> tuple[Workload, Workload]:
    """The workload to choose on, which ends where judging begins, and the one to judge by."""
    seen = parted.warmup_requests + parted.chosen_on_requests
    early = first_requests(prompts, seen, lineage)
    return (
        Workload(early, _counted_from(setting, parted.warmup_requests, seen), windows),
        Workload(prompts, _counted_from(setting, seen, len(prompts.leaf)), windows),
    )


def _counted_from(setting: RunSetting, first: int, requests: int) -> RunSetting:
    # Half a request more, so that the share gives the very number back.
    share = min((first + 0.5) / requests, 1.0)
    return replace(setting, definition=replace(setting.definition, warmup=share))
