"""Every model of a fit, and how alike windows are: the sections behind the first screen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvscope.core import units
from kvscope.report.section import Section, Table
from kvscope.report.words import interval_in_words
from kvscope.reuse_models.results import Fit, ModelFit, StabilityFit, Windows

_P = "reuse_probability"
_MEANING = (
    "A touched block is reused with probability p, after a wait with distribution F:"
    " it still waits after t with S(t) = 1 - p F(t)."
)
_CHARTS = 6  # categories with curves of their own in the report


def models(found: Fit) -> Section:
    """Every model of every category beside the others."""
    from kvscope.report.charts import fit as charts

    least = {
        row.category: min(m.aic for m in found.models if m.category == row.category)
        for row in found.categories
        if row.model is not None
    }
    rows = tuple(
        (
            model.category,
            f"{model.model} ←" if model.chosen else model.model,
            units.format_share(model.reuse_probability),
            interval_in_words(model.interval[_P], units.format_share),
            _params(model),
            f"{model.ks:.1%}",
            f"{model.aic - least[model.category]:+.1f}",
        )
        for model in found.models
    )
    largest = sorted((c for c in found.categories if c.curve), key=lambda c: -c.n)[:_CHARTS]
    return Section(
        title="Models",
        sentences=(_MEANING,),
        tables=(
            Table(
                "Every model, ← the one to use",
                ("type, turn", "model", "p", "at 95%", "F", "misses", "AIC"),
                rows,
                note="misses: largest distance from Kaplan-Meier, of the reuse; AIC: above the"
                " least, as of independent blocks",
            ),
        ),
        figures=tuple(partial(charts.reuse, row) for row in largest),
    )


def _params(model: ModelFit) -> str:
    return ", ".join(
        f"{_short(name)} {_value(name, value)}" for name, value in model.params.items()
    )


def _short(name: str) -> str:
    names = {
        "rate_per_s": "mean",
        "fast_share": "fast",
        "fast_rate_per_s": "of",
        "slow_rate_per_s": "else",
        "scale_s": "scale",
        "median_s": "median",
    }
    return names.get(name, name)


def _value(name: str, value: float) -> str:
    if name.endswith("rate_per_s"):
        return units.format_duration(1 / value)
    if name.endswith("_s"):
        return units.format_duration(value)
    return units.format_share(value, 0) if name.endswith("_share") else f"{value:.2f}"


def stability(found: Fit, windows: Windows) -> Section:
    """How far windows differ, and by how much more than by chance."""
    from kvscope.report.charts import fit as charts

    words = (
        f"Windows of {units.format_duration(windows.length_s)}, one every"
        f" {units.format_duration(windows.step_s)}, each fitted on its own; compared are neighbours"
        " that share no time, and windows a day apart."
    )
    order = [row.category for row in sorted(found.categories, key=lambda row: -row.n)]
    seen = [name for name in order if any(row.category == name for row in windows.fits)][:_CHARTS]
    tables = tuple(
        _stability(unit, rows)
        for unit in ("window", "day")
        if (rows := [row for row in windows.stability if row.between == unit])
    )
    figures = (
        partial(charts.probability_over_time, windows, seen),
        partial(charts.gap_over_time, windows, seen),
        *(partial(charts.by_window, windows, name) for name in seen[:2]),
    )
    return Section("Stability", (words,), tables=tables, figures=figures if seen else ())


def _stability(unit: str, rows: Sequence[StabilityFit]) -> Table:
    return Table(
        f"From {unit} to {unit}",
        ("type, turn", "pairs", "differ by", "by chance", "old fit misses", "p ±", "wait ±", ""),
        tuple(
            (
                row.category,
                units.format_count(row.pairs),
                f"{row.distance:.1%}",
                f"{row.by_chance:.1%}",
                f"{row.next_ks:.1%}",
                f"{row.reuse_probability_variation:.0%}",
                f"{row.mean_gap_variation:.0%}",
                {True: "stable", False: "changes", None: "cannot tell"}[row.stable],
            )
            for row in rows
        ),
        note="differ by: largest distance of the two curves, of the reuse, mean over the pairs; by"
        " chance: were nothing to change; old fit misses: the exponential of the window before",
    )
