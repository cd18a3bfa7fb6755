"""Touches of blocks as arrays, for gaps, lifetimes, working set and stability.

Loading takes longer than any computation on it: load once and pass it on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvscope.characterize.distributions import GroupOf, Weighted
from kvscope.characterize.stretches import by_requests
from kvscope.core.arrays import Float64s
from kvscope.core.disk_columns import Column, in_order
from kvscope.core.trace import Trace
from kvscope.store.db import Store


@dataclass(frozen=True, slots=True)
class History:
    """R requests, K runs of reuse in order of their gap, G groups of blocks in that of their life.

    `arrival_s` and `category` (an index into `categories`) have R entries. Run k: `gap.weight[k]`
    blocks, last touched by request `prev[k]`, were touched again by `request[k]` after
    `gap.value[k]` seconds. Group g: `life.weight[g]` cacheable blocks were first touched by request
    `first[g]` and last by `last[g]`, `life.value[g]` seconds later. Runs and groups may be on disk.
    """

    span_s: float
    categories: tuple[str, ...]
    arrival_s: Float64s
    category: NDArray[np.int16]
    request: Column
    prev: Column
    gap: Weighted
    first: Column
    last: Column
    life: Weighted

    def category_of(self, request: Column) -> GroupOf:
        """Return the categories of these requests, of which a stretch at a time is read."""
        return lambda part: self.category[request[part]].astype(np.int64)


def load_history(store: Store, trace: Trace, work: Path | None = None) -> History:
    """Load the history of `trace`; a length-only trace has no runs and no groups.

    Runs and groups are kept in files in the folder `work`, where that is given.
    """
    rows = store.rows("characterize/categories", trace_id=trace.trace_id)
    names = tuple(row["category"] for row in rows)
    parts = partial(by_requests, store, trace, work)
    requests = list(parts("history_requests", categories=list(names)))
    arrival_s = np.concatenate([part["arrival_s"] for part in requests])
    category = np.concatenate([part["category_index"] for part in requests])
    del requests
    runs = in_order(parts("history_runs"), "gap_s", work)
    lifespans = in_order(
        (
            {**part, "life_s": arrival_s[part["last_request"]] - arrival_s[part["first_request"]]}
            for part in parts("history_lifespans")
        ),
        "life_s",
        work,
    )
    return History(
        span_s=trace.span_s,
        categories=names,
        arrival_s=arrival_s,
        category=category,
        request=runs["request"],
        prev=runs["prev"],
        gap=Weighted(runs["gap_s"], runs["blocks"]),
        first=lifespans["first_request"],
        last=lifespans["last_request"],
        life=Weighted(lifespans["life_s"], lifespans["blocks"]),
    )
