"""A tuned fleet: replicas, router and policy for an SLO, and what a later window says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kvscope.app.documents.tune_fleet import tune_fleet_document
from kvscope.app.tune_fleet import FleetRecommendation
from kvscope.core import units
from kvscope.fleet.options import router_label
from kvscope.fleet.outcome import Slo
from kvscope.fleet.sweep import FleetRun
from kvscope.report.fleet import attainment_chart, ttft_chart
from kvscope.report.report import Report
from kvscope.report.section import Section, Table, tabulate
from kvscope.report.words import NONE, Sizes, count, counted, share
from kvscope.tuning.fewest import MOST_REPLICAS
from kvscope.tuning.fleet import CapacityChoice, EndFleet, RouterSize
from kvscope.tuning.fleet_size import FleetSize
from kvscope.tuning.fleet_window import PolicyTrial

SECTIONS = ("answer", "capacities", "routers", "policies", "assumed")
"""What `--section` of `kvscope tune --fleet` takes; capacities only where several were compared."""

_ROUTERS = "Routers: on the choosing window, with LRU"
_POLICIES = "Policies: there, behind the chosen router"


def report(tuned: FleetRecommendation) -> Report:
    """Return the tuning in every form."""
    return Report(
        "kvscope tune --fleet",
        tuned.trace,
        document=lambda: tune_fleet_document(tuned, in_words(tuned)),
        screen=lambda: _screen(tuned),
        sections=lambda: sections(tuned),
    )


def in_words(tuned: FleetRecommendation) -> list[str]:
    """Return the answer: the fleet, what the judged window says, one fewer, price and flags."""
    tuning, slo, target = tuned.tuning, tuned.slo, _target(tuned.slo)
    if tuning.chosen is None:
        return [
            f"No fleet of up to {MOST_REPLICAS} replicas meets {target} on the choosing window."
        ]
    run, size, engines = tuning.recommended, tuning.size, tuning.on_engines
    most = f"No fleet of up to {MOST_REPLICAS} replicas behind the router"
    if run is None and engines is not None:
        return [f"{most} meets {target} on simulated vLLMs.", _misses_there(engines, slo)]
    if run is None or size is None:
        return [f"{most} meets {target} on both windows.", *_rejected(tuned)]
    price = "" if tuned.price_hour is None else f" for {tuned.price_hour:.4g} an hour"
    answer = f"{_fleet(run, _size(tuned))}{price}: {target} holds"
    flags = run.fleet.router.flags()
    to_set = [f"To set: {' '.join(flags)}"] if flags and run.fleet.replicas > 1 else []
    if engines is not None and not engines.meets:
        return [
            f"{answer} on simulated vLLMs, with {_reached(run, slo)}.",
            *_ends(tuned),
            _misses_there(engines, slo),
            *to_set,
        ]
    words = [f"{answer}, with {_reached(run, slo)}.", *_ends(tuned)]
    if engines is not None:
        words.append(f"Simulated vLLMs meet it too, with {_reached(engines, slo)}.")
    words += _rejected(tuned)
    words.append(f"By itself, the judged window takes {_interval(size)}.")
    fewer = tuning.one_fewer
    if fewer is not None:
        words.append(f"With one fewer, on the {tuning.fewer_on} window: {_reached(fewer, slo)}.")
    elif run.fleet.replicas > 1:
        policy = run.fleet.policy.name
        words.append(f"With one fewer, {policy} meets it too, but breaks a limit against LRU.")
    return [*words, *to_set]


def _target(slo: Slo) -> str:
    rank = units.format_percentile(slo.percentile)
    return f"{rank} TTFT ≤ {units.duration_in_words(slo.ttft_s)}"


def _rejected(tuned: FleetRecommendation) -> list[str]:
    """Return why the choice is not recommended, and what is instead; nothing where it is."""
    tuning, slo = tuned.tuning, tuned.slo
    judged, instead = tuning.judged, tuning.recommended
    if judged is None or instead is judged:
        return []
    elsewhere = [each.end.name for each in tuning.ends if not each.agrees]
    if not judged.meets:
        why = f"misses the SLO on the judged window: {_reached(judged, slo)}"
    elif tuning.judged_harms:
        broken = ", ".join(harm.figure for harm in tuning.judged_harms)
        why = f"breaks limits against LRU on the judged window: {broken}"
    elif elsewhere:
        why = f"is not the choice with {' or '.join(elsewhere)}"
    else:
        return []  # simulated engines replaced it
    rest = "" if instead is None else " The answer is what LRU takes on both windows."
    return [f"Rejected: {_fleet(judged)} {why}.{rest}"]


def _ends(tuned: FleetRecommendation) -> list[str]:
    """Return the number of replicas at the ends of what is not known exactly."""
    run = tuned.tuning.recommended
    if run is None:
        return []
    replicas = run.fleet.replicas
    words = []
    known = [each for each in tuned.tuning.ends if not each.end.sessions]
    if others := [each for each in known if each.replicas != replicas]:
        ranged = ", or ".join(f"{_tried_most(each)} with {each.end.name}" for each in others)
        measure = "kvscope calibrate"
        if any(each.end.capacity_blocks for each in known):
            measure += ", and --engine-log for the pool"
        words.append(
            f"Not certain: {counted(replicas, 'replica')}, or {ranged}. Measure: {measure}."
        )
    elif known:
        names = " and with ".join(each.end.name for each in known)
        words.append(f"As many with {names}.")
    layouts = [each for each in tuned.tuning.ends if each.end.sessions]
    if layouts:
        ranked = sorted(layouts, key=lambda each: each.replicas or MOST_REPLICAS + 1)
        low, high = _tried_most(ranked[0]), _tried_most(ranked[-1])
        ranged = f"{low} replicas" if low == high else f"{low} to {high} replicas"
        words.append(
            f"With other starts of the sessions: {ranged}. State them: --session-arrivals"
            " poisson:RATE."
        )
    return words


def _tried_most(end: EndFleet) -> str:
    return f"more than {MOST_REPLICAS}" if end.replicas is None else str(end.replicas)


def _misses_there(run: FleetRun, slo: Slo) -> str:
    """Return that what prefill queues would recommend misses the SLO on engines."""
    return (
        f"By prefill queues alone {_fleet(run)} would do, but with running requests, which take"
        f" blocks and steps: {_reached(run, slo)}."
    )


def _screen(tuned: FleetRecommendation) -> list[Section]:
    """Return the one screen; where capacities were compared, with fewer routers and policies."""
    compared = len(tuned.tuning.capacities) > 1
    routers, policies = (6, 4) if compared else (10, 8)
    return [
        Section.of("Answer", *in_words(tuned)),
        *_capacities(tuned),
        Section.of(_ROUTERS, _routers(_leading(tuned)[:routers], tuned.slo)),
        *_compared(tuned, policies),
        _assumed(tuned),
    ]


def sections(tuned: FleetRecommendation) -> list[Section]:
    """Return every section."""
    slo = tuned.slo
    lines = {router_label(each.router): each.runs for each in _leading(tuned)}
    return [
        Section.of("Answer", *in_words(tuned)),
        *_capacities(tuned),
        Section.of(
            _ROUTERS,
            _routers(tuned.tuning.routers, slo),
            partial(attainment_chart, slo, lines),
            partial(ttft_chart, slo, lines),
        ),
        *_compared(tuned),
        _assumed(tuned),
    ]


def _compared(tuned: FleetRecommendation, most: int | None = None) -> list[Section]:
    """Return the policies that were compared with LRU, at most so many; nothing without any."""
    policies = tuned.tuning.policies[:most]
    return [Section.of(_POLICIES, _policies(policies, tuned.slo))] if policies else []


def _capacities(tuned: FleetRecommendation) -> list[Section]:
    """Return the capacities of a replica that were compared; nothing for one."""
    if len(tuned.tuning.capacities) == 1:
        return []
    sizes, slo = _sizes(tuned), tuned.slo
    rows = [(each, each.chosen or each.routers[0].run) for each in tuned.tuning.capacities]
    columns: dict[str, Callable[[tuple[CapacityChoice, FleetRun]], str]] = {
        "a replica": lambda row: sizes.label(row[0].capacity_blocks),
        "replicas": lambda row: _needed(row[1].fleet.replicas if row[0].chosen else None, row[1]),
        "router": lambda row: router_label(row[1].fleet.router),
        "policy": lambda row: row[1].fleet.policy.name,
        f"{units.format_percentile(slo.percentile)} TTFT": lambda row: _ttft(row[1]),
        "hit rate": lambda row: share(row[1].outcome.taken),
    }
    if tuned.deployment is not None and tuned.deployment.stated.gpu_hour is not None:
        columns["an hour"] = lambda row: _price(tuned, *row)
    note = "replicas: the fewest that meet the SLO; the first row is chosen"
    return [Section.of("Capacities: on the choosing window", tabulate("", rows, columns, note))]


def _price(tuned: FleetRecommendation, choice: CapacityChoice, run: FleetRun) -> str:
    price = tuned.price_of(choice.capacity_blocks, run) if choice.chosen else None
    return NONE if price is None else f"{price:.4g}"


def _assumed(tuned: FleetRecommendation) -> Section:
    windows = tuned.tuning.windows
    size = _sizes(tuned).in_words(tuned.tuning.capacity_blocks)
    where = tuned.deployment
    alike = []
    if where is not None and where.kv_groups is not None:
        alike.append(
            "Queues count a hybrid model's layers alike, and only LRU is replayed; simulated vLLMs"
            " have its groups of layers."
        )
    return Section.of(
        "Assumed",
        f"{size} a replica, for idle cached blocks alone; one prefill queue a replica."
        f" Latency of {tuned.setting.latency}. Open loop: arrivals at the trace's times."
        f"{'' if tuned.tuning.on_engines else ' Not replayed on simulated engines.'}",
        f"Requests: {count(windows.warmup_requests)} warm caches,"
        f" {count(windows.choosing_requests)} choose, {count(windows.judged_requests)} judge.",
        *alike,
    )


def _sizes(tuned: FleetRecommendation) -> Sizes:
    return Sizes(tuned.trace.block_size, tuned.model)


def _size(tuned: FleetRecommendation) -> str:
    """Return the size of a replica where several were compared, else nothing."""
    if len(tuned.tuning.capacities) == 1:
        return ""
    return f" of {_sizes(tuned).in_words(tuned.tuning.capacity_blocks)}"


def _leading(tuned: FleetRecommendation) -> list[RouterSize]:
    """Return the best of each router."""
    best: dict[str, RouterSize] = {}
    for each in tuned.tuning.routers:
        best.setdefault(each.router.name, each)
    return list(best.values())


def _routers(routers: Sequence[RouterSize], slo: Slo) -> Table:
    rank = units.format_percentile(slo.percentile)
    columns = {
        "router": lambda each: router_label(each.router),
        "replicas": lambda each: _needed(each.replicas, each.run),
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


def _needed(replicas: int | None, run: FleetRun) -> str:
    """Return the replicas that meet the SLO, or that more are needed than the run's."""
    return count(replicas) if replicas else f"> {run.fleet.replicas}"


def _fleet(run: FleetRun, size: str = "") -> str:
    fleet = run.fleet
    behind = f" behind {router_label(fleet.router)}" if fleet.replicas > 1 else ""
    return f"{counted(fleet.replicas, 'replica')}{size}{behind} with {fleet.policy.name}"


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
