"""Time to first token: how it is distributed, median against tail, and its change by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvscope.core import units
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Outcome, Run
from kvscope.report import style
from kvscope.report.runs import SYMBOLS, policy_line
from kvscope.report.section import Section, Table
from kvscope.report.words import FEWEST, listed, significant

if TYPE_CHECKING:
    import plotly.graph_objects as go

SHOWN_CATEGORIES = 10  # more bars cannot be read

_UNCHANGED = 0.01  # of the time before: less is no change
_NAMED = 6  # categories in a sentence
_SHARES = np.concatenate([np.linspace(0, 0.9, 181), np.linspace(0.9, 1, 101)[1:]])
_MARKED = (0.5, 0.9, 0.95, 0.99)
_BARS = (("p50", style.SKY), ("p95", style.BLUE), ("p99", style.PURPLE))
_ROW_PX = 40
_HOLLOW = {"dash": "circle-open", "longdash": "square-open"}
_FILLED = {"solid": "circle", "dot": "square", "dashdot": "diamond"}

ByCategory = Mapping[str, Outcome]


def by_category(run: Run) -> dict[str, Outcome]:
    """Return the outcome of each category's requests."""
    return {part.category: part.outcome for part in run.parts if part.category is not None}


def category_section(
    title: str,
    before: ByCategory,
    after: ByCategory,
    times: Callable[[Outcome], Percentiles] = lambda outcome: outcome.ttft_ms,
) -> Section:
    """Return TTFT by category under LRU (`before`) and another policy, most requests first.

    `times` picks the view of TTFT.
    """
    before = dict(sorted(before.items(), key=lambda item: -item[1].requests))
    lru = {name: times(outcome) for name, outcome in before.items()}
    other = {name: times(after[name]) for name in before}
    rows = tuple(
        (
            name,
            units.format_count(outcome.requests),
            *(
                significant(getattr(side[name], rank))
                for rank in ("p50", "p95")
                for side in (lru, other)
            ),
        )
        for name, outcome in before.items()
    )
    columns = ("category", "requests", "p50 LRU (ms)", "p50 then", "p95 LRU", "p95 then")
    note = f"p95 of fewer than {FEWEST} requests is mostly chance"
    return Section(
        "TTFT by category",
        tuple(_moves(rank, lru, other) for rank in ("p50", "p95")),
        tables=(Table(title, columns, rows, note),),
        figures=(partial(changes_chart, title, lru, other),),
    )


def _moves(rank: str, lru: Mapping[str, Percentiles], other: Mapping[str, Percentiles]) -> str:
    changes = {name: _change(lru[name], other[name], rank) for name in lru}
    lower = [name for name, change in changes.items() if change < -_UNCHANGED]
    higher = [name for name, change in changes.items() if change > _UNCHANGED]
    falls, rises = (
        listed(names, _NAMED, "others") if names else "no category" for names in (lower, higher)
    )
    return f"{rank} falls for {falls}; it rises for {rises}."


def _change(now: Percentiles, then: Percentiles, rank: str) -> float:
    before: float = getattr(now, rank)
    after: float = getattr(then, rank)
    return (after - before) / before if before else after - before


def changes_chart(
    title: str, before: Mapping[str, Percentiles], after: Mapping[str, Percentiles]
) -> go.Figure:
    """Build the change of TTFT (ms) by category and percentile, of the first SHOWN_CATEGORIES.

    Bars to the left of 0 are faster, bars to the right are slower.
    """
    names = list(before)[:SHOWN_CATEGORIES]
    height = 170 + _ROW_PX * len(names)
    chart = style.figure(title, "change of TTFT (ms)", "type, turn", height=height)
    for rank, colour in _BARS:
        chart.add_bar(
            y=[style.label(name) for name in names],
            x=[getattr(after[name], rank) - getattr(before[name], rank) for name in names],
            name=rank,
            orientation="h",
            marker_color=colour,
            hovertemplate=f"%{{y}}: {rank} %{{x:+,.4~g}} ms<extra></extra>",
        )
    chart.update_yaxes(type="category", autorange="reversed", automargin=True)
    chart.update_layout(legend_traceorder="normal")
    return chart


@dataclass(frozen=True, slots=True)
class Distribution:
    """`value_ms[i]` is the least value that `share[i]` of the requests do not exceed."""

    name: str
    policy: str
    share: tuple[float, ...]
    value_ms: tuple[float, ...]


def distribution(name: str, policy: str, value_ms: NDArray[np.float64]) -> Distribution:
    """Return the distribution of values, thinned to a few hundred points (nearest rank)."""
    if not len(value_ms):
        return Distribution(name, policy, (), ())
    values = np.quantile(value_ms, _SHARES, method="inverted_cdf")
    return Distribution(name, policy, tuple(_SHARES.tolist()), tuple(values.tolist()))


def cdf_chart(
    distributions: Sequence[Distribution], capacity_blocks: int, slo_s: float | None
) -> go.Figure:
    """Build the share of requests with a TTFT up to each value, percentiles marked."""
    title = f"TTFT at {capacity_blocks:,} blocks"
    chart = style.figure(title, "TTFT (ms)", "share of requests", height=430)
    seen: Counter[str] = Counter()
    for spread in distributions:
        line, symbol = policy_line(spread.policy), SYMBOLS[seen[spread.policy] % len(SYMBOLS)]
        seen[spread.policy] += 1
        chart.add_scatter(
            x=spread.value_ms,
            y=spread.share,
            name=style.label(spread.name),
            legendgroup=spread.name,
            mode="lines",
            line={**line, "shape": "hv"},
            hovertemplate="%{y:.1%} of the requests within %{x:.3~g} ms",
        )
        if not spread.share:
            continue
        marked = [spread.value_ms[int(np.searchsorted(_SHARES, at - 1e-9))] for at in _MARKED]
        chart.add_scatter(
            x=marked,
            y=_MARKED,
            name=style.label(spread.name),
            legendgroup=spread.name,
            showlegend=False,
            mode="markers",
            marker={"color": line["color"], "size": 8, "symbol": symbol},
            text=[f"p{at:.0%}".rstrip("%") for at in _MARKED],
            hovertemplate="%{text}: %{x:.3~g} ms",
        )
    if slo_s is not None:
        style.mark(chart, slo_s * 1e3, "SLO")
    style.logarithmic(chart)
    chart.update_yaxes(tickformat=".0%", range=[0, 1.01])
    return chart


@dataclass(frozen=True, slots=True)
class Point:
    """A policy with its parameters (`label`), its median, and its tail; both in ms."""

    policy: str
    label: str
    median_ms: float
    tail_ms: float


def trade_off_chart(title: str, median: str, tail: str, points: Sequence[Point]) -> go.Figure:
    """Build `tail` against `median`: a colour a policy, and the front that no point beats."""
    chart = style.figure(title, f"{median} (ms)", f"{tail} (ms)")
    for name in dict.fromkeys(point.policy for point in points):
        alike = [point for point in points if point.policy == name]
        chart.add_scatter(
            x=[point.median_ms for point in alike],
            y=[point.tail_ms for point in alike],
            text=[style.label(point.label) for point in alike],
            name=name,
            mode="markers",
            marker={"color": policy_line(name)["color"], "size": 9, "symbol": symbol(name)},
            hovertemplate=f"%{{text}}: {median} %{{x:.4~g}} ms, {tail} %{{y:.4~g}} ms"
            "<extra></extra>",
        )
    best = front(points)
    chart.add_scatter(
        x=[point.median_ms for point in best],
        y=[point.tail_ms for point in best],
        name="Pareto front",
        mode="lines",
        line={"color": style.GREY, "dash": "dot"},
        hoverinfo="skip",
    )
    return chart


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats both in the median and in the tail."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.median_ms, point.tail_ms)):
        if not best or point.tail_ms < best[-1].tail_ms:
            best.append(point)
    return best


def symbol(policy: str) -> str:
    """Return the marker of a policy: hollow for oracles, whose lines are dashed."""
    return (_HOLLOW | _FILLED)[str(policy_line(policy)["dash"])]
