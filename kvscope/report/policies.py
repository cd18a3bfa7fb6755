"""Policies side by side: the best at each capacity, the gap to the optimum, and every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvscope.app.requests import BASELINE
from kvscope.app.simulate import Simulation, ordered
from kvscope.core import units
from kvscope.core.kv_size import ModelKv
from kvscope.core.runs import Run, RunSetting
from kvscope.core.trace import Trace
from kvscope.replay.curve import HitCurve
from kvscope.report import html, style, ttft
from kvscope.report.runs import (
    ORACLE_NOTE,
    SYMBOLS,
    Contest,
    contest,
    difference,
    hit_rate,
    is_plain_lru,
    ms_in_words,
    names,
    policy_line,
    run_cells,
    run_columns,
)
from kvscope.report.section import Section, Table
from kvscope.report.sizes import Sizes, Unit
from kvscope.report.words import FEWEST, NONE, definition_in_words, significant, trace_in_words

if TYPE_CHECKING:
    import plotly.graph_objects as go

SECTIONS = ("summary", "policies", "tiers", "categories")
"""What `--section` of `kvscope simulate` takes; tiers only where the cache has several."""

_ROWS = 12  # of a table on the one screen
_COMPARED = 5  # policies that fit side by side
_CURVE_POINTS = 200
_SMOOTH_POINTS = 300


def screen(simulation: Simulation) -> list[Section]:
    """Return the one screen: the best policies, and the runs at the capacity in the middle."""
    first = summary(simulation)
    if not simulation.runs:
        return [first]
    tables = (*first.tables[:1], _policy_table(simulation, _middle(simulation), _ROWS))
    if not first.tables:  # there is room
        tables = (*tables, _category_table(simulation, _ROWS))
    return [Section(first.title, first.sentences, tables)]


def sections(simulation: Simulation) -> list[Section]:
    """Return every section, the summary first."""
    return [
        summary(simulation),
        *_runs(simulation),
        *tier_sections(simulation),
        *_categories(simulation),
    ]


def stored(trace: Trace, runs: Sequence[Run], model: ModelKv | None) -> list[Section]:
    """Return the runs of a store: a section for each setting, a row a run."""
    by_setting: dict[RunSetting, list[Run]] = {}
    for run in ordered(runs):
        by_setting.setdefault(run.setting, []).append(run)
    sizes = Sizes(trace.block_size, model)
    return [
        Section(
            trace.name if setting.slo_s is None else f"{trace.name}, SLO {_slo(setting)}",
            sentences=setting_in_words(setting),
            tables=(_stored_table(sizes, setting, alike),),
        )
        for setting, alike in by_setting.items()
    ]


def _stored_table(sizes: Sizes, setting: RunSetting, runs: list[Run]) -> Table:
    name = names(runs)
    policy, *figures = run_columns(setting)
    rows = tuple((name(run), *sizes.cells(run.capacity_blocks), *run_cells(run)) for run in runs)
    return Table("", (policy, *sizes.columns, *figures), rows, _star(runs))


def html_report(simulation: Simulation) -> str:
    """Return the simulation as one self-contained HTML page."""
    lead = trace_in_words(simulation.trace)
    return html.page(f"kvscope simulate: {simulation.trace.name}", lead, sections(simulation))


@dataclass(frozen=True, slots=True)
class _Measure:
    """A measure of runs, of which the lowest is the best, and how to write it and its change."""

    title: str
    column: str
    best: str
    value: Callable[[Run], float]
    write: Callable[[float], str]
    change: Callable[[float], str]


def _measures(setting: RunSetting) -> list[_Measure]:
    hits = _Measure(
        "Hit rate",
        "hit rate",
        "Most hits",
        lambda run: -hit_rate(setting, run.outcome),
        lambda rate: units.format_share(-rate),
        lambda loss: units.format_pp(-loss),
    )
    tail = _Measure(
        *("p95 TTFT", "p95", "Lowest p95 TTFT"),
        lambda run: run.outcome.ttft_ms.p95,
        ms_in_words,
        partial(difference, write=ms_in_words),
    )
    excess = _Measure(
        *("Tail excess latency (TEL), summed over all requests", "TEL", "Lowest TEL"),
        lambda run: (run.outcome.tel_ms or 0.0) / 1e3,
        _seconds,
        partial(difference, write=_seconds),
    )
    return [hits, tail] if setting.slo_s is None else [hits, tail, excess]


def summary(simulation: Simulation) -> Section:
    """Return the best policy at each capacity by hits, p95 TTFT and TEL, and the gap to optimum."""
    sentences, tables = [], []
    for measure in _measures(simulation.setting):
        best = {at: contest(simulation.at(at), measure.value) for at in simulation.capacities}
        sentences += _verdict(simulation, measure, best)
        if len(best) > 1:  # for one capacity the sentence says it
            tables.append(_contest_table(simulation, measure, best))
    words = (*sentences, *setting_in_words(simulation.setting))
    return Section("Summary", words, tuple(tables))


def _verdict(simulation: Simulation, measure: _Measure, contests: dict[int, Contest]) -> list[str]:
    """Return the best policies by a measure in words."""
    name, value, write = names(simulation.runs), measure.value, measure.write
    best = {at: runs.best for at, runs in contests.items() if runs.best is not None}
    if len(contests) > 1 and best:
        wins = Counter(map(name, best.values()))
        policies = ", ".join(f"{policy} at {count}" for policy, count in wins.most_common())
        return [f"{measure.best}: {policies} of {len(contests)} capacities."]
    sentences = []
    for at, run in best.items():
        words = (
            f"{measure.best} at {_sizes(simulation).label(at)}: {name(run)}, {write(value(run))}"
        )
        lru, optimum = contests[at].baseline, contests[at].optimum
        if lru is not None and lru is not run:
            change = measure.change(value(run) - value(lru))
            words += f" ({change} vs LRU's {write(value(lru))})"
        if optimum is not None:
            gap = measure.change(value(optimum) - value(run))
            words += f"; optimum {write(value(optimum))} (gap {gap})"
        sentences.append(f"{words}.")
    return sentences


def setting_in_words(setting: RunSetting) -> tuple[str, ...]:
    """Return what the numbers count and assume."""
    assumed = [f"latency profile {setting.latency}"]
    if setting.slo_s is not None:
        assumed.append(f"SLO {_slo(setting)}")
    if setting.rate_scale != 1:
        assumed.append(f"arrival rate × {setting.rate_scale:g}")
    if setting.isolate:
        assumed.append(f"no block shared between {setting.isolate}s")
    sentences = [
        f"Counted: {definition_in_words(setting.definition)}. {_capacity_in_words(setting)}",
        f"TTFT: {', '.join(assumed)}.",
    ]
    if not setting.exact:
        sentences.append(_estimated_in_words(setting))
    return tuple(sentences)


def _capacity_in_words(setting: RunSetting) -> str:
    if setting.tiers:
        return f"Capacity: {setting.tiers} together, {setting.tier_mode}."
    if setting.capacity_model == "engine":
        return (
            "Capacity: an engine's block pool, which also holds the blocks of running requests; at"
            f" most {units.format_count(setting.max_num_seqs or 0)} run at once, with"
            f" {units.format_count(setting.max_num_batched_tokens or 0)} tokens per step."
        )
    return "Capacity: idle cached blocks; add KV memory for running requests."


def _estimated_in_words(setting: RunSetting) -> str:
    sample = units.format_share(setting.sample_rate)
    of = "all requests" if setting.sample_rate == 1 else f"{sample} of the trace"
    grain = "" if setting.coarsen == 1 else f", {setting.coarsen} blocks taken as one"
    return f"Estimated from {of}{grain}: counts, TTFT and TEL are those of the sample."


def _contest_table(
    simulation: Simulation, measure: _Measure, contests: dict[int, Contest]
) -> Table:
    """Return a row a capacity: the best policy, its change vs LRU, and the gap to the optimum."""
    name, sizes = names(simulation.runs), _sizes(simulation)

    def cell(run: Run | None) -> str:
        return NONE if run is None else measure.write(measure.value(run))

    def change(run: Run | None, other: Run | None) -> str:
        if run is None or other is None:
            return NONE
        return measure.change(measure.value(run) - measure.value(other))

    rows = tuple(
        (
            *sizes.cells(capacity),
            NONE if runs.best is None else name(runs.best),
            cell(runs.best),
            cell(runs.baseline),
            change(runs.best, runs.baseline),
            cell(runs.optimum),
            change(runs.optimum, runs.best),
        )
        for capacity, runs in contests.items()
    )
    columns = (*sizes.columns, "best", measure.column, "lru", "vs lru", "optimum", "gap")
    if all(runs.optimum is None for runs in contests.values()):
        return Table(measure.title, columns[:-2], tuple(row[:-2] for row in rows))
    return Table(measure.title, columns, rows, note="gap: optimum minus best policy")


def _runs(simulation: Simulation) -> list[Section]:
    """Return every run, a table a capacity."""
    if not simulation.runs:
        return []
    figures = [partial(hit_rates_chart, simulation)]
    figures += [partial(ttft_chart, simulation, rank) for rank in ("p50", "p95", "p99")]
    if simulation.setting.slo_s is not None:
        figures.append(partial(tail_excess_chart, simulation))
    tables = tuple(_policy_table(simulation, capacity) for capacity in simulation.capacities)
    return [Section("Policies", tables=tables, figures=tuple(figures))]


def _policy_table(simulation: Simulation, capacity: int, limit: int | None = None) -> Table:
    """Return a row a run, most hits first and oracles last; with `limit`, LRU and the best."""
    name = names(simulation.runs)
    runs = simulation.at(capacity)
    ranked = sorted(runs, key=lambda run: (run.hindsight, -hit_rate(run.setting, run.outcome)))
    note = _star(runs)
    if limit is not None and len(ranked) > limit:
        pinned = [run for run in ranked if run.policy == BASELINE][:1]
        pinned += [run for run in ranked if run.hindsight][:2]
        others = [run for run in ranked if not any(run is pin for pin in pinned)]
        shown = {id(run) for run in (*pinned, *others[: limit - len(pinned)])}
        ranked = [run for run in ranked if id(run) in shown]
        note += f"{'; ' if note else ''}{len(runs) - limit} more runs with --section policies"
    return Table(
        f"At {_sizes(simulation).in_words(capacity)}",
        run_columns(simulation.setting),
        tuple((name(run), *run_cells(run)) for run in ranked),
        note,
    )


def tier_sections(simulation: Simulation) -> list[Section]:
    """Return a row for each tier of each run; nothing where the cache has one tier."""
    name, sizes = names(simulation.runs), _sizes(simulation)
    rows = tuple(
        (
            name(run),
            tier.name,
            sizes.label(tier.capacity_blocks),
            units.format_count(tier.hit_tokens),
            units.format_share(tier.token_hit_rate),
            significant(tier.transfer_ms / run.outcome.requests)
            if run.outcome.requests and tier.transfer_ms
            else NONE,
            units.format_count(tier.evictions),
            units.format_count(tier.demotions),
        )
        for run in simulation.runs
        for tier in run.tiers
    )
    if not rows:
        return []
    columns = (
        *("policy", "tier", "capacity", "hit tokens", "hit rate"),
        *("transfer (ms)", "evictions", "demotions"),
    )
    note = "transfer: mean wait of a request for this tier's blocks, part of its TTFT"
    return [Section("Tiers", tables=(Table("Hits by tier", columns, rows, note),))]


def _categories(simulation: Simulation) -> list[Section]:
    """Return hit rates by category at the capacity in the middle."""
    if not simulation.capacities:
        return []
    figures = (partial(over_time_chart, simulation, _middle(simulation)),)
    return [Section("Categories", tables=(_category_table(simulation),), figures=figures)]


def _category_table(simulation: Simulation, limit: int | None = None) -> Table:
    """Return hit rates by category, most requests first; with `limit` without small categories."""
    capacity = _middle(simulation)
    runs = simulation.at(capacity)[:_COMPARED]
    name = names(simulation.runs)
    by_run = [
        {part.category: part.outcome for part in run.parts if part.category is not None}
        for run in runs
    ]
    requests = {
        category: outcome.requests for outcomes in by_run for category, outcome in outcomes.items()
    }
    rows = tuple(
        (
            category,
            units.format_count(count),
            *(
                units.format_share(hit_rate(simulation.setting, outcomes[category]))
                if category in outcomes
                else NONE
                for outcomes in by_run
            ),
        )
        for category, count in sorted(requests.items(), key=lambda item: -item[1])[:limit]
        if limit is None or count >= FEWEST
    )
    more = len(requests) - len(rows)
    return Table(
        f"Hit rate by category at {_sizes(simulation).label(capacity)}",
        ("category", "requests", *(name(run) for run in runs)),
        rows,
        note=f"{more} smaller categories with --section categories" if more else "",
    )


def _middle(simulation: Simulation) -> int:
    return simulation.capacities[len(simulation.capacities) // 2]


def _sizes(simulation: Simulation) -> Sizes:
    return Sizes(simulation.trace.block_size, simulation.model)


def _star(runs: Sequence[Run]) -> str:
    return ORACLE_NOTE if any(run.hindsight for run in runs) else ""


def _seconds(seconds: float) -> str:
    return f"{significant(seconds)} s"


def _slo(setting: RunSetting) -> str:
    return units.duration_in_words(setting.slo_s or 0.0)


def hit_rates_chart(simulation: Simulation) -> go.Figure:
    """Build hit rate over capacity: LRU at every capacity, the others where they were replayed."""
    weight, unit = simulation.setting.definition.weight, _sizes(simulation).axis
    chart = _by_capacity("Hit rate by policy", f"hit rate by {weight}", unit)
    curve = simulation.curve
    if curve is not None:
        low, high = simulation.capacities[0], simulation.capacities[-1]
        grid = np.unique(np.geomspace(max(low, 1), max(high, 1), _CURVE_POINTS).astype(np.int64))
        chart.add_scatter(
            x=(grid * unit.per_block).tolist(),
            y=curve.rate(grid).tolist(),
            name=BASELINE,
            mode="lines",
            line=policy_line(BASELINE),
        )
        style.level(chart, curve.ideal, f"infinite cache {curve.ideal:.1%}")
    for name, runs, marker in _series(simulation):
        if curve is not None and is_plain_lru(runs[0]):
            continue  # the line is there already, exact at every capacity
        rate = partial(_rate, simulation.setting)
        _add(chart, name, runs, marker, unit, rate)
    style.logarithmic(chart, counts=unit.name == "blocks")
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def ttft_chart(simulation: Simulation, percentile: str) -> go.Figure:
    """Build a percentile of the unloaded time to first token over capacity."""

    def ttft_ms(run: Run) -> float:
        return float(getattr(run.outcome.ttft_ms, percentile))

    chart = _measured(simulation, f"TTFT, {percentile}", f"{percentile} TTFT (ms)", ttft_ms)
    if simulation.setting.slo_s is not None:
        style.level(chart, simulation.setting.slo_s * 1e3, "SLO")
    return chart


def tail_excess_chart(simulation: Simulation) -> go.Figure:
    """Build tail excess latency over capacity."""
    title = "Tail excess latency"
    return _measured(simulation, title, "TEL (s)", lambda run: (run.outcome.tel_ms or 0.0) / 1e3)


def over_time_chart(simulation: Simulation, capacity_blocks: int) -> go.Figure:
    """Build hit rate over time at one capacity."""
    title = f"Hit rate over time at {_sizes(simulation).label(capacity_blocks)}"
    chart = style.figure(title, "time (h)", "hit rate")
    for name, runs, _ in _series(simulation):
        for run in runs:
            if run.capacity_blocks != capacity_blocks:
                continue
            parts = [part for part in run.parts if part.start_s is not None]
            chart.add_scatter(
                x=[(part.start_s or 0.0) / 3600 for part in parts],
                y=[hit_rate(simulation.setting, part.outcome) for part in parts],
                name=name,
                line=policy_line(run.policy),
            )
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def trade_off_chart(simulation: Simulation, capacity_blocks: int) -> go.Figure:
    """Build p95 against median TTFT at one capacity: every run as a point."""
    name = names(simulation.runs)
    points = [
        ttft.Point(run.policy, name(run), run.outcome.ttft_ms.p50, run.outcome.ttft_ms.p95)
        for run in simulation.at(capacity_blocks)
    ]
    title = f"Median against tail at {_sizes(simulation).label(capacity_blocks)}"
    return ttft.trade_off_chart(title, "p50 TTFT", "p95 TTFT", points)


def lru_curve_chart(
    curve: HitCurve,
    unit: Unit,
    *,
    at_blocks: int,
    working_set_blocks: int | None = None,
    runs: Sequence[Run] = (),
) -> go.Figure:
    """Build LRU's hit rate at every capacity; `at_blocks` marked; `runs` of one setting as points.

    Of each policy the parameters with most runs are drawn.
    """
    title, weight = "LRU's exact hit rate at every capacity", curve.definition.weight
    chart = style.figure(title, f"capacity ({unit.name})", f"hit rate by {weight}", height=430)
    largest = max(int(curve.knots[-1]), at_blocks, 2)
    grid = np.unique(np.geomspace(1, largest, _SMOOTH_POINTS).round().astype(np.int64))
    chart.add_scatter(
        x=(grid * unit.per_block).tolist(),
        y=curve.rate(grid).tolist(),
        name=BASELINE,
        line=policy_line(BASELINE),
        hovertemplate="%{x:,.4~g} " + unit.name + ": %{y:.2%}",
    )
    name = names(runs)
    by_policy: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        if not is_plain_lru(run):  # which is the line
            by_policy.setdefault(run.policy, {}).setdefault(name(run), []).append(run)
    for by_name in by_policy.values():
        label, alike = max(by_name.items(), key=lambda item: len(item[1]))
        chart.add_scatter(
            x=[run.capacity_blocks * unit.per_block for run in alike],
            y=[hit_rate(run.setting, run.outcome) for run in alike],
            name=style.label(label),
            mode="markers+lines",
            line={**policy_line(alike[0].policy), "width": 1},
            marker={"size": 8},
        )
    style.point(chart, at_blocks * unit.per_block, float(curve.rate(at_blocks)), "chosen")
    style.level(chart, curve.ideal, f"infinite cache {curve.ideal:.1%}")
    if working_set_blocks:
        style.mark(chart, working_set_blocks * unit.per_block, "working set, peak")
    style.logarithmic(chart, counts=unit.name in {"blocks", "tokens"})
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def _by_capacity(title: str, measure: str, unit: Unit) -> go.Figure:
    return style.figure(title, f"capacity ({unit.name})", measure)


def _measured(
    simulation: Simulation, title: str, axis: str, value: Callable[[Run], float]
) -> go.Figure:
    """Build a measure of every run over capacity."""
    unit = _sizes(simulation).axis
    chart = _by_capacity(title, axis, unit)
    for name, runs, marker in _series(simulation):
        _add(chart, name, runs, marker, unit, value)
    style.logarithmic(chart, counts=unit.name == "blocks")
    chart.update_yaxes(rangemode="tozero")
    return chart


def _rate(setting: RunSetting, run: Run) -> float:
    return hit_rate(setting, run.outcome)


def _series(simulation: Simulation) -> Iterator[tuple[str, list[Run], str]]:
    """Return the runs that differ in capacity alone: their name, the runs, their marker."""
    name = names(simulation.runs)
    by_name: dict[str, list[Run]] = {}
    for run in simulation.runs:
        by_name.setdefault(name(run), []).append(run)
    seen: Counter[str] = Counter()
    for label, runs in by_name.items():
        marker = SYMBOLS[seen[runs[0].policy] % len(SYMBOLS)]
        seen[runs[0].policy] += 1
        yield label, runs, marker


def _add(
    chart: go.Figure,
    name: str,
    runs: list[Run],
    marker: str,
    unit: Unit,
    value: Callable[[Run], float],
) -> None:
    chart.add_scatter(
        x=[run.capacity_blocks * unit.per_block for run in runs],
        y=[value(run) for run in runs],
        name=style.label(name),
        mode="lines+markers",
        line=policy_line(runs[0].policy),
        marker={"symbol": marker, "size": 7},
    )
