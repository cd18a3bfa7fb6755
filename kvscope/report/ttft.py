"""Time to first token: distributions, median against tail, and changes by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import Struct

from kvscope.app.requests import BASELINE
from kvscope.core.arrays import Float64s
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Outcome, Run
from kvscope.report import style
from kvscope.report.runs import SYMBOLS, policy_line
from kvscope.report.section import Section, tabulate
from kvscope.report.words import count, large, left_out, listed, significant

SHOWN_CATEGORIES = 10  # more bars cannot be read

_UNCHANGED = 0.01  # of the time before: less is no change
_NAMED = 6  # categories in a sentence
_SHARES = np.concatenate([np.linspace(0, 0.9, 181), np.linspace(0.9, 1, 101)[1:]])
_MARKED = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_ROW_PX = 40
_HOLLOW = {"dash": "circle-open", "longdash": "square-open"}
_FILLED = {"solid": "circle", "dot": "square", "dashdot": "diamond"}

ByCategory = Mapping[str, Outcome]


def by_category(run: Run) -> dict[str, Outcome]:
    """Return the outcome of each category's requests, by category."""
    return {part.category: part.outcome for part in run.parts if part.category is not None}


def category_section(
    title: str,
    before: ByCategory,
    after: ByCategory,
    times: Callable[[Outcome], Percentiles] = lambda outcome: outcome.ttft_ms,
) -> Section:
    """Return TTFT by category under LRU (`before`) and another policy, most requests first.

    Small categories are left out. `times` returns unloaded or queued TTFT of an outcome.
    """
    shown = large(before, lambda name: before[name].requests)
    lru = {name: times(before[name]) for name in shown}
    other = {name: times(after[name]) for name in shown}
    table = tabulate(
        title,
        shown,
        {
            "category": str,
            "requests": lambda name: count(before[name].requests),
            "p50 LRU (ms)": lambda name: significant(lru[name].p50),
            "p50 then": lambda name: significant(other[name].p50),
            "p95 LRU": lambda name: significant(lru[name].p95),
            "p95 then": lambda name: significant(other[name].p95),
        },
        left_out(list(before), shown),
    )
    moves = (_moves(rank, lru, other) for rank in ("p50", "p95"))
    return Section.of("TTFT by category", *moves, table, partial(changes_chart, title, lru, other))


def _moves(rank: str, lru: Mapping[str, Percentiles], other: Mapping[str, Percentiles]) -> str:
    before, after = (
        {name: getattr(of, rank) for name, of in side.items()} for side in (lru, other)
    )
    moved = [name for name in lru if abs(after[name] - before[name]) > _UNCHANGED * before[name]]
    if not moved:
        return f"{rank} changes by at most {_UNCHANGED:.0%} in every category."
    lower = [name for name in moved if after[name] < before[name]]
    higher = [name for name in moved if after[name] > before[name]]
    falls, rises = (
        listed(names, _NAMED, "others") if names else "no category" for names in (lower, higher)
    )
    return f"{rank} falls for {falls}; it rises for {rises}."


def changes_chart(
    title: str, before: Mapping[str, Percentiles], after: Mapping[str, Percentiles]
) -> style.Figure:
    """Draw the change of TTFT percentiles, for the first ten categories of `before`.

    Bars left of 0 are faster, bars right of it slower; the axis ends at a factor of two at most.
    """
    names = list(before)[:SHOWN_CATEGORIES]

    def change(rank: str, name: str) -> float:
        old, new = (getattr(side[name], rank) for side in (before, after))
        return new / old - 1 if old else 0.0

    changes = {rank: [change(rank, name) for name in names] for rank in ("p50", "p95", "p99")}
    height, hover = 170 + _ROW_PX * len(names), "%{y}: %{x:+.1%}"
    x, y = "change of TTFT, as a share of LRU's", "type, turn"
    chart = style.bars(title, x, y, names, changes, height=height, hover=hover)
    largest = max((abs(value) for values in changes.values() for value in values), default=0.0)
    reach = min(max(largest, _UNCHANGED), 1.0)  # one bar would flatten all others
    return chart.update_xaxes(tickformat="+.2~%", range=[-1.05 * reach, 1.05 * reach])


class Distribution(Struct, frozen=True):
    """TTFT quantiles: a share _SHARES[i] of the requests has at most `value_ms[i]`."""

    name: str
    line: Mapping[str, object]
    value_ms: tuple[float, ...]


def distribution(
    name: str, policy: str, value_ms: Float64s, line: Mapping[str, object] | None = None
) -> Distribution:
    """Return the distribution of times, thinned to a few hundred points (nearest rank).

    It is drawn in the style of `policy`, unless `line` is given.
    """
    values = np.quantile(value_ms, _SHARES, method="inverted_cdf") if len(value_ms) else value_ms
    return Distribution(name, line or policy_line(policy), tuple(values.tolist()))


def distributions_chart(
    title: str, distributions: Sequence[Distribution], slo_s: float | None, *, height: int = 380
) -> style.Figure:
    """Draw the distributions (CDF), and the SLO if given."""
    hover = "%{y:.1%} of the requests within %{x:.3~g} ms"
    series = []
    for spread in distributions:
        shares, steps = _SHARES[: len(spread.value_ms)].tolist(), {**spread.line, "shape": "hv"}
        options = {"legendgroup": spread.name, "hovertemplate": hover}
        series.append(style.Series(spread.name, spread.value_ms, shares, steps, options))
    chart = style.lines(title, "TTFT (ms)", "share of requests", series, height=height)
    if slo_s is not None:
        style.mark(chart, slo_s * 1e3, "SLO")
    return chart


def cdf_chart(
    distributions: Sequence[Distribution], capacity_blocks: int, slo_s: float | None
) -> style.Figure:
    """Draw the distributions (CDF) at a capacity, with percentiles marked."""
    title = f"TTFT at {capacity_blocks:,} blocks"
    chart = distributions_chart(title, distributions, slo_s, height=430)
    alike: Counter[str] = Counter()
    ranks = np.searchsorted(_SHARES, np.array(list(_MARKED.values())) - 1e-9)
    look = {"mode": "markers", "showlegend": False, "hovertemplate": "%{text}: %{x:.3~g} ms"}
    for spread in filter(lambda spread: spread.value_ms, distributions):
        symbol = SYMBOLS[alike[str(spread.line)] % len(SYMBOLS)]
        alike[str(spread.line)] += 1
        chart.add_scatter(
            x=[spread.value_ms[rank] for rank in ranks],
            y=list(_MARKED.values()),
            text=list(_MARKED),
            name=style.label(spread.name),
            legendgroup=spread.name,
            marker={"color": spread.line["color"], "size": 8, "symbol": symbol},
            **look,
        )
    return chart


class Point(Struct, frozen=True):
    """A policy (`label`), its tail TTFT, and the median or prefill time traded (`price_ms`)."""

    policy: str
    label: str
    price_ms: float
    tail_ms: float


def trade_off_chart(
    title: str, price: str, tail: str, points: Sequence[Point], chosen: str | None = None
) -> style.Figure:
    """Draw `tail` against `price`, coloured by policy, with the Pareto front.

    A ring marks the point with the label `chosen`.
    """
    chart = style.figure(title, f"{price} (ms)", f"{tail} (ms)")
    hover = f"%{{text}}: {price} %{{x:.4~g}} ms, {tail} %{{y:.4~g}} ms<extra></extra>"

    def add(shown: Sequence[Point], name: str, **look: object) -> None:
        x, y = [point.price_ms for point in shown], [point.tail_ms for point in shown]
        text = [style.label(point.label) for point in shown]
        chart.add_scatter(x=x, y=y, text=text, name=name, **look)

    ordered = sorted(points, key=lambda point: point.policy == BASELINE)  # LRU above all
    for name in dict.fromkeys(point.policy for point in ordered):
        alike = [point for point in points if point.policy == name]
        marker = {"color": policy_line(name)["color"], "size": 9, "symbol": symbol(name)}
        if name == BASELINE:
            marker |= {"size": 14, "symbol": "diamond-open", "line": {"width": 3}}
        add(alike, name, mode="markers", marker=marker, hovertemplate=hover)
    dots = {"color": style.GREY, "dash": "dot"}
    add(front(points), "Pareto front", mode="lines", line=dots, hoverinfo="skip")
    ring = {"color": style.VERMILION, "size": 18, "symbol": "circle-open", "line": {"width": 2}}
    if marked := [point for point in points if point.label == chosen][:1]:
        add(marked, "chosen", mode="markers", marker=ring, hoverinfo="skip")
    for axis in "xy":
        style.logarithmic(chart, axis)
    return chart


def front(points: Sequence[Point]) -> list[Point]:
    """Return the Pareto front by rising price: each tail is below those of all points before."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.price_ms, point.tail_ms)):
        if not best or point.tail_ms < best[-1].tail_ms:
            best.append(point)
    return best


def symbol(policy: str) -> str:
    """Return the marker of a policy: hollow for oracles, whose lines are dashed."""
    return (_HOLLOW | _FILLED)[str(policy_line(policy)["dash"])]
