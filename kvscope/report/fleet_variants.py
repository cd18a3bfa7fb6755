"""Variants of a fleet's answer: autoscaling, and separate prefill and decode replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kvscope.core import units
from kvscope.fleet.autoscaled import ALIKE, AgeHits, AutoscaledFleet
from kvscope.fleet.disaggregated import DisaggregatedFleet, SplitFleet
from kvscope.fleet.outcome import FleetOutcome, Latencies
from kvscope.report.section import Columns, Section, Table, tabulate
from kvscope.report.words import (
    NONE,
    count,
    counted,
    money,
    points,
    share,
    significant,
    time_unit,
)

if TYPE_CHECKING:
    from kvscope.usecases.fleet import FleetStudy

OVERLOADED = "overloaded"
_SPLITS = 6  # of the answer's replicas, in the table


def autoscaling(study: FleetStudy, router: str) -> list[Section]:
    """Return results with autoscaling, and the age at which new replicas hit like old ones."""
    scaled = study.autoscaled
    if scaled is None:
        return []
    low, high, rate, ready_s = scaled.scaling
    alike, always = scaled.alike_replicas, "all the time"
    fleets: list[tuple[str, float, FleetOutcome]] = [
        (f"{low} to {high}, by load", scaled.mean_replicas, scaled.outcome),
        (f"{high} {always}", high, scaled.steady),
        *([] if alike == high else [(f"{alike} {always}", alike, scaled.alike)]),
    ]
    where = study.request.deployment
    hour = None if where is None else where.price_of(where.tp)
    known = outcome_columns(fleets, lambda row: row[2])
    columns: Columns = {
        "replicas": lambda row: row[0],
        "mean": lambda row: significant(row[1]),
        **{title: known[title] for title in known if not title.startswith("TPOT")},
        **({} if hour is None else {"per h": lambda row: money(hour * row[1])}),
    }
    by_age: dict[str, Callable[[AgeHits], str]] = {
        "age of the replica": lambda row: (
            f"up to {units.duration_in_words(row.until_s)}" if row.until_s else "older"
        ),
        "requests": lambda row: count(row.requests),
        "hit rate": lambda row: share(row.hit_rate),
        f"with {alike} {always}": lambda row: share(row.alike_hit_rate),
    }
    cost = points(scaled.outcome.taken - scaled.steady.taken)
    words = (
        f"{rate:g} requests/s a replica, ready after {units.duration_in_words(ready_s)}:"
        f" {significant(scaled.mean_replicas)} replicas on average, {count(scaled.added)} added,"
        f" {count(scaled.removed)} removed. Hit rate {cost} against {high} {always}."
    )
    title = f"Autoscaling: behind {router}"
    shown: list[str | Table] = [words, tabulate("", fleets, columns)]
    if scaled.ages:
        shown += [_back(scaled), tabulate("Requests to new replicas", scaled.ages, by_age)]
    return [Section.of(title, *shown)]


def _back(scaled: AutoscaledFleet) -> str:
    """Return the age from which new replicas hit nearly as much as a fleet without scaling."""
    others = f"with {scaled.alike_replicas} all the time"
    what = f"at least {ALIKE:.0%} of what the same requests hit {others}"
    if scaled.back_s is None:
        return f"New replicas never came to hit {what}."
    when = f"from {units.duration_in_words(scaled.back_s)} on" if scaled.back_s else "at once"
    return f"New replicas hit {what} {when}."


def disaggregation(study: FleetStudy, router: str) -> list[Section]:
    """Return results with separate prefill and decode replicas, next to the fleet without."""
    apart = study.disaggregated
    if apart is None:
        return []
    rows: list[tuple[str, FleetOutcome, SplitFleet | None]] = [
        (f"{study.chosen} together", study.answer.outcome, None)
    ]
    splits = sorted(apart.alike, key=lambda split: split.rank)[:_SPLITS]
    if apart.fewest is not None and apart.fewest not in splits:
        splits.append(apart.fewest)
    splits.sort(key=lambda split: (split.replicas, split.prefill))
    rows += [(f"{split.prefill} + {split.decode}", split.outcome, split) for split in splits]
    where = study.request.deployment
    hour = None if where is None else where.price_of(where.tp)

    def price(split: SplitFleet | None) -> str:
        return money((hour or 0.0) * (study.chosen if split is None else split.replicas))

    columns: Columns = {
        "replicas": lambda row: row[0],
        "SLO": lambda row: "meets" if row[1].meets else "misses",
        **outcome_columns(rows, lambda row: row[1]),
        "link busy": lambda row: NONE if row[2] is None else share(row[2].link_busy),
        **({} if hour is None else {"per h": lambda row: price(row[2])}),
    }
    title = f"Disaggregation: behind {router}"
    note = (
        "P + D: so many prefill, so many decode; link busy: share of the time, busiest prefill"
        " replica"
    )
    return [Section.of(title, _apart_in_words(study, apart), tabulate("", rows, columns, note))]


def _apart_in_words(study: FleetStudy, apart: DisaggregatedFleet) -> str:
    """Return in words the fewest prefill and decode replicas that meet the target of `apart`."""
    slo = study.request.slo
    rank = units.format_percentile(slo.percentile)
    target = f"{rank} TTFT ≤ {units.duration_in_words(slo.ttft_s)}"
    if apart.tpot_s is not None:
        whose = "" if slo.tpot_s is not None else ", as together"
        target += f" and {rank} TPOT ≤ {units.duration_in_words(apart.tpot_s)}{whose}"
    best = apart.fewest
    if best is None:
        return (
            f"With prefill and decode apart, up to {counted(apart.tried, 'replica')} miss {target}."
        )
    instead = (
        f"instead of {study.chosen}" if study.fewest else f"where {study.chosen} together miss it"
    )
    if study.fewest == best.replicas:
        instead = "as many as together"
    hits, before = best.outcome.taken, study.answer.outcome.taken
    why = ", in part because prefill replicas hold no answers" if hits < before else ""
    return (
        f"{best.prefill} to prefill and {best.decode} to decode are the fewest that meet {target}:"
        f" {counted(best.replicas, 'replica')}, {instead}. They hit {share(hits)} of the input"
        f" tokens (together {share(before)}){why}."
    )


def outcome_columns(rows: Sequence[Any], of: Callable[[Any], FleetOutcome]) -> Columns:
    """Return columns of TTFT, TPOT, share within the SLO and hits; `of` returns a row's outcome."""

    def tpot_p95(row: Any) -> str:
        times = of(row).latencies.tpot_ms
        return NONE if times is None else significant(times.p95)

    return {
        **ttft_columns(rows, lambda row: of(row).latencies),
        "TPOT p95 (ms)": tpot_p95,
        "within": lambda row: share(of(row).latencies.attainment),
        "hit rate": lambda row: share(of(row).taken),
    }


def ttft_columns(rows: Sequence[Any], latencies: Callable[[Any], Latencies | None]) -> Columns:
    """Return columns of TTFT percentiles; a row whose queue grows has none."""
    known_ms = (each and each.ttft_ms for each in map(latencies, rows))
    unit = time_unit(each.p95 / 1e3 for each in known_ms if each)

    def cell(percentile: str, row: Any) -> str:
        known = latencies(row)
        if known is None or known.ttft_ms is None:
            return OVERLOADED if known and percentile == "p95" else NONE
        return unit.cell(getattr(known.ttft_ms, percentile) / 1e3)

    names = {"p50": f"TTFT p50 ({unit.name})", "p95": "p95", "p99": "p99"}
    return {title: partial(cell, percentile) for percentile, title in names.items()}
