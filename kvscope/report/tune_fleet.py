"""A tuned fleet: replicas, router and policy for an SLO, and what a later window says of them."""

from __future__ import annotations

from collections.abc import Sequence

from kvscope.app.documents.tune_fleet import tune_fleet_document
from kvscope.app.tune_fleet import FleetRecommendation
from kvscope.core import units
from kvscope.fleet.options import router_label
from kvscope.fleet.outcome import Slo
from kvscope.fleet.sweep import FleetRun
from kvscope.report.report import Report
from kvscope.report.section import Section, Table, tabulate
from kvscope.report.words import NONE, Sizes, count, counted, share
from kvscope.tuning.fleet import MOST, PolicyTrial, RouterSize
from kvscope.tuning.fleet_size import FleetSize

SECTIONS = ("answer", "routers", "policies", "assumed")
"""What `--section` of `kvscope tune --fleet` takes."""

_ROWS = 10  # of a table on the one screen


def report(tuned: FleetRecommendation) -> Report:
    """Return the tuning in every form."""
    return Report(
        "kvscope tune --fleet",
        tuned.trace,
        document=lambda: tune_fleet_document(tuned, in_words(tuned)),
        screen=lambda: _sections(tuned, _leading(tuned.tuning.routers), tuned.tuning.policies[:8]),
        sections=lambda: _sections(tuned, tuned.tuning.routers, tuned.tuning.policies),
    )


def in_words(tuned: FleetRecommendation) -> list[str]:
    """Return the answer: the fleet, what the judged window says, one fewer, price and flags."""
    tuning, slo = tuned.tuning, tuned.slo
    rank = units.format_percentile(slo.percentile)
    target = f"{rank} TTFT ≤ {units.duration_in_words(slo.ttft_s)}"
    if tuning.chosen is None:
        return [f"No fleet of up to {MOST} replicas meets {target} on the choosing window."]
    if tuning.judged is None:
        return []
    judged = f"{_fleet(tuning.judged)}: {_reached(tuning.judged, slo)}"
    run, size, engines = tuning.recommended, tuning.size, tuning.on_engines
    if run is None and engines is not None:
        most = f"No fleet of up to {MOST} replicas behind the router"
        return [f"{most} meets {target} on simulated vLLMs.", _misses_there(engines, slo)]
    if run is None or size is None:
        return [
            f"No fleet of up to {MOST} replicas behind the router meets {target} on both windows.",
            f"The choice misses it on the judged window. {judged}.",
        ]
    price = "" if tuned.price_hour is None else f" for {tuned.price_hour:.4g} an hour"
    flags = run.fleet.router.flags()
    to_set = [f"To set: {' '.join(flags)}"] if flags and run.fleet.replicas > 1 else []
    if engines is not None and not engines.meets:
        return [
            f"{_fleet(run)}{price}: {target} holds on simulated vLLMs, with {_reached(run, slo)}.",
            _misses_there(engines, slo),
            *to_set,
        ]
    words = [f"{_fleet(run)}{price}: {target} holds, with {_reached(run, slo)}."]
    if engines is not None:
        words.append(f"Simulated vLLMs meet it too, with {_reached(engines, slo)}.")
    if run is not tuning.judged:
        words.append(
            f"The choice was rejected on the judged window. {judged}. More replicas with LRU meet"
            " the SLO on both windows."
        )
    words.append(f"By itself, the judged window takes {_interval(size)}.")
    fewer = tuning.one_fewer
    if fewer is not None:
        words.append(f"With one fewer, on the {tuning.fewer_on} window: {_reached(fewer, slo)}.")
    elif run.fleet.replicas > 1:
        policy = run.fleet.policy.name
        words.append(f"With one fewer, {policy} meets it too, but breaks a limit against LRU.")
    return [*words, *to_set]


def _misses_there(run: FleetRun, slo: Slo) -> str:
    """Return that what prefill queues would recommend misses the SLO on engines."""
    return (
        f"By prefill queues alone {_fleet(run)} would do, but with running requests, which take"
        f" blocks and steps: {_reached(run, slo)}."
    )


def _sections(
    tuned: FleetRecommendation, routers: Sequence[RouterSize], policies: Sequence[PolicyTrial]
) -> list[Section]:
    slo = tuned.slo
    size = Sizes(tuned.trace.block_size, tuned.model).in_words(tuned.capacity_blocks)
    windows = tuned.tuning.windows
    return [
        Section.of("Answer", *in_words(tuned)),
        Section.of("Routers on the choosing window, with LRU", _routers(routers, slo)),
        Section.of("Policies there, behind the chosen router", _policies(policies, slo)),
        Section.of(
            "Assumed",
            f"{size} a replica, for idle cached blocks alone; one prefill queue a replica."
            f" Latency of {tuned.setting.latency}. Open loop: arrivals at the trace's times."
            f"{'' if tuned.tuning.on_engines else ' Not replayed on simulated engines.'}",
            f"Requests: {count(windows.warmup_requests)} warm caches,"
            f" {count(windows.choosing_requests)} choose, {count(windows.judged_requests)} judge.",
        ),
    ]


def _leading(routers: Sequence[RouterSize]) -> list[RouterSize]:
    """Return the best of each router, as many as fit on one screen."""
    best: dict[str, RouterSize] = {}
    for each in routers:
        best.setdefault(each.router.name, each)
    return list(best.values())[:_ROWS]


def _routers(routers: Sequence[RouterSize], slo: Slo) -> Table:
    rank = units.format_percentile(slo.percentile)
    columns = {
        "router": lambda each: router_label(each.router),
        "replicas": lambda each: count(each.replicas) if each.replicas else f"> {_tried(each)}",
        f"{rank} TTFT": lambda each: _ttft(each.run),
        "within": lambda each: share(each.run.outcome.latencies.attainment),
        "hit rate": lambda each: share(each.run.outcome.taken),
    }
    return tabulate("", routers, columns, "replicas: the fewest that meet the SLO")


def _policies(policies: Sequence[PolicyTrial], slo: Slo) -> Table:
    rank = units.format_percentile(slo.percentile)
    columns = {
        "policy": lambda each: each.policy.name,
        "replicas": lambda each: count(each.replicas),
        f"{rank} TTFT": lambda each: _ttft(each.run),
        "hit rate": lambda each: share(each.run.outcome.taken),
        "better than LRU": lambda each: "significant" if each.significant else "not significant",
        "harms": lambda each: ", ".join(harm.figure for harm in each.harms) or NONE,
    }
    note = "better, harms: against LRU with as many replicas; –: not with as many as LRU takes"
    return tabulate("", policies, columns, note)


def _tried(each: RouterSize) -> int:
    return each.run.fleet.replicas


def _fleet(run: FleetRun) -> str:
    fleet = run.fleet
    behind = f" behind {router_label(fleet.router)}" if fleet.replicas > 1 else ""
    return f"{counted(fleet.replicas, 'replica')}{behind} with {fleet.policy.name}"


def _ttft(run: FleetRun) -> str:
    outcome = run.outcome
    if outcome.latencies.overloaded:
        return "overloaded"
    return units.duration_in_words(outcome.target_ttft_s)


def _reached(run: FleetRun, slo: Slo) -> str:
    """Return the SLO's percentile and the share of requests within it."""
    outcome = run.outcome
    within = f"{share(outcome.latencies.attainment)} of the requests within it"
    if outcome.latencies.overloaded:
        return f"queues grow without end, {within}"
    rank = units.format_percentile(slo.percentile)
    return f"{rank} TTFT {units.duration_in_words(outcome.target_ttft_s)}, {within}"


def _interval(size: FleetSize) -> str:
    if size.replicas is None:
        return "more replicas than were tried"
    low, high = size.low or "more than tried", size.high or "more than tried"
    return f"{counted(size.replicas, 'replica')} (95 % CI {low} to {high})"
