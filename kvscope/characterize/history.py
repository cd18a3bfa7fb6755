"""Requests and touches of blocks as arrays, for gaps, lifetimes, working set, turns and sizes.

Loading takes longer than any computation on a `History`: load it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.characterize.distributions import GroupOf, Summary, Turns, Weighted, quantiles
from kvscope.core.arrays import Bools, Float64s, Int64s
from kvscope.core.disk_columns import AT_ONCE, Column, Columns, in_order, stretches
from kvscope.core.trace import Trace
from kvscope.store.db import Store
from kvscope.store.traces import require_few_categories


class History(Struct, frozen=True):
    """R requests, K runs of reused blocks by gap, and G groups of blocks by lifetime, ascending.

    `arrival_s`, `category` (an index into `categories`) and `continued` (whether a next turn
    follows) have R entries; `settle_s` is the p90 of the time to a next turn, 0 without any. Run k:
    `gap.weight[k]` blocks, last touched by request `prev[k]`, were touched again by `request[k]`
    `gap.value[k]` s later. Group g: `life.weight[g]` cacheable blocks were first touched by request
    `first[g]` and last by `last[g]`, `life.value[g]` seconds later. Runs and groups may be on disk.
    """

    span_s: float
    categories: tuple[str, ...]
    arrival_s: Float64s
    category: NDArray[np.int16]
    continued: Bools
    settle_s: float
    request: Column
    prev: Column
    gap: Weighted
    first: Column
    last: Column
    life: Weighted

    @property
    def turn_buckets(self) -> tuple[str, ...]:
        """The turn bucket of each category (1, 2, 3, 4–6, 7+), the last word of its name."""
        return tuple(name.rpartition(" ")[2] for name in self.categories)

    @property
    def later_turn(self) -> Bools:
        """Whether each request is a follow-up turn, not the first of its conversation (R)."""
        is_later: Bools = np.array([turns != "1" for turns in self.turn_buckets])[self.category]
        return is_later

    def category_of(self, request: Column) -> GroupOf:
        """Return a function from a slice to the categories of that part of `request`."""
        return lambda part: self.category[request[part]].astype(np.int64)


def category_rows(store: Store, trace: Trace) -> list[dict[str, Any]]:
    """Return a dict for each category with its requests, tokens and ideal hits, by type and turn.

    Keys: `category` (its name), `type`, `turn_bucket`, and the numbers `requests`,
    `multi_turn_requests`, `input_tokens`, `output_tokens` and `ideal_blocks` (hit in an infinite
    cache). Raises InputError for more than MOST_CATEGORIES categories.
    """
    rows = store.rows("characterize/categories", trace_id=trace.trace_id)
    require_few_categories(trace, len(rows))
    return rows


def load_history(
    store: Store,
    trace: Trace,
    work: Path | None = None,
    categories: Sequence[str] | None = None,
) -> History:
    """Load the history of `trace`; a trace without hashes has no runs and no groups.

    Runs and groups are kept in files in the folder `work`, if given. `categories` are the names of
    all categories; None loads them.
    """
    if categories is None:
        categories = [row["category"] for row in category_rows(store, trace)]
    names = tuple(categories)
    parts = partial(by_requests, store, trace, work)
    arrival_s = np.empty(trace.requests)
    category = np.empty(trace.requests, dtype=np.int16)
    continued = np.zeros(trace.requests, dtype=np.bool_)

    def delays() -> Iterator[Columns]:
        """Fill the arrays of requests, and yield the time from each request to its next turn.

        Previous turns have lower request numbers, so their arrivals have been read before.
        """
        for part in parts("history_requests", categories=list(names)):
            request, parent = part["request"], part["parent"]
            arrival_s[request], category[request] = part["arrival_s"], part["category_index"]
            later = parent >= 0
            request, parent = request[later], parent[later]
            continued[parent] = True
            yield {"delay_s": arrival_s[request] - arrival_s[parent]}

    delay_s = in_order(delays(), "delay_s", work)["delay_s"]

    def timed(parts: Iterable[Columns], since: str, until: str) -> Mapping[str, Column]:
        """Return the columns with `span_s`, the time from one request to another (s), ascending.

        `since` and `until` name the columns of `parts` that have the numbers of the two requests.
        """
        spans = ({**x, "span_s": arrival_s[x[until]] - arrival_s[x[since]]} for x in parts)
        return in_order(spans, "span_s", work)

    runs = timed(parts("history_runs"), "prev", "request")
    lifespans = timed(map(_grouped, parts("history_lifespans")), "first_request", "last_request")
    return History(
        span_s=trace.span_s,
        categories=names,
        arrival_s=arrival_s,
        category=category,
        continued=continued,
        settle_s=_p90(delay_s),
        request=runs["request"],
        prev=runs["prev"],
        gap=Weighted(runs["span_s"], runs["blocks"]),
        first=lifespans["first_request"],
        last=lifespans["last_request"],
        life=Weighted(lifespans["span_s"], lifespans["blocks"]),
    )


def _grouped(groups: Columns) -> Columns:
    """Return groups of blocks, those with equal first and last request merged, ordered by both."""
    pair = groups["first_request"].astype(np.int64) << 32 | groups["last_request"]
    order = np.argsort(pair, kind="stable")  # fast: they come nearly in order
    pair = pair[order]
    begins = np.flatnonzero(np.diff(pair, prepend=-1) != 0)
    pair = pair[begins]
    return {
        "first_request": (pair >> 32).astype(np.int32),
        "last_request": (pair & (2**32 - 1)).astype(np.int32),
        "blocks": np.add.reduceat(groups["blocks"][order], begins),
    }


def _p90(delay_s: Column) -> float:
    """Return the nearest-rank p90 of ascending values, 0 if there are none."""
    last = -(-9 * len(delay_s) // 10)
    return float(delay_s[last - 1 : last][0]) if last else 0.0


def by_requests(
    store: Store, trace: Trace, work: Path | None, name: str, **parameters: Any
) -> Iterator[Columns]:
    """Yield the columns of query `name`: of all requests at once, or in parts with `work`.

    `parameters` are those of the query, besides the trace and the range of requests.
    """
    requests = max(trace.requests, 1)
    for part in stretches(requests, requests if work is None else AT_ONCE):
        yield store.columns(
            f"characterize/{name}",
            trace_id=trace.trace_id,
            first=part.start,
            end=part.stop,
            **parameters,
        )


_SIZES = ("input", "output", "tokens", "hit_blocks", "prompt_share")  # as the query numbers them
_PERCENTS = np.array([50, 80, 90, 99])


class SizeSummaries(Struct, frozen=True):
    """Sizes of all, single-turn or multi-turn requests; `tokens` and `blocks` include the output.

    `hit_blocks` are hits in an infinite cache, `prompt_share` their share of the input tokens.
    """

    turns: Turns
    requests: int
    input: Summary
    output: Summary
    tokens: Summary
    blocks: Summary
    hit_blocks: Summary
    prompt_share: Summary


def load_sizes(store: Store, trace: Trace, work: Path | None = None) -> tuple[SizeSummaries, ...]:
    """Return sizes of all requests, then of single-turn and of multi-turn ones, if there are any.

    Sorted values are kept in files in the folder `work`, if given.
    """
    size = {"block_size": trace.block_size}
    values = in_order(by_requests(store, trace, work, "request_values", **size), "value", work)
    of = Weighted(values["value"], values["requests"])

    def sort(part: slice) -> Int64s:
        return values["size"][part].astype(np.int64)

    def sort_by_turns(part: slice) -> Int64s:
        own: Int64s = 2 * sort(part) + values["multi_turn"][part]
        return own

    together = quantiles(of, sort, len(_SIZES), _PERCENTS)
    apart = quantiles(of, sort_by_turns, 2 * len(_SIZES), _PERCENTS)
    at = {None: together, False: apart[::2], True: apart[1::2]}
    rows = store.rows("characterize/request_sizes", trace_id=trace.trace_id, **size)
    return tuple(_sizes(row, at[row["multi_turn"]], trace.block_size) for row in rows)


def _sizes(row: dict[str, Any], at: Float64s, block_size: int) -> SizeSummaries:
    """Return summaries from means and maxima in `row`, and quantiles `at` (sizes × _PERCENTS).

    Sizes are in the order of `_SIZES`. Keys of `row`: `multi_turn` (None: all requests),
    `requests`, and for each NAME in `_SIZES` and "blocks", NAME_mean and NAME_max.
    """
    quantiles_of = dict(zip(_SIZES, at.tolist(), strict=True))
    # Blocks grow with tokens, so that their quantiles are those of the tokens, in blocks.
    quantiles_of["blocks"] = [-(-tokens // block_size) for tokens in quantiles_of["tokens"]]
    turns: Turns = (
        "all" if row["multi_turn"] is None else "multi" if row["multi_turn"] else "single"
    )
    return SizeSummaries(
        turns=turns,
        requests=row["requests"],
        **{
            name: Summary(*map(float, (row[f"{name}_mean"], *values, row[f"{name}_max"])))
            for name, values in quantiles_of.items()
        },
    )
