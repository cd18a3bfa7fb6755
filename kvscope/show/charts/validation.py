"""Charts of a validation: what was predicted and what was measured, one over the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from kvscope.show.charts import style
from kvscope.validate.facts import RunFacts

_POINTS = 400


def distributions(runs: Sequence[RunFacts], slo_s: float | None, policy: str) -> go.Figure:
    """The share of requests with a TTFT up to each value, as predicted and as measured.

    At least one request of the policy was counted.
    """
    runs = [run for run in runs if run.policy == policy]
    chart = style.figure(f"TTFT with {policy}", "TTFT (ms)", "share of requests")
    share = np.linspace(0, 1, _POINTS)
    sides = (
        ("predicted", [run.predicted_ttft_s[run.counted] for run in runs]),
        ("measured", [run.measured_ttft_s[run.counted] for run in runs]),
    )
    for number, (name, times) in enumerate(sides):
        chart.add_scatter(
            x=(np.quantile(np.concatenate(times), share, method="inverted_cdf") * 1e3).tolist(),
            y=share.tolist(),
            name=name,
            mode="lines",
            line=style.line(number),
        )
    if slo_s is not None:
        style.mark(chart, slo_s * 1e3, "SLO")
    chart.update_xaxes(type="log")
    chart.update_yaxes(tickformat=".0%")
    return chart
