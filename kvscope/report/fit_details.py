"""Every model of a fit, how alike windows are, and models of conversations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from kvscope.core import units
from kvscope.report import style
from kvscope.report.section import Section, Table
from kvscope.report.words import NONE, interval_in_words
from kvscope.reuse_models.results import (
    CategoryFit,
    Conversation,
    Fit,
    ModelFit,
    NextPromptFit,
    NextTurnFit,
    StabilityFit,
    Windows,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_UNSEEN = (
    "The probability of another turn includes turns after the trace's end: maximum likelihood, with"
    " the ends of conversations unobserved."
)
_EACH_TURN = 20
SHOWN_WINDOWS = 12  # more lines cannot be told apart
_P = "reuse_probability"
_MEANING = (
    "A touched block is reused with probability p, after a wait with distribution F: the share"
    " not yet reused after t is S(t) = 1 - p F(t)."
)
_CHARTS = 6  # categories with curves of their own in the report


def models(fit: Fit) -> Section:
    """Return every model of every category."""
    least = {
        row.category: min(m.aic for m in fit.models if m.category == row.category)
        for row in fit.categories
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
        for model in fit.models
    )
    largest = sorted((c for c in fit.categories if c.curve), key=lambda c: -c.n)[:_CHARTS]
    return Section(
        title="Models",
        sentences=(_MEANING,),
        tables=(
            Table(
                "Models; ← marks the one to use",
                ("type, turn", "model", "p", "95% CI", "F", "misses", "AIC"),
                rows,
                note="misses: largest distance from the Kaplan-Meier curve, as a share of the"
                " reuse; AIC: above the lowest, blocks taken as independent",
            ),
        ),
        figures=tuple(partial(reuse_chart, row) for row in largest),
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
        return units.duration_in_words(1 / value)
    if name.endswith("_s"):
        return units.duration_in_words(value)
    return units.format_share(value, 0) if name.endswith("_share") else f"{value:.2f}"


def stability(fit: Fit, windows: Windows) -> Section:
    """Return how far windows differ, and by how much more than by chance."""
    words = (
        f"Windows of {units.duration_in_words(windows.length_s)}, one every"
        f" {units.duration_in_words(windows.step_s)}, each fitted on its own. Compared: neighbours"
        " that do not overlap, and windows a day apart."
    )
    order = [row.category for row in sorted(fit.categories, key=lambda row: -row.n)]
    seen = [name for name in order if any(row.category == name for row in windows.fits)][:_CHARTS]
    tables = tuple(
        _stability(unit, rows)
        for unit in ("window", "day")
        if (rows := [row for row in windows.stability if row.between == unit])
    )
    figures = (
        partial(probability_over_time_chart, windows, seen),
        partial(gap_over_time_chart, windows, seen),
        *(partial(by_window_chart, windows, name) for name in seen[:2]),
    )
    return Section("Stability", (words,), tables=tables, figures=figures if seen else ())


def _stability(unit: str, rows: Sequence[StabilityFit]) -> Table:
    return Table(
        f"From {unit} to {unit}",
        (
            "type, turn",
            "pairs",
            "differ by",
            "by chance",
            "old fit misses",
            "p varies by",
            "wait varies by",
            "verdict",
        ),
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
        note="differ by: largest distance of the two curves, as a share of the reuse, mean over the"
        " pairs; by chance: the same if nothing changed; old fit misses: the exponential of the"
        " window before; p, wait vary by: standard deviation relative to the mean",
    )


def conversations(fit: Fit) -> Section:
    """Return the rates of the conversation model, and how likely another turn is."""
    tables = []
    if fit.conversation is not None:
        tables.append(_rates(fit.conversation))
    by_turn = [row for row in fit.next_turns if row.turn is not None]
    by_category = [row for row in fit.next_turns if row.category is not None]
    for title, first, rows in (
        ("After a turn", "turn", by_turn),
        ("After a category", "type, turn", by_category),
    ):
        tables.append(
            Table(
                title,
                (first, "requests", "followed in the trace", "another turn", "95% CI"),
                tuple(_next_turn(row) for row in rows),
            )
        )
    return Section(
        "Conversations",
        (_UNSEEN,),
        tables=tuple(tables),
        figures=(partial(next_turns_chart, fit),),
    )


def _rates(model: Conversation) -> Table:
    rows = (
        ("births", model.birth_rate_per_s, "birth_rate_per_s"),
        ("turns while alive", model.turn_rate_per_s, "turn_rate_per_s"),
        ("deaths while alive", model.death_rate_per_s, "death_rate_per_s"),
    )
    return Table(
        "Rates",
        ("", "rate", "95% CI", "one per"),
        tuple(
            (
                name,
                units.format_rate(value),
                interval_in_words(model.interval[key], units.format_rate),
                units.duration_in_words(1 / value) if value else NONE,
            )
            for name, value, key in rows
        ),
    )


def _next_turn(row: NextTurnFit) -> tuple[str, ...]:
    chance = (NONE, NONE)
    if row.probability is not None:
        chance = (
            units.format_share(row.probability),
            interval_in_words(row.interval, units.format_share),
        )
    name = row.category if row.category is not None else str(row.turn)
    followed = units.format_share(row.continued / row.requests if row.requests else 0.0)
    return name, units.format_count(row.requests), followed, *chance


def next_prompts(prompts: Sequence[NextPromptFit]) -> Section:
    """Return how many tokens a next turn adds."""
    rows = tuple(
        (
            row.category or "all",
            *(
                units.format_count(value)
                for value in (
                    *(row.n, row.mean),
                    *(row.tokens.p50, row.tokens.p80, row.tokens.p90, row.tokens.p99),
                )
            ),
        )
        for row in prompts
    )
    return Section(
        "Next prompts",
        tables=(
            Table(
                "Tokens that the next turn adds to the history",
                ("type, turn", "prompts", "mean", "p50", "p80", "p90", "p99"),
                rows,
            ),
        ),
    )


def reuse_chart(row: CategoryFit) -> go.Figure:
    """Build how soon touched blocks of a category are reused: observed, and by each model."""
    chart = style.figure(
        f"Reuse after {style.label(row.category)}",
        "time since the touch (s)",
        "share of the touched blocks",
    )
    curve = row.curve
    if curve is None:
        return chart
    chart.add_scatter(
        x=curve.at_s,
        y=curve.observed,
        name="observed (Kaplan-Meier)",
        line={"color": style.GREY, "width": 5, "shape": "hv"},
    )
    for number, (name, values) in enumerate(curve.by_model.items()):
        chosen = name == row.model
        chart.add_scatter(
            x=curve.at_s,
            y=values,
            name=f"{name}: use this" if chosen else name,
            line=style.line(number) | {"width": 3 if chosen else 1.5},
        )
    style.logarithmic(chart)
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def by_window_chart(windows: Windows, category: str) -> go.Figure:
    """Build a category's observed reuse, a line a window."""
    chart = style.figure(
        f"Reuse after {style.label(category)}, by window",
        "time since the touch (s)",
        "share of the touched blocks",
    )
    rows = [row for row in windows.fits if row.category == category]
    step = -(-len(rows) // SHOWN_WINDOWS)
    for number, row in enumerate(rows[::step]):
        chart.add_scatter(
            x=windows.at_s,
            y=row.observed,
            name=f"{row.start_s / 3600:.1f} h",
            line=style.line(number),
        )
    style.logarithmic(chart)
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def probability_over_time_chart(windows: Windows, categories: list[str]) -> go.Figure:
    """Build the probability that a touched block is reused, window by window."""
    chart = style.figure("Reuse probability over time", "start of the window (h)", "probability")
    _lines(chart, windows, categories, gap=False)
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def gap_over_time_chart(windows: Windows, categories: list[str]) -> go.Figure:
    """Build the mean wait of the exponential, window by window."""
    chart = style.figure(
        "Mean reuse gap over time", "start of the window (h)", "mean reuse gap (s)"
    )
    _lines(chart, windows, categories, gap=True)
    chart.update_yaxes(rangemode="tozero")
    return chart


def _lines(chart: go.Figure, windows: Windows, categories: list[str], *, gap: bool) -> None:
    for number, category in enumerate(categories):
        rows = [row for row in windows.fits if row.category == category]
        if not rows:
            continue
        chart.add_scatter(
            x=[row.start_s / 3600 for row in rows],
            y=[1 / row.rate_per_s if gap else row.reuse_probability for row in rows],
            name=style.label(category),
            mode="lines+markers",
            line=style.line(number),
        )


def next_turns_chart(fit: Fit) -> go.Figure:
    """Build the probability that another turn follows, by the turn it follows."""
    chart = style.figure("Next turn", "after turn", "probability of another one")
    rows = [row for row in fit.next_turns if row.turn and row.probability is not None]
    chart.add_scatter(
        x=[row.turn for row in rows],
        y=[row.probability for row in rows],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [_reach(row, 1) for row in rows],
            "arrayminus": [-_reach(row, 0) for row in rows],
        },
        name="with 95% CI",
        mode="markers",
        marker={"color": style.BLUE, "size": 9},
    )
    chart.update_xaxes(tickformat="d", dtick=1 if len(rows) <= _EACH_TURN else None)
    chart.update_yaxes(tickformat=".0%", range=[0, 1])
    return chart


def _reach(row: NextTurnFit, side: int) -> float:
    if row.interval is None or row.probability is None:
        return 0.0
    return row.interval[side] - row.probability
