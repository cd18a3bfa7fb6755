"""Charts of a validation: what was predicted and what was measured, one over the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from kvscope.report.charts import style
from kvscope.report.charts.policies import policy_line
from kvscope.validate.result import RunFacts

_POINTS = 400
_PREDICTED = {"color": style.GREY, "width": 5}  # below, in every policy's chart


def distributions(runs: Sequence[RunFacts], slo_s: float | None, policy: str) -> go.Figure:
    """The share of requests with a TTFT up to each value, as predicted and as measured.

    At least one request of the policy was counted.
    """
    runs = [run for run in runs if run.policy == policy]
    chart = style.figure(f"TTFT with {policy}", "TTFT (ms)", "share of requests")
    share = np.linspace(0, 1, _POINTS)
    sides = (
        ("predicted", [run.predicted_ttft_s[run.counted] for run in runs], _PREDICTED),
        ("measured", [run.measured_ttft_s[run.counted] for run in runs], policy_line(policy)),
    )
    for name, times, line in sides:
        chart.add_scatter(
            x=(np.quantile(np.concatenate(times), share, method="inverted_cdf") * 1e3).tolist(),
            y=share.tolist(),
            name=name,
            mode="lines",
            line=line,
            hovertemplate="%{y:.1%} of the requests within %{x:.3~g} ms",
        )
    if slo_s is not None:
        style.mark(chart, slo_s * 1e3, "SLO")
    style.logarithmic(chart)
    chart.update_yaxes(tickformat=".0%")
    return chart
