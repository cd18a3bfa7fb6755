"""Time to first token: how it is distributed, median against tail, and its change by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct

from kvscope.app.requests import BASELINE
from kvscope.app.simulate import Simulation
from kvscope.core.arrays import Float64s
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Outcome, Run
from kvscope.latency.profile import LatencyProfile
from kvscope.replay.settings import setting_profile
from kvscope.report import style
from kvscope.report.runs import SYMBOLS, policy_line, run_columns
from kvscope.report.section import Columns, Section, tabulate
from kvscope.report.words import count, large, left_out, listed, significant
from kvscope.tuning.search import XI

XiPoints = Sequence[tuple[float, float]]

_ABOUT = (
    "xi: the tokens that the next turn may compute and still meet the SLO.",
    "A larger xi evicts more of each history, so that more conversations fit.",
)
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
    """Return the outcome of each category's requests."""
    return {part.category: part.outcome for part in run.parts if part.category is not None}


def category_section(
    title: str,
    before: ByCategory,
    after: ByCategory,
    times: Callable[[Outcome], Percentiles] = lambda outcome: outcome.ttft_ms,
) -> Section:
    """Return TTFT by category under LRU (`before`) and another policy, most requests first.

    Small categories are left out. `times` picks the view of TTFT.
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
    chart = partial(changes_chart, title, lru, other)
    return Section.of("TTFT by category", *moves, table, chart)


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
    """Build the change of TTFT (ms) by category and percentile, of the first SHOWN_CATEGORIES.

    Bars to the left of 0 are faster, bars to the right are slower.
    """
    names = list(before)[:SHOWN_CATEGORIES]
    changes = {
        rank: [getattr(after[name], rank) - getattr(before[name], rank) for name in names]
        for rank in ("p50", "p95", "p99")
    }
    height, hover = 170 + _ROW_PX * len(names), "%{y}: %{x:+,.4~g} ms"
    x, y = "change of TTFT (ms)", "type, turn"
    chart = style.bars(title, x, y, names, changes, height=height, hover=hover)
    return chart.update_xaxes(tickformat=",~r")


class Distribution(Struct, frozen=True):
    """`value_ms[i]` is the least value that the share _SHARES[i] of the requests do not exceed."""

    name: str
    line: Mapping[str, object]
    value_ms: tuple[float, ...]


def distribution(
    name: str, policy: str, value_ms: Float64s, line: Mapping[str, object] | None = None
) -> Distribution:
    """Return the distribution of values, thinned to a few hundred points (nearest rank).

    Its line is that of `policy`, unless another one is given.
    """
    values = np.quantile(value_ms, _SHARES, method="inverted_cdf") if len(value_ms) else value_ms
    return Distribution(name, line or policy_line(policy), tuple(values.tolist()))


def distributions_chart(
    title: str, distributions: Sequence[Distribution], slo_s: float | None, *, height: int = 380
) -> style.Figure:
    """Build the share of requests with a TTFT up to each value."""
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
    """Build the share of requests with a TTFT up to each value, percentiles marked."""
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
    """A policy with its parameters (`label`), its tail, and what pays for that; both in ms."""

    policy: str
    label: str
    price_ms: float
    tail_ms: float


def trade_off_chart(
    title: str, price: str, tail: str, points: Sequence[Point], chosen: str | None = None
) -> style.Figure:
    """Build `tail` against `price`: a colour a policy, and the front that no point beats.

    A ring marks the point with the label `chosen`.
    """
    chart = style.figure(title, f"{price} (ms)", f"{tail} (ms)")
    hover = f"%{{text}}: {price} %{{x:.4~g}} ms, {tail} %{{y:.4~g}} ms<extra></extra>"

    def add(shown: Sequence[Point], name: str, **look: object) -> None:
        x, y = [point.price_ms for point in shown], [point.tail_ms for point in shown]
        text = [style.label(point.label) for point in shown]
        chart.add_scatter(x=x, y=y, text=text, name=name, **look)

    for name in dict.fromkeys(point.policy for point in points):
        alike = [point for point in points if point.policy == name]
        marker = {"color": policy_line(name)["color"], "size": 9, "symbol": symbol(name)}
        add(alike, name, mode="markers", marker=marker, hovertemplate=hover)
    dots = {"color": style.GREY, "dash": "dot"}
    add(front(points), "Pareto front", mode="lines", line=dots, hoverinfo="skip")
    ring = {"color": style.VERMILION, "size": 18, "symbol": "circle-open", "line": {"width": 2}}
    if marked := [point for point in points if point.label == chosen][:1]:
        add(marked, "chosen", mode="markers", marker=ring, hoverinfo="skip")
    return chart


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats both in the price and in the tail."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.price_ms, point.tail_ms)):
        if not best or point.tail_ms < best[-1].tail_ms:
            best.append(point)
    return best


def symbol(policy: str) -> str:
    """Return the marker of a policy: hollow for oracles, whose lines are dashed."""
    return (_HOLLOW | _FILLED)[str(policy_line(policy)["dash"])]


def by_xi(runs: Sequence[Run]) -> dict[float, Run]:
    """Return the runs of a policy that has a xi, by its value, ascending."""
    with_xi = [run for run in runs if XI in run.params]
    return {run.params[XI]: run for run in sorted(with_xi, key=lambda run: run.params[XI])}


def xi_section(simulation: Simulation, percentile: str, at_xi: float) -> Section:
    """Return a percentile of TTFT against xi, `at_xi` marked, and every replay as a row.

    `percentile` is a field of `Percentiles`. One policy of the simulation has a xi, at one
    capacity.
    """
    runs = list(by_xi(simulation.runs).values())
    table = tabulate(
        f"{runs[0].policy} at {count(simulation.capacities[0])} blocks, by xi",
        runs,
        {
            **xi_columns(setting_profile(simulation.setting), lambda run: run.params[XI]),
            **run_columns(runs),
        },
        note="xi (ms): the TTFT of a prompt of that many tokens, none of them cached",
    )
    chart = partial(percentile_chart, simulation, percentile, at_xi)
    return Section.of("Effect of xi", *_ABOUT, table, chart)


def xi_columns(profile: LatencyProfile, xi: Callable[[Any], float]) -> Columns:
    """Return the xi_columns of the xi of a row: in tokens, and as the time that they take."""
    return {
        "xi (tokens)": lambda row: count(xi(row)),
        "xi (ms)": lambda row: significant(float(profile.ttft_s(int(xi(row)), 0)) * 1e3),
    }


def percentile_chart(simulation: Simulation, percentile: str, at_xi: float) -> style.Figure:
    """Build a percentile of TTFT against xi, with LRU and the SLO as levels."""

    def ttft_ms(run: Run) -> float:
        return float(getattr(run.outcome.ttft_ms, percentile))

    runs = by_xi(simulation.runs)
    policy = next(iter(runs.values())).policy
    title = f"{percentile} TTFT against xi at {count(simulation.capacities[0])} blocks"
    points = {policy: [(xi, ttft_ms(run)) for xi, run in runs.items()]}
    chart = sensitivity_chart(title, f"{percentile} TTFT", points)
    for run in simulation.runs:
        if run.policy == BASELINE:
            style.level(chart, ttft_ms(run), BASELINE)
    style.slo_level(chart, simulation.setting.slo_s)
    if at_xi in runs:
        style.point(chart, at_xi, ttft_ms(runs[at_xi]), "chosen")
    return chart


def sensitivity_chart(title: str, measure: str, by_policy: Mapping[str, XiPoints]) -> style.Figure:
    """Build `measure` (ms) against xi (tokens): a line of points (xi, ms) for each policy."""
    series = []
    for name, points in by_policy.items():
        xi, ms = zip(*points, strict=True)
        hover = f"{name}, xi %{{x:,.0f}} tokens: {measure} %{{y:.4~g}} ms<extra></extra>"
        options = {**style.MARKED, "hovertemplate": hover}
        series.append(style.Series(name, xi, ms, policy_line(name), options))
    return style.lines(title, "xi (tokens)", f"{measure} (ms)", series, shares="")
