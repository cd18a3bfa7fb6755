"""LRU's exact curve in the unit of one's choice, with other policies' points and a mark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from kvscope.app.requests import BASELINE
from kvscope.core.runs import Run
from kvscope.replay.curve import HitCurve
from kvscope.report.charts import style
from kvscope.report.charts.policies import policy_line
from kvscope.report.run_names import hit_rate, is_plain_lru, names

_POINTS = 300


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of capacity: how many of it a block is."""

    name: str
    per_block: float


def curve(
    found: HitCurve,
    unit: Unit,
    *,
    at_blocks: int,
    working_set_blocks: int | None = None,
    runs: Sequence[Run] = (),
) -> go.Figure:
    """LRU's hit rate at every capacity; `at_blocks` marked; `runs` of one setting as points."""
    weight = found.definition.weight
    chart = style.figure(
        "LRU's exact hit rate at every capacity",
        f"capacity ({unit.name})",
        f"hit rate by {weight}",
        height=430,
    )
    largest = max(int(found.knots[-1]), at_blocks, 2)
    grid = np.unique(np.geomspace(1, largest, _POINTS).round().astype(np.int64))
    chart.add_scatter(
        x=(grid * unit.per_block).tolist(),
        y=found.rate(grid).tolist(),
        name=BASELINE,
        line=policy_line(BASELINE),
        hovertemplate="%{x:,.4~g} " + unit.name + ": %{y:.2%}",
    )
    _others(chart, unit, runs)
    chart.add_scatter(
        x=[at_blocks * unit.per_block],
        y=[float(found.rate(at_blocks))],
        mode="markers",
        name="chosen",
        marker={"color": style.VERMILION, "size": 13, "symbol": "circle-open", "line_width": 3},
    )
    style.level(chart, found.ideal, f"infinite cache {found.ideal:.1%}")
    if working_set_blocks:
        style.mark(chart, working_set_blocks * unit.per_block, "working set, peak")
    style.logarithmic(chart, counts=unit.name in {"blocks", "tokens"})
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def _others(chart: go.Figure, unit: Unit, runs: Sequence[Run]) -> None:
    """The runs that are not on the curve anyway: of each policy the setting with most of them."""
    name = names(runs)
    by_policy: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        if not is_plain_lru(run):
            by_policy.setdefault(run.policy, {}).setdefault(name(run), []).append(run)
    for by_name in by_policy.values():
        label, likes = max(by_name.items(), key=lambda item: len(item[1]))
        chart.add_scatter(
            x=[run.capacity_blocks * unit.per_block for run in likes],
            y=[hit_rate(run.setting, run.outcome) for run in likes],
            name=style.label(label),
            mode="markers+lines",
            line={**policy_line(likes[0].policy), "width": 1},
            marker={"size": 8},
        )
