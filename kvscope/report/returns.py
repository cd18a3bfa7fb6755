"""How well follow-up turns are predicted: the section of `kvscope fit --returns`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvscope.core import units
from kvscope.learning.ends.chances import FEATURES
from kvscope.learning.ends.prediction_quality import PredictionQuality
from kvscope.report import style
from kvscope.report.section import Section, Table
from kvscope.report.text_plots import bar, sparkline
from kvscope.report.words import NONE
from kvscope.tuning.end_gain import EndGain, EndsFit

if TYPE_CHECKING:
    import plotly.graph_objects as go

_EVEN = 0.5  # the AUC of chance
_BAR = 20


def section(fit: EndsFit) -> Section:
    """Return how well a next turn is predicted, over time, and what the prediction gains."""
    of = fit.foreseen
    if of.auc is None:
        return Section("Returns", (_nothing(of),))
    return Section(
        "Returns",
        (_horizon(of), _ranking(of), _calibrated(of), *_worth(fit)),
        tables=(_calibration(of), _windows(of), *_gains(fit), *_comparisons(of)),
        plot=_plot(of),
        figures=(partial(calibration_chart, of), partial(auc_over_time_chart, of)),
    )


def _nothing(of: PredictionQuality) -> str:
    horizon = units.duration_in_words(of.horizon_s)
    if of.base_rate is None:
        return (
            f"The trace is too short to predict whether another turn comes within {horizon}: no"
            " request has both earlier requests to learn from and a known outcome."
        )
    every = "Every" if of.base_rate else "No"
    return (
        f"{every} request with a known outcome was followed within {horizon}: nothing to predict."
    )


def _horizon(of: PredictionQuality) -> str:
    return (
        f"Predicted for {units.format_count(of.requests)} requests, from earlier ones only"
        f" ({of.fits} fits): does another turn follow within"
        f" {units.duration_in_words(of.horizon_s)}? Left out: {units.format_count(of.unpredicted)}"
        f" with too little to learn from, {units.format_count(of.unknown)} too close to the trace's"
        " end."
    )


def _ranking(of: PredictionQuality) -> str:
    parts = [
        f"{name} {value:.2f}"
        for name, value in (("first turns", of.auc_first), ("follow-up turns", of.auc_later))
        if value is not None
    ]
    split = f" ({', '.join(parts)})" if parts else ""
    return (
        f"AUC {of.auc:.2f}{split}; chance is {_EVEN}."
        f" {units.format_share(of.base_rate or 0.0)} were followed."
    )


def _calibrated(of: PredictionQuality) -> str:
    off_pp = (of.calibration_error or 0.0) * 100
    return (
        f"Probabilities are off by {off_pp:.1f} pp on average. Brier score {of.brier:.3f};"
        f" predicting the overall rate for every request scores {of.brier_base:.3f}."
    )


def _worth(fit: EndsFit) -> list[str]:
    known = [gain for gain in fit.gains if gain.share is not None]
    if not known:
        return ["Knowing the ends of conversations would gain nothing measurable here."]
    shares = ", ".join(f"{gain.share:.0%}" for gain in known)
    where = "capacity" if len(known) == 1 else "capacities"
    return [
        (
            f"tlru-learned reaches {shares} of the gain of an oracle that knows the ends (tlru-end"
            f" over tlru; TEL at xi = {units.format_count(fit.xi_tokens)} tokens), at the {where}"
            f" where LRU gets {', '.join(f'{gain.level:.0%}' for gain in known)} of the infinite"
            " cache's hits."
        )
    ]


def _calibration(of: PredictionQuality) -> Table:
    rows = tuple(
        (
            f"{group.low:.0%}-{group.high:.0%}",
            units.format_count(group.n),
            f"{group.predicted:.1%}",
            f"{group.observed:.1%}",
            bar(group.observed, _BAR),
        )
        for group in of.calibration
    )
    return Table(
        "Calibration", ("predicted", "requests", "mean", "followed", ""), rows,
        note="followed: share of these requests with another turn within the horizon",
    )  # fmt: skip


def _windows(of: PredictionQuality) -> Table:
    rows = tuple(
        (
            units.duration_in_words(window.start_s),
            units.format_count(window.requests),
            units.format_count(window.learned_from),
            f"{window.base_rate:.1%}",
            f"{window.predicted:.1%}",
            NONE if window.auc is None else f"{window.auc:.2f}",
            f"{window.brier:.3f}",
        )
        for window in of.windows
    )
    return Table(
        "Over time",
        ("from", "requests", "learned from", "followed", "predicted", "AUC", "Brier"),
        rows,
        note="each predicted from earlier requests only",
    )


def _gains(fit: EndsFit) -> tuple[Table, ...]:
    if not fit.gains:
        return ()
    return (
        Table(
            f"TEL at xi = {units.format_count(fit.xi_tokens)} tokens, million tokens",
            ("blocks", "lru", "tlru", "tlru-learned", "tlru-end", "share of gain"),
            tuple(_gain(gain) for gain in fit.gains),
            note=f"requests after the first {fit.warmup:.0%}; share of gain: of that from tlru to"
            " tlru-end, with 95% CI",
        ),
    )


def _gain(gain: EndGain) -> tuple[str, ...]:
    tel = (f"{tokens / 1e6:.2f}" for tokens in gain.tel_tokens.values())
    if gain.share is None:
        return units.format_count(gain.capacity_blocks), *tel, NONE
    share = f"{gain.share:.2f} [{gain.low:.2f}, {gain.high:.2f}]"
    return units.format_count(gain.capacity_blocks), *tel, share


def _comparisons(of: PredictionQuality) -> tuple[Table, ...]:
    if of.trees is None or not of.trees.features:
        return ()
    often = [0] * len(FEATURES)
    for three, edges in zip(of.trees.features, of.trees.edges, strict=True):
        for feature, edge in zip(three, edges, strict=True):
            often[feature] += edge != float("inf")
    order = sorted(range(len(FEATURES)), key=lambda at: -often[at])
    rows = tuple((FEATURES[at], f"{often[at]}") for at in order if often[at])
    return (Table("Features of the last fit", ("feature", "comparisons"), rows),)


def _plot(of: PredictionQuality) -> tuple[str, ...]:
    values = [window.auc for window in of.windows]
    if sum(value is not None for value in values) < 2:
        return ()
    above = [None if value is None else max(value - _EVEN, 0.0) for value in values]
    return (f"AUC over time, from {_EVEN} to 1  {sparkline(above, 1 - _EVEN)}",)


def calibration_chart(of: PredictionQuality) -> go.Figure:
    """Build observed over predicted probability, with the line of perfect calibration."""
    chart = style.figure("Calibration", "predicted probability", "share that was followed")
    chart.add_scatter(
        x=[0, 1],
        y=[0, 1],
        name="perfect",
        mode="lines",
        line={"color": style.GREY, "dash": "dot"},
    )
    chart.add_scatter(
        x=[group.predicted for group in of.calibration],
        y=[group.observed for group in of.calibration],
        name="observed",
        mode="lines+markers",
        text=[f"{group.n:,} requests" for group in of.calibration],
        line=style.line(0),
    )
    chart.update_xaxes(tickformat=".0%", range=[0, 1])
    chart.update_yaxes(tickformat=".0%", range=[0, 1])
    return chart


def auc_over_time_chart(of: PredictionQuality) -> go.Figure:
    """Build AUC, observed and predicted share over time."""
    chart = style.figure("Prediction over time", "start of the window (h)", "AUC, shares")
    hours = [window.start_s / 3600 for window in of.windows]
    lines = (
        ("AUC", [window.auc for window in of.windows]),
        ("followed", [window.base_rate for window in of.windows]),
        ("predicted", [window.predicted for window in of.windows]),
    )
    for number, (name, values) in enumerate(lines):
        chart.add_scatter(x=hours, y=values, name=name, line=style.line(number))
    chart.update_yaxes(range=[0, 1])
    return chart
