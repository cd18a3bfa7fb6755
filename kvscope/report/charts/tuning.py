"""Charts of a recommendation: latencies, what is traded for what, xi, capacity."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from kvscope.app.requests import BASELINE
from kvscope.app.tune import Tuned
from kvscope.core import units
from kvscope.report.charts import style, xi
from kvscope.report.charts import trade_off as trade_offs
from kvscope.report.charts.policies import policy_line
from kvscope.report.charts.trade_off import Point
from kvscope.tune.result import Judged
from kvscope.tune.search import XI

_POINTS = 400


def distributions(found: Tuned) -> go.Figure:
    """The share of requests with a TTFT up to each value: LRU, what is recommended, the ceiling."""
    tuning = found.tuning
    chart = style.figure(f"{found.ttft} of the judged requests", "TTFT (ms)", "share of requests")
    shown: list[tuple[str, Judged, dict[str, object]]] = [
        (f"{BASELINE}, now", tuning.baseline, policy_line(BASELINE))
    ]
    if tuning.chosen is not tuning.baseline:
        policy = tuning.chosen.trial.policy
        shown.append((found.called(policy), tuning.chosen, policy_line(policy.name)))
    shown.append(("infinite cache", tuning.infinite, {"color": style.GREY, "width": 2}))
    for name, judged, line in shown:
        share = np.linspace(0, 1, _POINTS)
        finite = judged.ttft_s[np.isfinite(judged.ttft_s)] * 1e3
        chart.add_scatter(
            x=np.quantile(finite, share, method="inverted_cdf").tolist(),
            y=share.tolist(),
            name=style.label(name),
            mode="lines",
            line=line,
            hovertemplate="%{y:.1%} of the requests within %{x:.3~g} ms",
        )
    _slo(chart, found, vertical=True)
    style.level(chart, tuning.target.percentile, units.format_percentile(tuning.target.percentile))
    style.logarithmic(chart)
    chart.update_yaxes(tickformat=".0%")
    return chart


def trade_off(found: Tuned) -> go.Figure:
    """What the tail gains and the median pays: every setting that was tried, as a point."""
    tuning = found.tuning
    title = "Median against tail, in the part to choose on"
    here = [one for one in tuning.explored if one.capacity_blocks == tuning.capacity_blocks]
    points = [
        Point(
            one.policy.name,
            found.called(one.policy),
            found.times_ms(one.outcome).p50,
            one.target_s * 1e3,
        )
        for one in here
    ]
    chart = trade_offs.trade_off(title, f"p50 {found.ttft}", found.target_name, points)
    _slo(chart, found)
    return chart


def sensitivity(found: Tuned) -> go.Figure:
    """The target's latency against xi."""
    from kvscope.report.sections.tuning_explained import sensitivity as by_policy

    points = {
        name: [(one.policy.values[XI], one.target_s * 1e3) for one in trials]
        for name, trials in by_policy(found).items()
    }
    chart = xi.sensitivity("What xi does, in the part to choose on", found.target_name, points)
    _slo(chart, found)
    return chart


def capacities(found: Tuned) -> go.Figure:
    """The target's latency against capacity: the best setting of each policy at each."""
    from kvscope.report.sections.tuning_explained import best_by_capacity

    title = "Tail against capacity, in the part to choose on"
    chart = style.figure(title, "capacity (blocks)", f"{found.target_name} (ms)")
    best = best_by_capacity(found)
    for name, known in best.items():
        if len(known) < 2:  # a point is no line
            continue
        sizes = [size for size in sorted(known) if size > 0]
        chart.add_scatter(
            x=sizes,
            y=[known[size].target_s * 1e3 for size in sizes],
            name=name,
            mode="lines+markers",
            line=policy_line(name),
        )
    _slo(chart, found)
    style.mark(chart, max(found.tuning.capacity_blocks, 1), "the capacity you have")
    style.logarithmic(chart, counts=True)
    return chart


def _slo(chart: go.Figure, found: Tuned, *, vertical: bool = False) -> None:
    slo_ms = found.tuning.target.slo_s * 1e3
    if vertical:
        style.mark(chart, slo_ms, "SLO")
    else:
        style.level(chart, slo_ms, "SLO")
