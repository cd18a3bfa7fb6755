"""How well the ends of conversations are foreseen: the section of `kvscope fit --returns`."""

from __future__ import annotations

from functools import partial

from kvscope.core import units
from kvscope.learning.chances import FEATURES
from kvscope.learning.ends.prediction_quality import Foreseen
from kvscope.report.section import Section, Table
from kvscope.report.text_plots import bar, sparkline
from kvscope.tune.end_gain import EndGain, EndsFit

_EVEN = 0.5  # an AUC that a coin has
_BAR = 20


def returns(found: EndsFit) -> Section:
    """Whether the next turn comes: how well that is known before, over time, and its worth."""
    from kvscope.report.charts import ends as charts

    of = found.foreseen
    if of.auc is None:
        return Section("Returns", (_nothing(of),))
    return Section(
        "Returns",
        (_judged(of), _ordered(of), _calibrated(of), *_worth(found)),
        tables=(_calibration(of), _windows(of), *_gains(found), *_asked(of)),
        plot=_plot(of),
        figures=(partial(charts.calibration, of), partial(charts.auc_over_time, of)),
    )


def _nothing(of: Foreseen) -> str:
    horizon = units.format_duration(of.horizon_s)
    if of.base_rate is None:
        return (
            f"Too short to foresee whether another turn comes within {horizon}: no request has both"
            " a past to learn from and a known outcome."
        )
    every = "Every" if of.base_rate else "No"
    return f"{every} request that could be judged was continued within {horizon}: nothing to tell."


def _judged(of: Foreseen) -> str:
    return (
        f"Whether another turn comes within {units.format_duration(of.horizon_s)}, foreseen for"
        f" {units.format_count(of.requests)} requests when they had been served, by what earlier"
        f" ones had shown until then ({of.fits} fits); {units.format_count(of.unpredicted)} came"
        f" before there was enough to learn from, {units.format_count(of.unknown)} too late for"
        " their horizon."
    )


def _ordered(of: Foreseen) -> str:
    parts = [
        f"{name} {value:.2f}"
        for name, value in (("first turns", of.auc_first), ("later ones", of.auc_later))
        if value is not None
    ]
    split = f" ({', '.join(parts)})" if parts else ""
    return (
        f"AUC {of.auc:.2f}{split}, where a coin has {_EVEN}:"
        f" {units.format_share(of.base_rate or 0.0)} were continued."
    )


def _calibrated(of: Foreseen) -> str:
    off_pp = (of.calibration_error or 0.0) * 100
    return (
        f"Probabilities are off by {off_pp:.1f} pp on average; Brier score {of.brier:.3f}, where"
        f" the rate alone, known beforehand, has {of.brier_base:.3f}."
    )


def _worth(found: EndsFit) -> list[str]:
    known = [one for one in found.gains if one.share is not None]
    if not known:
        return ["To be told the ends would be worth nothing that can be measured here."]
    shares = ", ".join(f"{one.share:.0%}" for one in known)
    where = "capacity" if len(known) == 1 else "capacities"
    return [
        (
            f"Of what it is worth to be told the ends (tlru-end over tlru, TEL at xi ="
            f" {units.format_count(found.xi_tokens)} tokens), tlru-learned reaches {shares} at the"
            f" {where} where LRU has {', '.join(f'{one.level:.0%}' for one in known)} of the"
            " infinite cache's hits."
        )
    ]


def _calibration(of: Foreseen) -> Table:
    rows = tuple(
        (
            f"{one.low:.0%}-{one.high:.0%}",
            units.format_count(one.n),
            f"{one.predicted:.1%}",
            f"{one.observed:.1%}",
            bar(one.observed, _BAR),
        )
        for one in of.calibration
    )
    return Table(
        "Calibration", ("said", "requests", "on average", "came", ""), rows,
        note="came: the share of them that another turn followed within the horizon",
    )  # fmt: skip


def _windows(of: Foreseen) -> Table:
    rows = tuple(
        (
            units.format_duration(one.start_s),
            units.format_count(one.requests),
            units.format_count(one.learned_from),
            f"{one.base_rate:.1%}",
            f"{one.predicted:.1%}",
            "–" if one.auc is None else f"{one.auc:.2f}",
            f"{one.brier:.3f}",
        )
        for one in of.windows
    )
    return Table(
        "Over time",
        ("from", "requests", "learned from", "came", "said", "AUC", "Brier"),
        rows,
        note="each foreseen by what was known before it",
    )


def _gains(found: EndsFit) -> tuple[Table, ...]:
    if not found.gains:
        return ()
    return (
        Table(
            f"TEL at xi = {units.format_count(found.xi_tokens)} tokens, million tokens",
            ("blocks", "lru", "tlru", "tlru-learned", "tlru-end", "share of the way"),
            tuple(_gain(one) for one in found.gains),
            note="the requests after the first"
            f" {found.warmup:.0%}; share: from tlru to tlru-end, at 95%",
        ),
    )


def _gain(one: EndGain) -> tuple[str, ...]:
    tel = (f"{tokens / 1e6:.2f}" for tokens in one.tel_tokens.values())
    if one.share is None:
        return units.format_count(one.capacity_blocks), *tel, "–"
    share = f"{one.share:.2f} [{one.low:.2f}, {one.high:.2f}]"
    return units.format_count(one.capacity_blocks), *tel, share


def _asked(of: Foreseen) -> tuple[Table, ...]:
    if of.trees is None or not of.trees.features:
        return ()
    often = [0] * len(FEATURES)
    for three, edges in zip(of.trees.features, of.trees.edges, strict=True):
        for feature, edge in zip(three, edges, strict=True):
            often[feature] += edge != float("inf")
    order = sorted(range(len(FEATURES)), key=lambda at: -often[at])
    rows = tuple((FEATURES[at], f"{often[at]}") for at in order if often[at])
    return (Table("What the last fit asks for", ("of a request", "comparisons"), rows),)


def _plot(of: Foreseen) -> tuple[str, ...]:
    told = [one.auc for one in of.windows]
    if sum(one is not None for one in told) < 2:
        return ()
    above = [None if one is None else max(one - _EVEN, 0.0) for one in told]
    return (f"AUC over time, from {_EVEN} to 1  {sparkline(above, 1 - _EVEN)}",)
