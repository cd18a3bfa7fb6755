"""How well follow-up turns are predicted: the section of `kvscope fit --returns`."""

from __future__ import annotations

from functools import partial

from kvscope.core import units
from kvscope.learning.ends.chances import FEATURES
from kvscope.learning.ends.prediction_quality import PredictionQuality
from kvscope.report import style
from kvscope.report.section import Section, Table, bar, sparkline, tabulate
from kvscope.report.words import NONE, count, points, share, significant
from kvscope.tuning.end_gain import EndGain, EndsFit

_EVEN = 0.5  # the AUC of chance
_BAR = 20


def section(fit: EndsFit) -> Section:
    """Return how well a next turn is predicted, over time, and what the prediction gains."""
    quality = fit.foreseen
    if quality.auc is None:
        return Section.of("Returns", _nothing(quality))
    return Section.of(
        "Returns",
        *_how_well(quality),
        _worth(fit),
        *(_calibration(quality), _windows(quality), _gains(fit), _comparisons(quality)),
        *(partial(calibration_chart, quality), partial(auc_over_time_chart, quality)),
        plot=_plot(quality),
    )


def _nothing(quality: PredictionQuality) -> str:
    horizon = units.duration_in_words(quality.horizon_s)
    if quality.base_rate is None:
        return (
            f"The trace is too short to predict whether another turn comes within {horizon}: no"
            " request has both earlier requests to learn from and a known outcome."
        )
    which = "Every" if quality.base_rate else "No"
    return (
        f"{which} request with a known outcome was followed within {horizon}: nothing to predict."
    )


def _how_well(quality: PredictionQuality) -> tuple[str, ...]:
    """Return what was predicted, how well it ranks, and how well it is calibrated."""
    horizon = units.duration_in_words(quality.horizon_s)
    by_turn = {"first turns": quality.auc_first, "follow-up turns": quality.auc_later}
    parts = [f"{name} {auc:.2f}" for name, auc in by_turn.items() if auc is not None]
    split = f" ({', '.join(parts)})" if parts else ""
    off = points(quality.calibration_error or 0.0).removeprefix("+")
    task = (
        f"Predicted for {count(quality.requests)} requests, from earlier ones only"
        f" ({quality.fits} fits): does another turn follow within {horizon}? Left out:"
        f" {count(quality.unpredicted)} with too little to learn from,"
        f" {count(quality.unknown)} too close to the trace's end."
    )
    followed = f"{share(quality.base_rate or 0.0)} were followed"
    calibrated = (
        f"Probabilities are off by {off} on average. Brier score {quality.brier:.3f};"
        f" predicting the overall rate for every request scores {quality.brier_base:.3f}."
    )
    return task, f"AUC {quality.auc:.2f}{split}; chance is {_EVEN}. {followed}.", calibrated


def _worth(fit: EndsFit) -> str:
    known = [gain for gain in fit.gains if gain.share is not None]
    if not known:
        return "Knowing the ends of conversations would gain nothing measurable here."
    shares = ", ".join(f"{gain.share:.0%}" for gain in known)
    levels = ", ".join(f"{gain.level:.0%}" for gain in known)
    where = "capacity" if len(known) == 1 else "capacities"
    return (
        f"tlru-learned reaches {shares} of the gain of an oracle that knows the ends (tlru-end over"
        f" tlru; TEL at xi = {count(fit.xi_tokens)} tokens), at the {where} where LRU gets"
        f" {levels} of the infinite cache's hits."
    )


def _calibration(quality: PredictionQuality) -> Table:
    return tabulate(
        "Calibration",
        quality.calibration,
        {
            "predicted": lambda group: f"{group.low:.0%}-{group.high:.0%}",
            "requests": lambda group: count(group.n),
            "mean": lambda group: share(group.predicted),
            "followed": lambda group: share(group.observed),
            "": lambda group: bar(group.observed, _BAR),
        },
        note="followed: share of these requests with another turn within the horizon",
    )


def _windows(quality: PredictionQuality) -> Table:
    return tabulate(
        "Over time",
        quality.windows,
        {
            "from": lambda window: units.duration_in_words(window.start_s),
            "requests": lambda window: count(window.requests),
            "learned from": lambda window: count(window.learned_from),
            "followed": lambda window: share(window.base_rate),
            "predicted": lambda window: share(window.predicted),
            "AUC": lambda window: NONE if window.auc is None else f"{window.auc:.2f}",
            "Brier": lambda window: f"{window.brier:.3f}",
        },
        note="each predicted from earlier requests only",
    )


def _gains(fit: EndsFit) -> Table | None:
    if not fit.gains:
        return None

    def tel(policy: str, gain: EndGain) -> str:
        return significant(gain.tel_tokens[policy] / 1e6)

    def part(gain: EndGain) -> str:
        if gain.share is None:
            return NONE
        return f"{gain.share:.2f} [{gain.low:.2f}, {gain.high:.2f}]"

    return tabulate(
        f"TEL at xi = {count(fit.xi_tokens)} tokens, million tokens",
        fit.gains,
        {
            "blocks": lambda gain: count(gain.capacity_blocks),
            **{policy: partial(tel, policy) for policy in fit.gains[0].tel_tokens},
            "share of gain": part,
        },
        note=f"requests after the first {fit.warmup:.0%}; share of gain: of that from tlru to"
        " tlru-end, with 95% CI",
    )


def _comparisons(quality: PredictionQuality) -> Table | None:
    if quality.trees is None or not quality.trees.features:
        return None
    often = [0] * len(FEATURES)
    for features, edges in zip(quality.trees.features, quality.trees.edges, strict=True):
        for feature, edge in zip(features, edges, strict=True):
            often[feature] += edge != float("inf")
    order = sorted(range(len(FEATURES)), key=lambda at: -often[at])
    columns = {"feature": lambda at: FEATURES[at], "comparisons": lambda at: count(often[at])}
    used = [at for at in order if often[at]]
    return tabulate("Features of the last fit", used, columns)


def _plot(quality: PredictionQuality) -> tuple[str, ...]:
    values = [window.auc for window in quality.windows]
    if sum(value is not None for value in values) < 2:
        return ()
    above = [None if value is None else max(value - _EVEN, 0.0) for value in values]
    return (f"AUC over time, from {_EVEN} to 1  {sparkline(above, 1 - _EVEN)}",)


def calibration_chart(quality: PredictionQuality) -> style.Figure:
    """Build observed over predicted probability, with the line of perfect calibration."""
    groups = quality.calibration
    grey = {"color": style.GREY, "dash": "dot"}
    predicted, observed = zip(*((each.predicted, each.observed) for each in groups), strict=True)
    sizes = {**style.MARKED, "text": [f"{group.n:,} requests" for group in groups]}
    series = (
        style.Series("perfect", [0, 1], [0, 1], grey),
        style.Series("observed", predicted, observed, style.line(0), sizes),
    )
    x, y = "predicted probability", "share that was followed"
    chart = style.lines("Calibration", x, y, series, log="", shares="xy")
    return chart.update_layout(xaxis_range=[0, 1], yaxis_range=[0, 1])


def auc_over_time_chart(quality: PredictionQuality) -> style.Figure:
    """Build AUC, observed and predicted share over time."""
    measures = {"AUC": "auc", "followed": "base_rate", "predicted": "predicted"}
    values = {name: [getattr(w, of) for w in quality.windows] for name, of in measures.items()}
    series = style.curves([window.start_s / 3600 for window in quality.windows], values)
    title, x, y = "Prediction over time", "start of the window (h)", "AUC, shares"
    chart = style.lines(title, x, y, series, log="", shares="")
    return chart.update_yaxes(range=[0, 1])
