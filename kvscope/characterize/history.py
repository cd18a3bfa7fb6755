"""Touches of blocks as arrays, for gaps, lifetimes, working set and stability.

Loading takes longer than any computation on it: load once and pass it on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvscope.characterize.distributions import Weighted
from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.trace import Trace
from kvscope.store.db import Store


@dataclass(frozen=True, slots=True)
class History:
    """R requests, K runs of reuse in order of their gap, G groups of blocks.

    `arrival_s` and `category` (an index into `categories`) have R entries. Run k: `gap.weight[k]`
    blocks, last touched by request `prev[k]`, were touched again by `request[k]` after
    `gap.value[k]` seconds. Group g: `lifespan_blocks[g]` cacheable blocks were first touched by
    request `first[g]` and last by `last[g]`.
    """

    span_s: float
    categories: tuple[str, ...]
    arrival_s: Float64s
    category: Int64s
    request: Int32s
    prev: Int32s
    gap: Weighted
    first: Int32s
    last: Int32s
    lifespan_blocks: Int64s


def load_history(store: Store, trace: Trace) -> History:
    """Load the history of `trace`; a length-only trace has no runs and no groups."""
    key = {"trace_id": trace.trace_id}
    names = tuple(row["category"] for row in store.rows("characterize/categories", **key))
    requests = store.columns("characterize/history_requests", **key, categories=list(names))
    runs = store.columns("characterize/history_runs", **key)
    lifespans = store.columns("characterize/history_lifespans", **key)
    order = np.argsort(runs["gap_s"])
    return History(
        span_s=trace.span_s,
        categories=names,
        arrival_s=requests["arrival_s"],
        category=requests["category_index"].astype(np.int64),
        request=runs["request"][order],
        prev=runs["prev"][order],
        gap=Weighted(runs["gap_s"][order], runs["blocks"][order].astype(np.int64)),
        first=lifespans["first_request"],
        last=lifespans["last_request"],
        lifespan_blocks=lifespans["blocks"],
    )
