"""A fleet: how many replicas meet the SLO behind which router, and where hits are lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvscope.core import units
from kvscope.deployment.deployment import RANKS_APART
from kvscope.fleet.options import RANKS_ROUTER, router_flags, router_label
from kvscope.fleet.outcome import FleetOutcome, Slo
from kvscope.fleet.sweep import FleetRun
from kvscope.replay.curve import HitCurve
from kvscope.replay.policy_options import format_value
from kvscope.replay.tier_spec import READS, SharedPool
from kvscope.report import style
from kvscope.report.deployment import ranks_in_words
from kvscope.report.fleet_variants import (
    OVERLOADED,
    autoscaling,
    disaggregation,
    outcome_columns,
    ttft_columns,
)
from kvscope.report.plan import tier_label
from kvscope.report.section import Columns, Section, Table, tabulate
from kvscope.report.words import (
    NONE,
    Sizes,
    count,
    counted,
    listed,
    money,
    points,
    share,
    significant,
    time_unit,
)
from kvscope.tuning.least import FleetSize, most_compared
from kvscope.tuning.pool_sizes import PoolSize
from kvscope.usecases.fleet import FleetLine, FleetStudy

if TYPE_CHECKING:
    from kvscope.policies.base import Policy

Lines = Mapping[str, Sequence[FleetRun]]
"""Runs in ascending number of replicas, by the name of their router and policy."""

_ROWS = 8  # of a table on the one screen
_COUNTS = 8  # columns of a table that can be read
_EACH_COUNT = 12  # numbers of replicas up to which an axis marks each
_MARK = "*"
_NAMED = 3  # routers in a sentence
TIME_MODELS = {
    "queue": "prefill queues",
    "engine": "simulated vLLMs",
    "tree": "simulated SGLangs",
}
"""What replicas are called, by time model."""
_ASSUMED = {
    "queue": "Time model: one prefill queue a replica, first come, first served; decoding slows"
    " with the requests that decode. Capacity holds idle cached blocks alone.",
    "engine": "Time model: a simulated vLLM in each replica, whose pool also holds running"
    " requests.",
    "tree": "Time model: a simulated SGLang in each replica, whose pool also holds running"
    " requests; max_new_tokens as the outputs were. Routers that see loads or caches see those of"
    " replicas that evict block by block.",
}


def screen(study: FleetStudy) -> list[Section]:
    """Return answer, routers, pools, autoscaling, disaggregation (else lost hits), assumptions."""
    losses = Section.of(_losses_title(study), _losses(study, _leading(study)))
    return [
        Section.of("Answer", *in_words(study)),
        Section.of(_here(study), _routers(study, _leading(study))),
        *([*_pool(study), *_variants(study)] or [losses]),
        Section.of("Assumed", *_assumed(study)),
    ]


def sections(study: FleetStudy) -> list[Section]:
    """Return every section."""
    return [
        Section.of("Answer", *in_words(study)),
        Section.of(
            f"Routers: {_here(study)}",
            _growing(_named(study)),
            _routers(study, study.ranked),
            partial(attainment_chart, study.request.slo, _named(study)),
            partial(ttft_chart, study.request.slo, _named(study)),
        ),
        Section.of(
            f"Losses: {_losses_title(study)}",
            _losses(study, study.ranked),
            partial(losses_chart, study),
        ),
        Section.of(
            "Replicas", _by_count(study), _replicas(study), partial(sent_chart, study, study.best)
        ),
        *_capacity(study),
        *_pool(study),
        *_variants(study),
        Section.of("Assumed", *_assumed(study)),
    ]


def _variants(study: FleetStudy) -> list[Section]:
    router = _called(study)(study.best)
    return [*autoscaling(study, router), *disaggregation(study, router)]


def in_words(study: FleetStudy) -> list[str]:
    """Return the answer: the fewest replicas, what fails with one fewer, price and flags."""
    best, run = study.best, study.answer
    target = f"{_target(study)} ({TIME_MODELS[study.time_model]})"
    name = _called(study)(best)
    if study.of_ranks and (study.on_engines is None or study.on_engines.meets):
        return _of_ranks(study, target, name)
    if study.fewest is None:
        most = counted(study.request.replicas[-1], "replica")
        what = _failure(study, run)
        misses = f"No fleet of up to {most} meets {target}: with {name}, the best, {what}."
        return [misses, *_pool_in_words(study)]
    if study.on_engines is not None and not study.on_engines.meets:
        fleet = counted(study.chosen, "replica") + (f" behind {name}" if study.chosen > 1 else "")
        misses = (
            f"On simulated vLLMs {fleet} cannot meet {_target(study)}:"
            f" {_failure(study, study.on_engines)}. By prefill queues alone the SLO is met, with"
            f" {_reached(study, run)}, but running requests take blocks and steps."
        )
        return [misses, "For a number that holds there, take --time-model engine or tune --fleet."]
    price = "" if study.price_hour is None else f" (GPUs: {money(study.price_hour)} an hour)"
    if study.chosen == 1:
        alone = f"1 replica{price} meets {target}, with {_reached(study, run)}"
        return [
            f"{alone}: no router is needed.",
            *_on_engines(study),
            *_pool_in_words(study),
            *_tier_flags(study),
        ]
    answer = (
        f"{counted(study.chosen, 'replica')} behind {name}{price}: the fewest that meet {target},"
        f" with {_reached(study, run)}."
    )
    if study.size is not None:
        compared = [each for each in study.request.replicas if each <= most_compared(study.chosen)]
        answer += f" {interval(study.size, compared[-1])}"
    if study.chosen == study.request.replicas[0]:
        answer += " Fewer were not tried."
    fewer = best.at(study.chosen - 1)
    words = [answer, *_on_engines(study), *_pool_in_words(study)]
    if fewer is not None:
        words.append(f"With one fewer, {_failure(study, fewer)}.")
    others = [line for line in _leading(study)[1:] if not line.router.reference]
    if others:
        words.append(_others(study, others))
    return [*words, *_router_flags(study), *_tier_flags(study)]


def _of_ranks(study: FleetStudy, target: str, name: str) -> list[str]:
    """Return whether the ranks of one engine meet the SLO, and the flags to start them.

    `target` is the SLO in words, `name` that of the answer's router, with its policy.
    """
    run, where = study.answer, study.request.deployment
    assert where is not None  # noqa: S101  (which says that there are ranks)
    ranks = f"{counted(study.chosen, 'rank')} behind {name}"
    ranks += "" if study.price_hour is None else f" (GPUs: {money(study.price_hour)} an hour)"
    answer = f"{ranks} meet {target}, with {_reached(study, run)}."
    if study.fewest is None:
        answer = f"{ranks} miss {target}: {_failure(study, run)}."
    words = [answer, *_on_engines(study), *_pool_in_words(study), ranks_in_words(where)]
    if study.best.router.name != RANKS_ROUTER:
        words[-1] += " --data-parallel-external-lb, once a rank"
        words += _router_flags(study)
    return [*words, *_tier_flags(study)]


def _router_flags(study: FleetStudy) -> list[str]:
    router, model = study.best.router, study.request.model
    if not (flags := router_flags(router, study.chosen)):
        return []
    if router.name == RANKS_ROUTER and model is not None and model.moe:
        flags += f" (ranks divide the experts, replicas do not: --dp {study.chosen} simulates them)"
    return [f"To set on {router.name}: {flags}"]


def _on_engines(study: FleetStudy) -> list[str]:
    """Return that simulated vLLMs meet the SLO too; [] if the answer was not replayed on them."""
    run = study.on_engines
    return [] if run is None else [f"Simulated vLLMs meet it too, with {_reached(study, run)}."]


def _pool_in_words(study: FleetStudy) -> list[str]:
    """Return a shared pool's hits and used size; if it is full, those of an unlimited pool too."""
    if not study.pool_sizes:
        return []
    stated = next(row for row in study.pool_sizes if row.outcome is study.answer.outcome)
    words = f"The shared pool serves {_from_files(stated.outcome)} of the input tokens, and"
    if (ample := study.pool_sizes[-1]).gib is not None:
        return [f"{words} holds {_gib(stated.used_gib)} of {_gib(stated.gib)} in the end."]
    more = f"{_from_files(ample.outcome)} and hold {_gib(ample.used_gib)}"
    return [f"{words} is full: with no limit it would serve {more}."]


def _tier_flags(study: FleetStudy) -> list[str]:
    tier = study.tier
    if tier is None:
        return []
    folder = ", with one PATH for all replicas" if tier.pool else ""
    if tier.pool and tier.pool.evicts:
        size = units.format_size(tier.files_bytes)
        folder += f" where you delete the files used least recently above {size}, as vLLM does not"
    return [f"To set on vLLM{folder}: {tier.spec.arguments(tier.size_bytes)}"]


def _leading(study: FleetStudy) -> list[FleetLine]:
    """Return each router's best line (its runs with one policy), as many as fit on one screen.

    Best: fewest replicas, then lowest TTFT. Routers of no program (`reference`) all come last.
    """
    best: dict[str, FleetLine] = {}
    for line in study.ranked:
        best.setdefault(line.router.name, line)
    references = [line for line in best.values() if line.router.reference]
    others = [line for line in best.values() if not line.router.reference]
    return [*others[: _ROWS - len(references)], *references]


def _outcomes(
    study: FleetStudy, lines: Sequence[FleetLine]
) -> list[tuple[FleetLine, FleetOutcome]]:
    """Return lines with their outcomes at the answer's number of replicas."""
    runs = ((line, line.at(study.chosen)) for line in lines)
    return [(line, run.outcome) for line, run in runs if run is not None]


def _others(study: FleetStudy, others: Sequence[FleetLine]) -> str:
    """Return the number of replicas that each other router needs to meet the SLO."""
    name = _called(study)
    more = f"more than {study.request.replicas[-1]}"
    parts = ", ".join(f"{name(line)} {line.fewest or more}" for line in others)
    return f"Other routers need: {parts}."


def interval(size: FleetSize, compared: int) -> str:
    """Return the 95 % CI of the fewest replicas in words.

    An end (`low`, `high`) of None is more than `compared`, the most replicas compared for the CI.
    """
    ends = (str(end or f"more than {compared}") for end in (size.low, size.high))
    return f"95% CI of that number: {' to '.join(dict.fromkeys(ends))}."


def _target(study: FleetStudy) -> str:
    """Return in words the SLO, the numbers of the counted requests, and a scaled arrival rate."""
    slo, requests = study.request.slo, study.trace.requests
    first = int(requests * study.request.setting.definition.warmup) + 1
    rank = units.format_percentile(slo.percentile)
    target = f"{rank} TTFT ≤ {units.duration_in_words(slo.ttft_s)}"
    if slo.tpot_s is not None:
        target += f" and {rank} TPOT ≤ {units.duration_in_words(slo.tpot_s)}"
    scale = study.request.setting.rate_scale
    faster = "" if scale == 1 else f", arriving {scale:g} times as fast"
    return f"{target} on requests {count(first)} to {count(requests)}{faster}"


def _reached(study: FleetStudy, run: FleetRun) -> str:
    """Return a run's TTFT and TPOT percentiles of the SLO, and the share of requests within it."""
    outcome = run.outcome
    rank = units.format_percentile(study.request.slo.percentile)
    words = f"{rank} TTFT {units.duration_in_words(outcome.target_ttft_s)}"
    if (ends := run.spread(lambda each: each.target_ttft_s)) is not None:
        low, high = map(units.duration_in_words, ends)
        words += f" ({low} to {high} over {len(run.outcomes)} seeds)"
    if study.request.slo.tpot_s is not None and outcome.target_tpot_s is not None:
        words += f", {rank} TPOT {units.duration_in_words(outcome.target_tpot_s)}"
    return f"{words} and {share(outcome.latencies.attainment)} of the requests within it"


def _failure(study: FleetStudy, run: FleetRun) -> str:
    outcome = next(each for each in (run.outcome, *run.outcomes) if not each.meets)
    within = f"{share(outcome.latencies.attainment)} of the requests are within the SLO"
    if outcome.latencies.overloaded:
        return f"queues grow without end: {within}"
    rank = units.format_percentile(study.request.slo.percentile)
    if outcome.target_ttft_s > study.request.slo.ttft_s:
        return f"{rank} TTFT is {units.duration_in_words(outcome.target_ttft_s)}, and {within}"
    return f"{rank} TPOT is {units.duration_in_words(outcome.target_tpot_s or 0.0)}"


def _called(study: FleetStudy) -> Callable[[FleetLine], str]:
    """Return a function that names a line by its router, and its policy if lines have several."""
    policies = {id(line.policy) for line in study.lines}

    def name(line: FleetLine) -> str:
        star = _MARK if line.router.reference else ""
        router = f"{router_label(line.router)}{star}"
        return router if len(policies) == 1 else f"{router} + {_policy(study, line.policy)}"

    return name


def _policy(study: FleetStudy, policy: Policy) -> str:
    """Return a policy's name, with the parameters that differ between lines with that policy."""
    alike = [line.policy for line in study.lines if line.policy.name == policy.name]
    differing = [
        f"{name}={format_value(name, value)}"
        for name, value in policy.values.items()
        if len({other.values[name] for other in alike}) > 1
    ]
    return " ".join([policy.name, *differing])


def _here(study: FleetStudy) -> str:
    size = Sizes(study.trace.block_size, study.request.model).in_words(study.capacity_blocks)
    tier = f" + {tier_label(study.tier)}" if study.tier else ""
    each = "" if study.tier and study.tier.pool else " each"
    return f"{counted(study.chosen, 'replica')} of {size}{tier}{each}"


def _routers(study: FleetStudy, lines: Sequence[FleetLine]) -> Table:
    """Return a row for each router and policy at the answer's number of replicas."""
    name = _called(study)
    rows = [(name(line), count(line.fewest), got) for line, got in _outcomes(study, lines)]
    pooled = study.pooled.outcome if study.pooled else None
    if pooled is not None:
        rows.append((f"pooled{_MARK}", NONE, pooled))
    columns: Columns = {
        "router": lambda row: row[0],
        "needs": lambda row: row[1],
        **outcome_columns(rows, lambda row: row[2]),
        **({"from pool": lambda row: _from_files(row[2])} if study.pool_sizes else {}),
        "max/mean": lambda row: significant(row[2].imbalance.p50),
        "busiest": lambda row: share(max(each.utilization for each in row[2].replicas)),
    }
    note = (
        "needs: replicas to meet the SLO; max/mean: uncached tokens a minute, busiest replica over"
        " the mean, median minute; busiest: prefill utilization"
    )
    if any(len(run.outcomes) > 1 for line in study.lines for run in line.runs):
        note += f"; of {study.request.seeds} seeds the median, needs: with each of them"
    if pooled is not None or any(line.router.reference for line in study.lines):
        note += f"; {_MARK}: a reference, which no program offers"
    if pooled is not None:
        note += "; pooled: one cache and one queue for all"
    return tabulate("", rows, columns, note)


def _losses_title(study: FleetStudy) -> str:
    return f"Share of the input tokens with {counted(study.chosen, 'replica')}"


def _losses(study: FleetStudy, lines: Sequence[FleetLine]) -> Table:
    """Return a table of the hits that each router loses against an infinite cache."""
    name = _called(study)
    columns: Columns = {
        "router": lambda row: name(row[0]),
        "infinite cache": lambda row: share(row[1].infinite),
        "not held": lambda row: points(-row[1].not_held),
        "best available": lambda row: share(row[1].best_available),
        "not chosen": lambda row: points(-row[1].not_chosen),
        "hit rate": lambda row: share(row[1].taken),
    }
    note = "not held: by any single replica; not chosen: another replica held more"
    if (pooled := study.pooled) is not None:
        whose = "pools'" if study.tier else "replicas'"
        note += (
            f"; one cache of all {whose} size would hit {share(pooled.lru)} with lru,"
            f" {share(pooled.belady)} with belady"
        )
    return tabulate("", _outcomes(study, lines), columns, note)


def _by_count(study: FleetStudy) -> Table:
    """Return the share of requests within the SLO for each router and number of replicas."""
    name = _called(study)

    def cell(line: FleetLine, replicas: int) -> str:
        run = line.at(replicas)
        if run is None:
            return NONE
        if run.outcome.latencies.overloaded:
            return OVERLOADED
        values = [each.latencies.attainment for each in run.outcomes]
        low, high = share(min(values)), share(max(values))  # which differ where seeds do
        return high if low == high else f"{low.removesuffix('%')}–{high}"

    places = np.linspace(0, len(study.request.replicas) - 1, _COUNTS).round().astype(int)
    shown = [study.request.replicas[place] for place in np.unique(places)]
    columns: dict[str, Callable[[FleetLine], str]] = {"router": name}
    columns |= {str(number): partial(cell, replicas=number) for number in shown}
    return tabulate("Requests within the SLO, by number of replicas", study.ranked, columns)


def _named(study: FleetStudy) -> Lines:
    return {_called(study)(line): line.runs for line in study.ranked}


def attainment_chart(slo: Slo, lines: Lines) -> style.Figure:
    """Draw the share of requests within the SLO over the number of replicas."""
    title = f"Requests within {units.duration_in_words(slo.ttft_s)}"
    curves = _curves(lines, lambda outcome: outcome.latencies.attainment)
    chart = style.lines(title, "replicas", "share of the requests", curves, log="")
    _whole_replicas(chart, curves)
    shares = [run.outcome.latencies.attainment for runs in lines.values() for run in runs]
    least = min(slo.percentile, *shares)  # what lies around the SLO is to be seen
    chart.update_yaxes(range=[max(1.1 * least - 0.1, 0), 1.1 - 0.1 * least])
    return style.level(chart, slo.percentile, "SLO")


def ttft_chart(slo: Slo, lines: Lines) -> style.Figure:
    """Draw the SLO's percentile of TTFT over the number of replicas; a gap where queues grow."""

    def value(outcome: FleetOutcome) -> float | None:
        return outcome.target_ttft_s if np.isfinite(outcome.target_ttft_s) else None

    rank = units.format_percentile(slo.percentile)
    curves = _curves(lines, value)
    chart = style.lines(f"{rank} TTFT", "replicas", "TTFT (s)", curves, log="y", shares="")
    _whole_replicas(chart, curves)
    return style.level(chart, slo.ttft_s, "SLO")


def _growing(lines: Lines) -> str | None:
    """Return a note on fleets whose TTFT is not drawn, as their queues grow."""
    counts = {
        name: [run.fleet.replicas for run in runs if not np.isfinite(run.outcome.target_ttft_s)]
        for name, runs in lines.items()
    }
    texts = [f"{name} up to {max(few)}" for name, few in counts.items() if few]
    return f"Not drawn, as the queue grows: {listed(texts, _NAMED)}." if texts else None


def _curves(lines: Lines, value: Callable[[FleetOutcome], float | None]) -> list[style.Series]:
    """Return series of `value` over the number of replicas, one for each router and policy."""
    dashed = {"dash": "dot", "color": style.GREY, "width": 2}
    return [
        style.Series(
            name,
            [run.fleet.replicas for run in runs],
            [value(run.outcome) for run in runs],
            dashed if runs[0].fleet.router.reference else None,
            style.MARKED,
        )
        for name, runs in lines.items()
    ]


def _whole_replicas(chart: style.Figure, curves: Sequence[style.Series]) -> None:
    """Label whole numbers of replicas only, where Plotly would label fractions."""
    if all(max(curve.x) - min(curve.x) < _EACH_COUNT for curve in curves):
        chart.update_xaxes(dtick=1)


def losses_chart(study: FleetStudy) -> style.Figure:
    """Draw an infinite cache's hits by router, as bars: hit rate, not chosen, not held."""
    name = _called(study)
    known = _outcomes(study, study.ranked)
    groups = {
        "hit rate": [outcome.taken for _, outcome in known],
        "not chosen": [outcome.not_chosen for _, outcome in known],
        "not held": [outcome.not_held for _, outcome in known],
    }
    title = "Share of the input tokens, of what an infinite cache hits"
    names = [name(line) for line, _ in known]
    chart = style.bars(title, "share", "router", names, groups, height=160 + 40 * len(names))
    return chart.update_xaxes(tickformat=".0%").update_layout(barmode="stack")


def sent_chart(study: FleetStudy, line: FleetLine) -> style.Figure:
    """Draw the uncached tokens sent to each replica over time, behind one router."""
    run = line.at(study.chosen)
    assert run is not None  # noqa: S101  (every line has all numbers of replicas)
    outcome = run.outcome
    hours = [number * outcome.bin_s / 3600 for number in range(outcome.sent_tokens.shape[1])]
    return style.heat_map(
        f"Uncached tokens sent to each replica by {_called(study)(line)}",
        (style.HOURS, hours),
        ("replica", [str(number) for number in range(study.chosen)]),
        outcome.sent_tokens.tolist(),
        "replica %{y} at %{x:.2f} h: %{z:,.0f} tokens",
    )


def _replicas(study: FleetStudy) -> Table:
    rows = list(enumerate(study.answer.outcome.replicas))
    return tabulate(
        f"Behind {_called(study)(study.best)}",
        rows,
        {
            "replica": lambda row: str(row[0]),
            "requests": lambda row: count(row[1].latencies.requests if row[1].latencies else 0),
            "hit rate": lambda row: share(row[1].hit_rate),
            "computed tokens": lambda row: count(row[1].computed_tokens),
            "utilization": lambda row: share(row[1].utilization),
            **ttft_columns(rows, lambda row: row[1].latencies),
            "evictions": lambda row: count(row[1].evictions),
        },
    )


def _capacity(study: FleetStudy) -> list[Section]:
    """Return LRU's hit rate by replica capacity, for routers that see only the order; else []."""
    if not study.lru_curves:
        return []
    sizes = Sizes(study.trace.block_size, study.request.model)
    around = [max(round(study.capacity_blocks * times), 1) for times in (0.25, 0.5, 1, 2, 4)]
    columns: Columns = {
        "router": lambda row: row[0],
        **{
            sizes.label(blocks): partial(lambda blocks, row: share(row[1](blocks)), blocks)
            for blocks in around
        },
    }
    title = f"LRU's hit rate with {counted(study.chosen, 'replica')}, by the capacity of each"
    note = "exact at every capacity, since these routers see the order of requests alone"
    table = tabulate(title, _rates(study).items(), columns, note)
    return [Section.of("Capacity", table, partial(capacity_chart, study))]


def capacity_chart(study: FleetStudy) -> style.Figure:
    """Draw LRU's hit rate over the capacity of a replica."""
    axis = Sizes(study.trace.block_size, study.request.model).axis
    low, high = max(study.capacity_blocks / 16, 1.0), study.capacity_blocks * 16.0
    blocks = np.unique(np.geomspace(low, high, 100).astype(np.int64)).tolist()
    series = [
        style.Series(name, [axis.per_block * at for at in blocks], [rate(at) for at in blocks])
        for name, rate in _rates(study).items()
    ]
    chart = style.lines("LRU's hit rate", f"{axis.axis} of a replica", "hit rate", series)
    style.mark(chart, axis.per_block * study.capacity_blocks, "now", at=0.1, side="right")
    return chart


def _from_files(outcome: FleetOutcome) -> str:
    return NONE if outcome.from_files is None else share(outcome.from_files)


def _gib(value: float | None) -> str:
    return units.format_size(round(value * 2**30)) if value else NONE


def _pool(study: FleetStudy) -> list[Section]:
    """Return results and used size for shared pools of several sizes; [] without a shared pool."""
    if not study.pool_sizes:
        return []

    def size(row: PoolSize) -> str:
        return "no limit" if row.gib is None else _gib(row.gib) if row.gib else "none"

    def ttft(row: PoolSize) -> str:
        late = row.outcome.target_ttft_s
        return unit.cell(late) if np.isfinite(late) else OVERLOADED

    rank = units.format_percentile(study.request.slo.percentile)
    unit = time_unit(row.outcome.target_ttft_s for row in study.pool_sizes)
    columns: dict[str, Callable[[PoolSize], str]] = {
        "pool": size,
        "hit rate": lambda row: share(row.outcome.taken),
        "from pool": lambda row: _from_files(row.outcome),
        f"TTFT {rank} ({unit.name})": ttft,
        "within": lambda row: share(row.outcome.latencies.attainment),
        "used": lambda row: _gib(row.used_gib),
        "evicted": lambda row: _gib(row.evicted_gib),
        "not written": lambda row: _gib(row.refused_gib),
    }
    replicas, router = counted(study.chosen, "replica"), _called(study)(study.best)
    title = f"Pool: shared by {replicas} behind {router}"
    note = "used: in the end; not written: found no room, counted each time"
    return [Section.of(title, tabulate("", study.pool_sizes, columns, note))]


def _rates(study: FleetStudy) -> dict[str, Callable[[int], float]]:
    """Return functions from a replica's blocks to LRU's hit rate, by router or "pooled*"."""

    def of(curve: HitCurve, replicas: int = 1) -> Callable[[int], float]:
        return lambda blocks: float(curve.rate(replicas * blocks))

    rates = {name: of(curve) for name, curve in study.lru_curves.items()}
    if study.pooled_curve is not None:
        rates[f"pooled{_MARK}"] = of(study.pooled_curve, study.chosen)
    return rates


def _layers_counted(study: FleetStudy) -> str:
    """Return a sentence on which layers of a hybrid model's KV the simulated blocks hold."""
    alike = "hold the KV of all layers, without a hybrid model's windows or states"
    if study.groups is None:
        return f"Blocks {alike}: `kvscope simulate` and `tune` replay one engine with its groups."
    grouped = f"Simulated vLLMs cache layers in groups. {study.groups.in_words}"
    counted_alike = "the infinite and the pooled cache"
    if study.request.time_model == "queue":
        counted_alike = "the table's caches"
        if study.on_engines is None:
            return f"Blocks {alike}: --time-model engine replays vLLMs with its groups of layers."
    return f"{grouped} Blocks of {counted_alike} {alike}."


def _sharing(pool: SharedPool) -> str:
    """Return how replicas share a pool's files of KV blocks, and what is approximate."""
    link = f"{READS['remote'].bytes_per_s / 1e9:.3g} GB/s of its own"
    if np.isfinite(pool.bytes_per_s):
        link += f", of at most {pool.bytes_per_s / 1e9:.3g} GB/s for all together"
    evicts = ""
    if pool.evicts:
        evicts = (
            " Unlike vLLM's, files that were used least recently make room for others (evict=lru):"
            " an approximation of a cleaner of files or of another store."
        )
    return (
        f"All replicas share the files: each reads what any of them has written, over a link of"
        f" {link}. Which of two gets room or bandwidth first within a step is approximate.{evicts}"
    )


def _assumed(study: FleetStudy) -> list[str]:
    """Return the assumptions on time, latency, tiers, scaling, arrivals and policies."""
    words = [f"{_ASSUMED[study.time_model]} Latency of {study.request.setting.latency}."]
    where, think = study.request.deployment, study.think
    if where is not None and RANKS_APART in where.notes:
        words.append(f"{RANKS_APART[0].upper()}{RANKS_APART[1:]}.")
    if where is not None and where.kv_groups is not None:
        words.append(_layers_counted(study))
    if study.tier is not None:
        words.append(
            f"{study.tier.spec.in_words} Routers and best available see the pools of other replicas"
            " without their tiers."
        )
        if study.tier.pool is not None:
            words.append(_sharing(study.tier.pool))
    if study.autoscaled is not None:
        words.append(
            "Scaling: by Kubernetes's defaults, every 15 s, on the requests of the last minute; the"
            " latest replicas leave first, end what they have begun and come back empty. Routers"
            " forget them."
        )
    if study.disaggregated is not None:
        words.append(
            "Apart: a prefill replica sends the KV of whole prompts, one after the other, and does"
            " not hold its blocks meanwhile; decode replicas are chosen by their requests, and get"
            " the KV of preempted ones back at no cost."
            + (" Replayed with one seed." if study.best.router.draws else "")
        )
    if think is None:
        words.append("Open loop: requests arrive at the times of the trace.")
    else:
        stated = [f"{count(think.stated)} as the trace states it"] if think.stated else []
        times = {"recorded duration": think.recorded, "estimated service": think.estimated}
        known = [f"{count(number)} less the {what}" for what, number in times.items() if number]
        gaps = [f"the gap in the trace {', '.join(known)}"] if known else []
        gaps += [f"{count(think.floored)} would be negative and are 0"] if known else []
        words.append(
            "Closed loop: a turn arrives its think time after the previous one's simulated end,"
            f" {'; '.join([*stated, *gaps])}."
        )
    learned = "What policies learn is learned of the whole fleet's traffic."
    if study.time_model == "queue" and study.on_engines is None:
        learned += " Not replayed on simulated engines."
    words.append(learned)
    return words
