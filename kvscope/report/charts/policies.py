"""Charts of policies beside each other: a colour a policy, the same in every chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import plotly.graph_objects as go

from kvscope.app.requests import BASELINE
from kvscope.app.simulate import Simulation
from kvscope.core.runs import Run
from kvscope.policies.registry import POLICIES
from kvscope.replay.policy_options import CONTENDERS
from kvscope.report.charts import style
from kvscope.report.run_names import hit_rate, is_plain_lru, names

_CURVE_POINTS = 200
_SEEN_MOST = (BASELINE, *CONTENDERS.split(","))  # so they get solid lines
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross", "triangle-down")


def policy_line(policy: str) -> dict[str, object]:
    """Colour and dash of a policy; those that know the future are dashed, and no others."""
    hindsight = any(one.name == policy and one.hindsight for one in POLICIES)
    known = [one.name for one in POLICIES if one.hindsight == hindsight]
    likes = [name for name in _SEEN_MOST if name in known]
    likes += [name for name in known if name not in likes]
    number = likes.index(policy) if policy in likes else len(likes)
    rounds = number // len(style.SERIES)
    dashes = ("dash", "longdash") if hindsight else ("solid", "dot", "dashdot")
    colour = style.SERIES[number % len(style.SERIES)]
    return {"color": colour, "dash": dashes[rounds % len(dashes)], "width": 2}


def hit_rates(found: Simulation) -> go.Figure:
    """Hit rate over capacity: LRU at every capacity, the others where they were replayed."""
    weight = found.setting.definition.weight
    chart = style.figure("Hit rate by policy", "capacity (blocks)", f"hit rate by {weight}")
    curve = found.curve
    if curve is not None:
        low, high = found.capacities[0], found.capacities[-1]
        grid = np.unique(np.geomspace(max(low, 1), max(high, 1), _CURVE_POINTS).astype(np.int64))
        chart.add_scatter(
            x=grid.tolist(),
            y=curve.rate(grid).tolist(),
            name=BASELINE,
            mode="lines",
            line=policy_line(BASELINE),
        )
        style.level(chart, curve.ideal, f"infinite cache {curve.ideal:.1%}")
    for name, runs, marker in _series(found):
        if curve is not None and is_plain_lru(runs[0]):
            continue  # the line is there already, exact at every capacity
        _add(chart, name, runs, marker, lambda run: hit_rate(found.setting, run.outcome))
    style.logarithmic(chart, counts=True)
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def ttft(found: Simulation, percentile: str) -> go.Figure:
    """A percentile of the unloaded time to first token over capacity."""
    chart = style.figure(f"TTFT, {percentile}", "capacity (blocks)", f"{percentile} TTFT (ms)")
    for name, runs, marker in _series(found):
        _add(chart, name, runs, marker, lambda run: getattr(run.outcome.ttft_ms, percentile))
    if found.setting.slo_s is not None:
        style.level(chart, found.setting.slo_s * 1e3, "SLO")
    style.logarithmic(chart, counts=True)
    chart.update_yaxes(rangemode="tozero")
    return chart


def tail_excess(found: Simulation) -> go.Figure:
    """Tail excess latency over capacity."""
    chart = style.figure("Tail excess latency", "capacity (blocks)", "TEL (s)")
    for name, runs, marker in _series(found):
        _add(chart, name, runs, marker, lambda run: (run.outcome.tel_ms or 0.0) / 1e3)
    style.logarithmic(chart, counts=True)
    chart.update_yaxes(rangemode="tozero")
    return chart


def over_time(found: Simulation, capacity_blocks: int) -> go.Figure:
    """Hit rate over time at one capacity."""
    title = f"Hit rate over time at {capacity_blocks:,} blocks"
    chart = style.figure(title, "time (h)", "hit rate")
    for name, runs, _ in _series(found):
        for run in runs:
            if run.capacity_blocks != capacity_blocks:
                continue
            parts = [part for part in run.parts if part.start_s is not None]
            chart.add_scatter(
                x=[(part.start_s or 0.0) / 3600 for part in parts],
                y=[hit_rate(found.setting, part.outcome) for part in parts],
                name=name,
                line=policy_line(run.policy),
            )
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def trade_off(found: Simulation, capacity_blocks: int) -> go.Figure:
    """The tail against the median, at one capacity: every run as a point."""
    from kvscope.report.charts.trade_off import Point, trade_off

    name = names(found.runs)
    points = [
        Point(run.policy, name(run), run.outcome.ttft_ms.p50, run.outcome.ttft_ms.p95)
        for run in found.at(capacity_blocks)
    ]
    title = f"Median against tail at {capacity_blocks:,} blocks"
    return trade_off(title, "p50 TTFT", "p95 TTFT", points)


def _series(found: Simulation) -> Iterator[tuple[str, list[Run], str]]:
    """Runs that differ in capacity alone: their name, themselves, their marker."""
    name = names(found.runs)
    by_name: dict[str, list[Run]] = {}
    for run in found.runs:
        by_name.setdefault(name(run), []).append(run)
    seen: dict[str, int] = {}
    for label, runs in by_name.items():
        number = seen.setdefault(runs[0].policy, 0)
        seen[runs[0].policy] += 1
        yield label, runs, SYMBOLS[number % len(SYMBOLS)]


def _add(
    chart: go.Figure, name: str, runs: list[Run], marker: str, value: Callable[[Run], float]
) -> None:
    chart.add_scatter(
        x=[run.capacity_blocks for run in runs],
        y=[value(run) for run in runs],
        name=style.label(name),
        mode="lines+markers",
        line=policy_line(runs[0].policy),
        marker={"symbol": marker, "size": 7},
    )
