"""How TTFT spreads over requests: one curve a policy, on a logarithmic scale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from kvscope.report.charts import style
from kvscope.report.charts.policies import SYMBOLS, policy_line

_SHARES = np.concatenate([np.linspace(0, 0.9, 181), np.linspace(0.9, 1, 101)[1:]])
_MARKED = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """`value_ms[i]` is the least value that `share[i]` of the requests do not exceed."""

    name: str
    policy: str
    share: tuple[float, ...]
    value_ms: tuple[float, ...]


def distribution(name: str, policy: str, value_ms: NDArray[np.float64]) -> Distribution:
    """How the values spread, thinned to a few hundred points (nearest rank)."""
    if not len(value_ms):
        return Distribution(name, policy, (), ())
    values = np.quantile(value_ms, _SHARES, method="inverted_cdf")
    return Distribution(name, policy, tuple(_SHARES.tolist()), tuple(values.tolist()))


def cdf(found: Sequence[Distribution], capacity_blocks: int, slo_s: float | None) -> go.Figure:
    """The share of requests with a TTFT up to each value, percentiles marked."""
    title = f"TTFT at {capacity_blocks:,} blocks"
    chart = style.figure(title, "TTFT (ms)", "share of requests", height=430)
    seen: Counter[str] = Counter()
    for one in found:
        line, symbol = policy_line(one.policy), SYMBOLS[seen[one.policy] % len(SYMBOLS)]
        seen[one.policy] += 1
        chart.add_scatter(
            x=one.value_ms,
            y=one.share,
            name=style.label(one.name),
            legendgroup=one.name,
            mode="lines",
            line={**line, "shape": "hv"},
            hovertemplate="%{y:.1%} of the requests within %{x:.3~g} ms",
        )
        if not one.share:
            continue
        marked = [one.value_ms[int(np.searchsorted(_SHARES, at - 1e-9))] for at in _MARKED]
        chart.add_scatter(
            x=marked,
            y=_MARKED,
            name=style.label(one.name),
            legendgroup=one.name,
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
