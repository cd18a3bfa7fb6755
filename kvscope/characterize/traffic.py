"""Traffic: lengths and arrivals of requests, also over time, and ideal hits by type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from kvscope.characterize.distributions import Summary, Turns, Windows, round_windows
from kvscope.characterize.history import History, SizeSummaries
from kvscope.core.arrays import Float64s
from kvscope.core.disk_columns import stretches
from kvscope.core.trace import Trace
from kvscope.store.db import Store


class Lengths(Struct, frozen=True):
    """Token lengths and arrivals; rate and variation are None if all requests arrive at once.

    `inter_arrival_cv` is the coefficient of variation of the time between arrivals: 1 for a Poisson
    process, more for bursts. Mean tokens include outputs; None without requests of that kind.
    """

    requests: int
    input_tokens: Summary
    output_tokens: Summary
    arrival_rate_per_s: float | None
    inter_arrival_cv: float | None
    single_turn_mean_tokens: float | None  # input and output
    multi_turn_mean_tokens: float | None


class RequestSize(Struct, frozen=True):
    """Sizes of all, single-turn or multi-turn requests: input and output tokens, and their blocks.

    `bytes` is the size of the KV of these tokens, None unless a model is stated. `hbm_multiple` is
    that size relative to the deployment's pools, else to the HBM; None if neither is known.
    """

    turns: Turns
    requests: int
    blocks: Summary
    tokens: Summary
    bytes: Summary | None = None
    hbm_multiple: Summary | None = None


class TrafficWindow(Struct, frozen=True):
    """Traffic in one window; hit rates are those of an infinite cache.

    `token_hit_rate` is None without hashes or input tokens, `block_hit_rate` without full blocks.
    """

    start_s: float
    requests: int
    input_tokens: int
    output_tokens: int
    arrival_rate_per_s: float
    token_hit_rate: float | None
    block_hit_rate: float | None


class OverTime(Struct, frozen=True):
    """Traffic and ideal hits over time, in windows of `window_s`."""

    window_s: float
    windows: tuple[TrafficWindow, ...]


class TypeContribution(Struct, frozen=True):
    """Requests and ideal hits of first or follow-up turns (`multi_turn`) of one type.

    `hit_tokens` are the `hit_blocks` in tokens. Shares are of the trace's requests and hit blocks;
    `hit_share` is None without hits.
    """

    type: str
    multi_turn: bool
    requests: int
    request_share: float
    hit_tokens: int
    hit_blocks: int
    hit_share: float | None


class Contribution(Struct, frozen=True):
    """Ideal hit rates of the whole trace, and each type's share of the requests and hits."""

    token_hit_rate: float | None
    block_hit_rate: float | None
    multi_turn_request_share: float
    multi_turn_hit_share: float | None
    rows: tuple[TypeContribution, ...]


def lengths(trace: Trace, sizes: Sequence[SizeSummaries], history: History) -> Lengths:
    """Return token lengths and arrival rates; they need no hashes."""
    everything, *kinds = sizes
    mean_tokens = {kind.turns: kind.tokens.mean for kind in kinds}
    return Lengths(
        requests=everything.requests,
        input_tokens=everything.input,
        output_tokens=everything.output,
        arrival_rate_per_s=share(everything.requests, trace.span_s),
        inter_arrival_cv=_inter_arrival_cv(history.arrival_s),
        single_turn_mean_tokens=mean_tokens.get("single"),
        multi_turn_mean_tokens=mean_tokens.get("multi"),
    )


def _inter_arrival_cv(arrival_s: Float64s) -> float | None:
    """Return the coefficient of variation of times between arrivals; None if their mean is 0."""
    intervals = len(arrival_s) - 1
    mean_s = float(arrival_s[-1] - arrival_s[0]) / max(intervals, 1)
    squares = sum(
        float(np.square(np.diff(arrival_s[part.start : part.stop + 1]) - mean_s).sum())
        for part in stretches(intervals)
    )
    return share(math.sqrt(squares / max(intervals, 1)), mean_s)


def request_sizes(sizes: Sequence[SizeSummaries]) -> tuple[RequestSize, ...]:
    """Return sizes (input + output) of all, single-turn and multi-turn requests."""
    return tuple(RequestSize(kind.turns, kind.requests, kind.blocks, kind.tokens) for kind in sizes)


def over_time(store: Store, trace: Trace, windows: Windows | None = None) -> OverTime:
    """Return traffic and ideal hit rate by window (by default about sixty round ones).

    Arrival rates divide by the window's whole length, also if the last one ends after the trace.
    """
    windows = windows or round_windows(trace)
    rows = store.rows("characterize/over_time", trace_id=trace.trace_id, **windows.parameters)
    return OverTime(
        window_s=windows.length_s,
        windows=tuple(
            TrafficWindow(
                start_s=windows.start_s(row["window_index"]),
                requests=row["requests"],
                input_tokens=row["input_tokens"],
                output_tokens=row["output_tokens"],
                arrival_rate_per_s=row["requests"] / windows.length_s,
                token_hit_rate=_token_hit_rate(trace, row),
                block_hit_rate=share(row["ideal_blocks"], row["full_blocks"]),
            )
            for row in rows
        ),
    )


def contribution(store: Store, trace: Trace) -> Contribution:
    """Return ideal hit rates, and requests and ideal hits by type, first and follow-up turns apart.

    Ideal hits follow the defaults of hit rates: full blocks, last-token rule, outputs carried.
    Source: KVCache Cache in the Wild (ATC'25), section 3 (single- and multi-turn requests).
    """
    rows = store.rows("characterize/contribution", trace_id=trace.trace_id)
    names = ("requests", "input_tokens", "full_blocks", "ideal_blocks")
    everything = {name: sum(row[name] for row in rows) for name in names}
    multi = {name: sum(row[name] for row in rows if row["multi_turn"]) for name in names}
    return Contribution(
        token_hit_rate=_token_hit_rate(trace, everything),
        block_hit_rate=share(everything["ideal_blocks"], everything["full_blocks"]),
        multi_turn_request_share=multi["requests"] / everything["requests"],
        multi_turn_hit_share=share(multi["ideal_blocks"], everything["ideal_blocks"]),
        rows=tuple(
            TypeContribution(
                type=row["type"],
                multi_turn=row["multi_turn"],
                requests=row["requests"],
                request_share=row["requests"] / everything["requests"],
                hit_tokens=row["ideal_blocks"] * trace.block_size,
                hit_blocks=row["ideal_blocks"],
                hit_share=share(row["ideal_blocks"], everything["ideal_blocks"]),
            )
            for row in rows
        ),
    )


def _token_hit_rate(trace: Trace, row: Mapping[str, int]) -> float | None:
    if not trace.has_hashes:
        return None
    return share(row["ideal_blocks"] * trace.block_size, row["input_tokens"])


def share(part: float, whole: float) -> float | None:
    """Return part / whole; None if `whole` is 0."""
    return part / whole if whole else None
