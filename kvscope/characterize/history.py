"""Touches of blocks as arrays, for gaps, lifetimes, working set and stability.

Loading takes longer than any computation on it: load once and pass it on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.characterize.distributions import Weighted
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
    arrival_s: NDArray[np.float64]
    category: NDArray[np.int64]
    request: NDArray[np.int32]
    prev: NDArray[np.int32]
    gap: Weighted
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    lifespan_blocks: NDArray[np.int64]


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
