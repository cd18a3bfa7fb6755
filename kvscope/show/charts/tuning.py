"""Charts of a recommendation: latencies, what is traded for what, xi, capacity."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from kvscope import units
from kvscope.show.charts import style
from kvscope.show.charts.policies import policy_line
from kvscope.show.simulation import BASELINE
from kvscope.show.tuning import Tuned
from kvscope.tune.facts import Judged
from kvscope.tune.objective import Trial, View, times_ms
from kvscope.tune.space import XI

_POINTS = 400


def distributions(found: Tuned) -> go.Figure:
    """The share of requests with a TTFT up to each value: LRU, what is recommended, the ceiling."""
    tuning = found.tuning
    chart = style.figure(f"{found.ttft} of the judged requests", "TTFT (ms)", "share of requests")
    shown: list[tuple[str, Judged]] = [(f"{BASELINE}, now", tuning.baseline)]
    if tuning.chosen is not tuning.baseline:
        shown.append((found.called(tuning.chosen.trial.policy), tuning.chosen))
    shown.append(("infinite cache", tuning.infinite))
    for number, (name, judged) in enumerate(shown):
        share = np.linspace(0, 1, _POINTS)
        finite = judged.ttft_s[np.isfinite(judged.ttft_s)] * 1e3
        chart.add_scatter(
            x=np.quantile(finite, share, method="inverted_cdf").tolist(),
            y=share.tolist(),
            name=style.label(name),
            mode="lines",
            line=style.line(number),
        )
    _slo(chart, found, vertical=True)
    chart.add_hline(
        y=tuning.target.percentile,
        line_dash="dot",
        annotation_text=units.format_percentile(tuning.target.percentile),
    )
    chart.update_xaxes(type="log")
    chart.update_yaxes(tickformat=".0%")
    return chart


def trade_off(found: Tuned) -> go.Figure:
    """What the tail gains and the median pays: every setting that was tried, as a point."""
    tuning = found.tuning
    title = "Median against tail, in the part to choose on"
    chart = style.figure(title, f"p50 {found.ttft} (ms)", f"{found.target_name} (ms)")
    here = [one for one in tuning.explored if one.capacity_blocks == tuning.capacity_blocks]
    for name in dict.fromkeys(one.policy.name for one in here):
        likes = [one for one in here if one.policy.name == name]
        chart.add_scatter(
            x=[found.times_ms(one.outcome).p50 for one in likes],
            y=[one.target_s * 1e3 for one in likes],
            text=[style.label(found.called(one.policy)) for one in likes],
            name=name,
            mode="markers",
            marker={"color": policy_line(name)["color"], "size": 8},
        )
    front = pareto(here, tuning.target.view)
    chart.add_scatter(
        x=[found.times_ms(one.outcome).p50 for one in front],
        y=[one.target_s * 1e3 for one in front],
        name="Pareto front",
        mode="lines",
        line={"color": style.GREY, "dash": "dot"},
    )
    _slo(chart, found)
    return chart


def sensitivity(found: Tuned) -> go.Figure:
    """The target's latency against xi."""
    from kvscope.show.sections.tuning_explained import sensitivity as by_policy

    title = "What xi does, in the part to choose on"
    chart = style.figure(title, "xi (tokens)", f"{found.target_name} (ms)")
    for name, trials in by_policy(found).items():
        chart.add_scatter(
            x=[one.policy.values[XI] for one in trials],
            y=[one.target_s * 1e3 for one in trials],
            name=name,
            mode="lines+markers",
            line=policy_line(name),
        )
    _slo(chart, found)
    chart.update_xaxes(type="log")
    return chart


def capacities(found: Tuned) -> go.Figure:
    """The target's latency against capacity: the best setting of each policy at each."""
    from kvscope.show.sections.tuning_explained import best_by_capacity

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
    chart.update_xaxes(type="log")
    return chart


def pareto(trials: list[Trial], view: View) -> list[Trial]:
    """The trials that no other beats both in the median and at the target's percentile."""
    front: list[Trial] = []
    for one in sorted(trials, key=lambda one: (times_ms(one.outcome, view).p50, one.target_s)):
        if not front or one.target_s < front[-1].target_s:
            front.append(one)
    return front


def _slo(chart: go.Figure, found: Tuned, *, vertical: bool = False) -> None:
    slo_ms = found.tuning.target.slo_s * 1e3
    if vertical:
        style.mark(chart, slo_ms, "SLO")
    else:
        chart.add_hline(y=slo_ms, line_dash="dot", annotation_text="SLO")
