"""All statistics of a trace, from traffic to the variation between windows and days.

Policies can be tuned on past values of quantities that vary little; others need refits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from msgspec import Struct

from kvscope.characterize.distributions import DAY_S, Windows, day_windows, equal_windows, quantiles
from kvscope.characterize.history import History, category_rows, load_history, load_sizes
from kvscope.characterize.lifetimes import (
    Lifetimes,
    ReuseGaps,
    ReuseHazard,
    WorkingSet,
    lifetimes,
    reuse_gaps,
    reuse_hazard,
    working_set,
)
from kvscope.characterize.sources import Skew, Sources, skew, sources
from kvscope.characterize.spatial import CountDeciles, Spatial, start_spatial
from kvscope.characterize.traffic import (
    Contribution,
    Lengths,
    OverTime,
    RequestSize,
    contribution,
    lengths,
    over_time,
    request_sizes,
    share,
)
from kvscope.characterize.turns import (
    ConversationTurns,
    NextTurns,
    next_turns,
    next_turns_over_time,
    turns,
)
from kvscope.core.arrays import Int64s
from kvscope.core.background import in_background
from kvscope.core.percentiles import Quantiles
from kvscope.core.trace import Trace
from kvscope.store.checks import require_sound
from kvscope.store.db import Store

Quantity = Literal["ideal_hit_rate", "reuse_gap_p50_s", "reuse_gap_p80_s", "next_turn_probability"]


class Variation(Struct, frozen=True):
    """Mean and standard deviation of one quantity over the `windows` that have a value for it.

    `variation` is the coefficient of variation, deviation / mean; None if the mean is 0.
    """

    quantity: Quantity
    category: str | None
    windows: int
    mean: float
    deviation: float
    variation: float | None


class Stability(Struct, frozen=True):
    """Variation between equal windows, and between days if the trace spans several."""

    window_s: float
    between_windows: tuple[Variation, ...]
    between_days: tuple[Variation, ...]


WINDOWS = 10

Series = tuple[Quantity, str | None, Sequence[float | None]]


def stability(store: Store, trace: Trace, history: History) -> Stability:
    """Return mean, deviation and coefficient of variation between windows and between days.

    Quantities: token-weighted ideal hit rate; by category, p50 and p80 reuse gap (in the window of
    the reuse) and next-turn probability. Of ten equal windows, the first (nothing to reuse yet) and
    the last (next turns not seen) are left out; all days count, if there are two or more. Windows
    without a value do not count, and with one value the deviation is 0. With few requests per
    window, chance alone causes variation.
    """
    windows, days = equal_windows(trace, WINDOWS), day_windows(trace)
    inner = slice(1, windows.count - 1) if windows.count > 2 else slice(None)
    several = trace.span_s > DAY_S and days.count > 1
    return Stability(
        window_s=windows.length_s,
        between_windows=tuple(_variations(store, trace, history, windows, inner)),
        between_days=(
            tuple(_variations(store, trace, history, days, slice(None))) if several else ()
        ),
    )


def _variations(
    store: Store, trace: Trace, history: History, windows: Windows, selection: slice
) -> Iterator[Variation]:
    for quantity, category, values in _series(store, trace, history, windows):
        known = [value for value in values[selection] if value is not None]
        if known:
            mean, deviation = float(np.mean(known)), float(np.std(known))
            variation = deviation / mean if mean else None
            yield Variation(quantity, category, len(known), mean, deviation, variation)


def _series(store: Store, trace: Trace, history: History, windows: Windows) -> Iterator[Series]:
    """Yield each quantity, its category (None: all requests), and its values by window."""
    rates = [window.token_hit_rate for window in over_time(store, trace, windows).windows]
    yield "ideal_hit_rate", None, rates
    groups = len(history.categories)
    category_of = history.category_of(history.prev)

    def cell(part: slice) -> Int64s:
        window = windows.index(history.arrival_s[history.request[part]])
        return category_of(part) * windows.count + window

    at = quantiles(history.gap, cell, groups * windows.count, np.array([50, 80]))
    for category, gaps in zip(history.categories, at.reshape(groups, -1, 2), strict=True):
        p50, p80 = ([None if math.isnan(gap) else gap for gap in row] for row in gaps.T.tolist())
        yield "reuse_gap_p50_s", category, p50
        yield "reuse_gap_p80_s", category, p80
    for category, values in next_turns_over_time(trace, windows, history).items():
        yield "next_turn_probability", category, values


class Category(Struct, frozen=True):
    """Statistics of one category; gaps or lifetimes are None if it has none.

    `share` is its share of all requests, `hit_share` of all hits of an infinite cache, in blocks
    (None if there are none), `multi_turn_share` that of follow-up turns among its requests.
    `next_turn_probability` is over settled requests (see `next_turns`), over all if none are
    settled; None without a lineage.
    """

    category: str
    type: str
    turn_bucket: str
    requests: int
    share: float
    multi_turn_share: float
    mean_input_tokens: float
    mean_output_tokens: float
    reuse_gap_s: Quantiles | None
    lifetime_s: Quantiles | None
    next_turn_probability: float | None
    hit_share: float | None


@dataclass(frozen=True, slots=True)
class Characterization:
    """All statistics of a trace; those of reuse are None without hashes, turns without lineage."""

    trace: Trace
    lengths: Lengths
    request_sizes: tuple[RequestSize, ...]
    over_time: OverTime
    contribution: Contribution
    categories: tuple[Category, ...]
    turns: ConversationTurns | None
    next_turns: NextTurns | None
    sources: Sources | None
    skew: Skew | None
    reuse_gaps: ReuseGaps | None
    reuse_hazard: ReuseHazard | None
    lifetimes: Lifetimes | None
    spatial: Spatial | None
    working_set: WorkingSet | None
    stability: Stability


STEPS = 13
Step = Callable[[str], None]
T = TypeVar("T")


def start_characterization(
    store: Store,
    trace: Trace,
    count_deciles: CountDeciles | None = None,
    *,
    step: Step | None = None,
    work: Path | None = None,
) -> Callable[[], Characterization]:
    """Read the trace's tables and start to compute; return a function that waits for the result.

    `count_deciles` returns the counts of `decile_histogram` for a mask of follow-up turns; None:
    from the trace's paths, loaded here. With `work`, runs of reuse and groups of blocks stay in
    files there. `step` gets each step's name before it (STEPS calls); its errors end the work.
    """

    def run(name: str, compute: Callable[..., T], *arguments: object) -> T:
        if step is not None:
            step(name)
        return compute(*arguments)

    require_sound(store, trace)
    with store.in_row_order():
        of_category = run("categories", category_rows, store, trace)
        names = [row["category"] for row in of_category]
        history = run("touches", load_history, store, trace, work, names)
        # Computed meanwhile: these leave the store to the others.
        of_history = in_background(_of_history, trace, history)
        sizes = run("sizes of requests", load_sizes, store, trace, work)
        places = run(
            "places in the prompt", start_spatial, store, trace, count_deciles, sizes, history
        )
        following = run("next turns", next_turns, trace, history)
        changes = run("stability", stability, store, trace, history)
        reuse_sources = run("sources of reuse", sources, store, trace, history)
        reuse_skew = run("skew", skew, store, trace)
        token_lengths = run("lengths", lengths, trace, sizes, history)
        traffic = run("traffic over time", over_time, store, trace)
        contributions = run("contributions", contribution, store, trace)
        conversations = run("turns", turns, store, trace)

    def finish() -> Characterization:
        gaps, hazard, lives, alive = run("reuse gaps and lifetimes", of_history.result)
        return Characterization(
            trace=trace,
            lengths=token_lengths,
            request_sizes=request_sizes(sizes),
            over_time=traffic,
            contribution=contributions,
            categories=_categories(of_category, gaps, lives, following),
            turns=conversations,
            next_turns=following,
            sources=reuse_sources,
            skew=reuse_skew,
            reuse_gaps=gaps,
            reuse_hazard=hazard,
            lifetimes=lives,
            spatial=places.result(),
            working_set=alive,
            stability=changes,
        )

    return finish


def _of_history(
    trace: Trace, history: History
) -> tuple[ReuseGaps | None, ReuseHazard | None, Lifetimes | None, WorkingSet | None]:
    return (
        reuse_gaps(trace, history),
        reuse_hazard(trace, history),
        lifetimes(trace, history),
        working_set(trace, history),
    )


def _categories(
    rows: Sequence[dict[str, Any]],
    gaps: ReuseGaps | None,
    lives: Lifetimes | None,
    following: NextTurns | None,
) -> tuple[Category, ...]:
    """Return one row per category, ordered by type and turn.

    Gaps belong to the category of the touch before the reuse, lifetimes to that of the first touch.
    A category has either first or later turns, so its `multi_turn_share` is 0 or 1.
    """
    requests = sum(row["requests"] for row in rows)
    hits = sum(row["ideal_blocks"] for row in rows)
    gap_of = {g.category: g.gap_s.quantiles for g in gaps.by_category} if gaps else {}
    life_of = {g.category: g.lifetime_s.quantiles for g in lives.by_category} if lives else {}
    next_of: dict[str, float | None] = {}
    for group in following.by_category if following else ():
        settled = group.next_turn.settled_probability
        next_of[group.category] = group.next_turn.probability if settled is None else settled
    return tuple(
        Category(
            category=row["category"],
            type=row["type"],
            turn_bucket=row["turn_bucket"],
            requests=row["requests"],
            share=row["requests"] / requests,
            multi_turn_share=row["multi_turn_requests"] / row["requests"],
            mean_input_tokens=row["input_tokens"] / row["requests"],
            mean_output_tokens=row["output_tokens"] / row["requests"],
            reuse_gap_s=gap_of.get(row["category"]),
            lifetime_s=life_of.get(row["category"]),
            next_turn_probability=next_of.get(row["category"]),
            hit_share=share(row["ideal_blocks"], hits),
        )
        for row in rows
    )
