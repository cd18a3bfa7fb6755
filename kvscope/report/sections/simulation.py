"""Policies beside each other: who is best at which capacity, and what the optimum leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from kvscope.app.simulate import Simulation, ordered
from kvscope.core import units
from kvscope.core.kv_size import ModelKv
from kvscope.core.runs import Run, RunSetting
from kvscope.core.trace import Trace
from kvscope.report import html
from kvscope.report.report import trace_in_words
from kvscope.report.run_names import Contest, contest, hit_rate, names
from kvscope.report.section import Section, Table
from kvscope.report.sections.run_cells import (
    NONE,
    apart_in_ms,
    apart_in_s,
    in_ms,
    in_s,
    run_cells,
    run_columns,
    size_cells,
    size_columns,
)
from kvscope.report.sections.tiers import tier_sections
from kvscope.report.words import definition_in_words

_STAR = "* knows the future: a ceiling, not a choice"
_COMPARED = 5  # policies that fit side by side


def sections(found: Simulation) -> list[Section]:
    """The first screen, then every run."""
    return [summary(found), *_runs(found), *tier_sections(found), *_categories(found)]


def kept(trace: Trace, runs: Sequence[Run], model: ModelKv | None) -> list[Section]:
    """Runs that a store keeps: a section for each setting, a row a run."""
    by_setting: dict[RunSetting, list[Run]] = {}
    for run in ordered(runs):
        by_setting.setdefault(run.setting, []).append(run)
    return [
        Section(
            trace.name if setting.slo_s is None else f"{trace.name}, SLO {_slo(setting)}",
            sentences=setting_in_words(setting),
            tables=(_kept(trace, setting, alike, model),),
        )
        for setting, alike in by_setting.items()
    ]


def _kept(trace: Trace, setting: RunSetting, runs: list[Run], model: ModelKv | None) -> Table:
    name = names(runs)
    policy, *figures = run_columns(setting)
    rows = tuple(
        (name(run), *size_cells(run.capacity_blocks, trace.block_size, model), *run_cells(run))
        for run in runs
    )
    note = _STAR if any(run.hindsight for run in runs) else ""
    return Table("", (policy, *size_columns(model), *figures), rows, note)


def html_report(found: Simulation) -> str:
    """The simulation as one self-contained HTML page."""
    lead = trace_in_words(found.trace)
    return html.page(f"kvscope simulate: {found.trace.name}", lead, sections(found))


def summary(found: Simulation) -> Section:
    """Which policy wins at each capacity, in hits and in the tail; what the optimum leaves."""
    hits = {
        at: contest(found.at(at), lambda run: -hit_rate(found.setting, run.outcome))
        for at in found.capacities
    }
    tails = {
        at: contest(found.at(at), lambda run: run.outcome.ttft_ms.p95) for at in found.capacities
    }
    tables = [_hits_table(found, hits), _tail_table(found, tails)]
    if found.setting.slo_s is not None:
        excess = {
            at: contest(found.at(at), lambda run: run.outcome.tel_ms or 0.0)
            for at in found.capacities
        }
        tables.append(_excess_table(found, excess))
    sentences = (*setting_in_words(found.setting), *_verdict(found, hits, tails))
    return Section("Summary", sentences, tuple(tables))


def setting_in_words(setting: RunSetting) -> tuple[str, ...]:
    """What the numbers count and assume."""
    assumed = [f"latency of {setting.latency}"]
    if setting.slo_s is not None:
        assumed.append(f"SLO {_slo(setting)}")
    if setting.rate_scale != 1:
        assumed.append(f"arrivals {setting.rate_scale:g} times as fast")
    if setting.isolate:
        assumed.append(f"no block shared between {setting.isolate}s")
    counted = definition_in_words(setting.definition)
    sentences = [
        f"Hit rates: {counted}. {_capacity_in_words(setting)}",
        f"TTFT: {', '.join(assumed)}.",
    ]
    if not setting.exact:
        sentences.append(_estimated_in_words(setting))
    return tuple(sentences)


def _capacity_in_words(setting: RunSetting) -> str:
    if setting.tiers:
        return f"Capacity is that of {setting.tiers} together, {setting.tier_mode}."
    if setting.capacity_model == "engine":
        return (
            "Capacity is an engine's block pool, of which running requests take theirs too:"
            f" at most {units.format_count(setting.max_num_seqs or 0)} at once,"
            f" {units.format_count(setting.max_num_batched_tokens or 0)} tokens a step."
        )
    return "Capacity bounds what is kept between requests."


def _estimated_in_words(setting: RunSetting) -> str:
    share = units.format_share(setting.sample_rate)
    of = "all requests" if setting.sample_rate == 1 else f"{share} of the trace"
    grain = "" if setting.coarsen == 1 else f", {setting.coarsen} blocks as one"
    return f"Estimated from {of}{grain}: counts, TTFT and TEL are the sample's."


def _verdict(found: Simulation, hits: dict[int, Contest], tails: dict[int, Contest]) -> list[str]:
    """In words who wins where."""
    sentences = []
    for what, contests in (("hit rate", hits), ("p95 TTFT", tails)):
        wins = Counter(one.best.policy for one in contests.values() if one.best is not None)
        if wins:
            told = ", ".join(f"{policy} at {count}" for policy, count in wins.most_common())
            capacities = "capacity" if len(contests) == 1 else "capacities"
            sentences.append(
                f"Best {what} without knowing the future: {told} of {len(contests)} {capacities}."
            )
    left = [
        hit_rate(found.setting, one.optimum.outcome) - hit_rate(found.setting, one.best.outcome)
        for one in hits.values()
        if one.best is not None and one.optimum is not None
    ]
    if left:
        spread = dict.fromkeys(units.format_pp(one) for one in (min(left), max(left)))
        sentences.append(f"The optimum would hit {' to '.join(spread)} beyond the best of them.")
    return sentences


def _hits_table(found: Simulation, hits: dict[int, Contest]) -> Table:
    def rate(run: Run) -> float:
        return hit_rate(found.setting, run.outcome)

    return _contest_table(
        found, hits, "Hit rate", "hit rate", rate, units.format_share, units.format_pp
    )


def _tail_table(found: Simulation, tails: dict[int, Contest]) -> Table:
    return _contest_table(
        found, tails, "p95 TTFT", "p95", lambda run: run.outcome.ttft_ms.p95, in_ms, apart_in_ms
    )


def _excess_table(found: Simulation, excess: dict[int, Contest]) -> Table:
    return _contest_table(
        found,
        excess,
        "Tail excess latency (TEL), summed over all requests",
        "TEL",
        lambda run: run.outcome.tel_ms or 0.0,
        in_s,
        apart_in_s,
    )


def _contest_table(
    found: Simulation,
    contests: dict[int, Contest],
    title: str,
    column: str,
    measure: Callable[[Run], float],
    shown: Callable[[float], str],
    apart: Callable[[float], str],
) -> Table:
    """A row a capacity: the best, how far it is from LRU, and how far the optimum is from it."""
    name = names(found.runs)

    def told(run: Run | None) -> str:
        return NONE if run is None else shown(measure(run))

    def distance(run: Run | None, other: Run | None) -> str:
        return NONE if run is None or other is None else apart(measure(run) - measure(other))

    rows = tuple(
        (
            *size_cells(capacity, found.trace.block_size, found.model),
            NONE if one.best is None else name(one.best),
            told(one.best),
            told(one.baseline),
            distance(one.best, one.baseline),
            told(one.optimum),
            distance(one.optimum, one.best),
        )
        for capacity, one in contests.items()
    )
    columns = (*size_columns(found.model), "best", column, "lru", "vs lru", "optimum", "left")
    if all(one.optimum is None for one in contests.values()):
        return Table(title, columns[:-2], tuple(row[:-2] for row in rows))
    return Table(title, columns, rows, note="left: by how much the optimum is beyond the best")


def _runs(found: Simulation) -> list[Section]:
    """Every run, a table a capacity."""
    from kvscope.report.charts import policies as charts

    figures = [partial(charts.hit_rates, found)]
    figures += [partial(charts.ttft, found, one) for one in ("p50", "p95", "p99")]
    if found.setting.slo_s is not None:
        figures.append(partial(charts.tail_excess, found))
    tables = tuple(_at(found, capacity) for capacity in found.capacities)
    return [Section("Policies", tables=tables, figures=tuple(figures))] if found.runs else []


def _at(found: Simulation, capacity: int) -> Table:
    size = units.blocks_tokens_bytes(
        capacity,
        block_size=found.trace.block_size,
        bytes_per_token=found.model.bytes_per_token if found.model else None,
    )
    runs = found.at(capacity)
    name = names(found.runs)
    return Table(
        f"At {size}",
        run_columns(found.setting),
        tuple((name(run), *run_cells(run)) for run in runs),
        note=_STAR if any(run.hindsight for run in runs) else "",
    )


def _categories(found: Simulation) -> list[Section]:
    """Hit rates by category at the capacity in the middle."""
    from kvscope.report.charts import policies as charts

    if not found.capacities:
        return []
    capacity = found.capacities[len(found.capacities) // 2]
    runs = found.at(capacity)[:_COMPARED]
    name = names(found.runs)
    by_run = [
        {part.category: part.outcome for part in run.parts if part.category is not None}
        for run in runs
    ]
    categories = list(dict.fromkeys(category for known in by_run for category in known))
    rows = tuple(
        (
            category,
            units.format_count(next(one[category].requests for one in by_run if category in one)),
            *(
                units.format_share(hit_rate(found.setting, one[category]))
                if category in one
                else NONE
                for one in by_run
            ),
        )
        for category in categories
    )
    table = Table(
        f"Hit rate by category at {units.format_count(capacity)} blocks",
        ("category", "requests", *(name(run) for run in runs)),
        rows,
    )
    return [
        Section(
            "Categories", tables=(table,), figures=(partial(charts.over_time, found, capacity),)
        )
    ]


def _slo(setting: RunSetting) -> str:
    return units.format_duration(setting.slo_s or 0.0)
