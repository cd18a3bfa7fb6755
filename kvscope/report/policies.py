"""Policies side by side: the best at each capacity, its gap to the best known, and every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct

from kvscope.app.requests import BASELINE
from kvscope.app.simulate import Simulation, ordered
from kvscope.core import units
from kvscope.core.hits import HitDefinition
from kvscope.core.runs import Outcome, Run, RunSetting, TierOutcome, hit_rate
from kvscope.core.trace import Trace
from kvscope.deployment.deployment import Deployment
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.models import Model
from kvscope.policies.belady import Belady
from kvscope.policies.lru import RETENTION
from kvscope.replay.curve import HitCurve
from kvscope.replay.policy_options import format_value
from kvscope.replay.tier_spec import offload_launch, offload_of
from kvscope.report import style, ttft
from kvscope.report.runs import (
    BEST_KNOWN,
    OPTIMUM,
    ORACLE_NOTE,
    SYMBOLS,
    Contest,
    contest,
    is_plain_lru,
    names,
    policy_line,
    rate,
    run_columns,
)
from kvscope.report.section import Section, Table, tabulate
from kvscope.report.words import (
    NONE,
    SECONDS,
    Sizes,
    TimeUnit,
    Unit,
    count,
    definition_in_words,
    difference,
    large,
    left_out,
    points,
    share,
    significant,
    time_unit,
)

_ROWS = 12  # of a table on the one screen
_COMPARED = 5  # policies that fit side by side
_CURVE_POINTS = 200
_AROUND = 4  # of a single capacity, LRU's line goes so many times lower and higher
_VISIBLE = 0.01  # of the ideal hit rate: where the curve begins
_SMOOTH_POINTS = 300


def screen(simulation: Simulation) -> list[Section]:
    """Return one screen: the best policies, and the runs at the capacity in the middle."""
    first = summary(simulation)
    if not simulation.runs:
        return [first]
    tables = [*first.tables[:1]]
    if not simulation.without_tier:
        tables.append(_policy_table(simulation, simulation.middle, _ROWS))
    offload = tier_sections(simulation)
    launch = [sentence for section in offload for sentence in section.sentences]
    tables += [table for section in offload for table in section.tables]
    if not first.tables and not offload:  # there is room
        tables.append(_category_table(simulation, _ROWS))
    return [Section.of(first.title, *first.sentences, *launch, *tables)]


def sections(simulation: Simulation) -> list[Section]:
    """Return every section, the summary first."""
    if not simulation.runs:
        return [summary(simulation)]
    over_time = partial(over_time_chart, simulation, simulation.middle)
    return [
        summary(simulation),
        *([] if simulation.without_tier else [_runs(simulation)]),  # the summary has both of them
        *tier_sections(simulation),
        Section.of("Categories", _category_table(simulation), over_time),
    ]


def stored(trace: Trace, runs: Sequence[Run], model: Model | None) -> list[Section]:
    """Return a store's runs: a section per pair of setting and deployment, a row per run."""
    by_setting: dict[tuple[RunSetting, str], list[Run]] = {}
    for run in ordered(runs):
        where = "" if run.deployment is None else Deployment(**run.deployment).in_words
        by_setting.setdefault((run.setting, where), []).append(run)
    sizes = Sizes(trace.block_size, model).columns(lambda run: run.capacity_blocks)
    known = []
    for (setting, where), alike in by_setting.items():
        slo = "" if setting.slo_s is None else f", SLO {units.duration_in_words(setting.slo_s)}"
        columns = {"policy": names(alike), **sizes, **run_columns(alike)}
        columns["run"] = lambda run: str(run.run_id)
        table = tabulate("", alike, columns, _star(alike))
        words = [f"Deployment: {where}."] if where else []
        known.append(Section.of(f"{trace.name}{slo}", *words, *setting_in_words(setting), table))
    return known


class _Measure(Struct, frozen=True):
    """A figure to rank runs by, lower is better: a time (s) with a `unit`, or a negated share.

    `value` returns it for a run. The sentence on the best run begins with `best`; the table has the
    title `title`, and a column `name`.
    """

    best: str
    title: str
    name: str
    value: Callable[[Run], float]
    unit: TimeUnit | None = None

    def bound(self, runs: Sequence[Run]) -> str:
        """Return what the best of `runs` is called: OPTIMUM if proved, else BEST_KNOWN.

        Belady is proved optimal for hits, if hits count whole blocks of a whole trace.
        """
        proven = self.unit is None and all(run.policy == Belady.name for run in runs)
        whole = all(_counts_whole_blocks(run.setting.definition) for run in runs)
        return OPTIMUM if proven and whole else BEST_KNOWN

    @property
    def column(self) -> str:
        return f"{self.name} ({self.unit.name})" if self.unit else self.name

    def words(self, value: float) -> str:
        return units.duration_in_words(value) if self.unit else share(-value)

    def cell(self, value: float) -> str:
        return self.unit.cell(value) if self.unit else share(-value)

    def change(self, value: float, write: Callable[[float], str]) -> str:
        return difference(value, write) if self.unit else points(-value)


def _counts_whole_blocks(definition: HitDefinition) -> bool:
    by_block = definition.weight == "block" or (
        definition.weight == "token" and not definition.partial
    )
    return by_block and definition.warmup == 0


def _measures(simulation: Simulation) -> list[_Measure]:
    """Return the measures: hit rate, p95 TTFT and, with an SLO, TEL."""

    def p95_s(run: Run) -> float:
        return run.outcome.ttft_ms.p95 / 1e3

    hits = _Measure("Most hits", "Hit rate", "hit rate", lambda run: -rate(run))
    unit = time_unit(map(p95_s, simulation.runs))
    tail = _Measure("Lowest p95 TTFT", "p95 TTFT", "p95", p95_s, unit)
    if simulation.setting.slo_s is None:
        return [hits, tail]
    title = "Tail excess latency (TEL), summed over all requests"
    return [hits, tail, _Measure("Lowest TEL", title, "TEL", _tel_s, SECONDS)]


def _tel_s(run: Run) -> float:
    return (run.outcome.tel_ms or 0.0) / 1e3


def summary(simulation: Simulation) -> Section:
    """Return the best policies by hits, p95 TTFT and TEL, with gaps to the optimum or best known.

    That is at each capacity; if a tier is recommended, compare it with the pool alone instead.
    """
    if simulation.without_tier and simulation.runs:
        return _tier_and_pool(simulation, simulation.runs[0])
    sentences, tables = [], []
    for measure in _measures(simulation):
        best = {at: contest(simulation.at(at), measure.value) for at in simulation.capacities}
        sentences += _verdict(simulation, measure, best)
        if len(best) > 1:  # for one capacity the sentence says it
            tables.append(_contest_table(simulation, measure, best))
    return Section.of("Summary", *sentences, *setting_in_words(simulation.setting), *tables)


def _tier_and_pool(simulation: Simulation, tiered: Run) -> Section:
    """Return results with a recommended tier, next to those of the pool alone."""
    others = simulation.without_tier
    alone, *kept = others

    def p95(run: Run) -> str:
        queued = run.outcome.queued_ttft_ms or run.outcome.ttft_ms
        return units.duration_in_words(queued.p95 / 1e3)

    rates = (share(rate(run)) for run in (alone, tiered))
    slo_s = simulation.setting.slo_s
    slo = "" if slo_s is None else f" (SLO {units.duration_in_words(slo_s)})"
    interval = tiered.params.get(RETENTION)  # where it is not vLLM's default
    retaining = ""
    if interval is not None:
        retaining = f" with retention interval {format_value(RETENTION, interval)}"
    sentence = (
        f"The recommended tier{retaining} takes p95 TTFT from {p95(alone)} to"
        f" {p95(tiered)}{slo} and the hit rate from {' to '.join(rates)}."
    )
    sentence += "".join(
        f" Its retention interval without the tier: {p95(run)} and {share(rate(run))}."
        for run in kept
    )
    columns: dict[str, Callable[[Run], str]] = {
        "replayed": lambda run: (
            "with the tier" if run is tiered else "pool, interval" if run in kept else "pool alone"
        ),
        **run_columns([*others, tiered]),
    }
    table = tabulate("Pool and tier", [*others, tiered], columns, words=("replayed",))
    return Section.of("Summary", sentence, *setting_in_words(simulation.setting), table)


def _verdict(simulation: Simulation, measure: _Measure, contests: dict[int, Contest]) -> list[str]:
    name, value, write = names(simulation.runs), measure.value, measure.words
    best = {at: runs.best for at, runs in contests.items() if runs.best is not None}
    if len(contests) > 1 and best:
        wins = Counter(map(name, best.values()))
        policies = ", ".join(f"{policy} at {number}" for policy, number in wins.most_common())
        return [f"{measure.best}: {policies} of {len(contests)} capacities."]
    sentences = []
    for at, run in best.items():
        label = _sizes(simulation).label(at)
        lru, known = contests[at].baseline, contests[at].best_known
        words = f"{measure.best} at {label}: {name(run)}, {write(value(run))}"
        if lru is not None and lru is not run:
            change = measure.change(value(run) - value(lru), write)
            words += f" ({change} vs LRU's {write(value(lru))})"
        if known is not None:
            gap = measure.change(value(known) - value(run), write)
            words += f"; {measure.bound([known])} {write(value(known))} (gap {gap})"
        sentences.append(f"{words}.")
    return sentences


_WRONG_HITS = (
    " Do not store outputs (offload_prompt_only=false) with --prefix-cache-retention-interval none:"
    " for this model vLLM may then load blocks of another request (docs/offload.md)."
)


def setting_in_words(setting: RunSetting) -> tuple[str, ...]:
    """Return how hits, capacity and TTFT of runs with this setting are counted, in sentences."""
    capacity = "Capacity: idle cached blocks; add KV memory for running requests."
    if setting.tiers and setting.capacity_model == "cache":
        capacity = f"Capacity: {setting.tiers}, {setting.tier_mode}, as earlier kvscopes replayed."
    elif setting.capacity_model == "engine":
        capacity = (
            "Capacity: an engine's block pool, which also holds the blocks of running requests; at"
            f" most {count(setting.max_num_seqs)} run at once, with"
            f" {count(setting.max_num_batched_tokens)} tokens per step."
        )
    elif setting.engine:
        capacity = (
            f"Capacity: the pool of {setting.engine}, which also holds the blocks of running"
            " requests, and whose prefix tree evicts whole nodes; at most"
            f" {count(setting.max_num_seqs)} run at once, prompts in chunks of"
            f" {count(setting.max_num_batched_tokens)} tokens, max_new_tokens as the outputs were."
        )
    offload = offload_of(setting)
    if offload is not None:
        capacity += f" {offload.in_words} Sizes: {setting.tiers}."
    if setting.kv_groups:
        groups = KvGroups.parse(setting.kv_groups)
        capacity += f" {groups.in_words}"
        if offload is not None and not offload.offload_prompt_only:
            capacity += _WRONG_HITS if groups.smaller_windows else ""
    assumed = [f"latency profile {setting.latency}"]
    if setting.slo_s is not None:
        assumed.append(f"SLO {units.duration_in_words(setting.slo_s)}")
    if setting.rate_scale != 1:
        assumed.append(f"arrival rate × {setting.rate_scale:g}")
    if setting.isolate:
        assumed.append(f"no block shared between {setting.isolate}s")
    sentences = (
        f"Counted: {definition_in_words(setting.definition)}. {capacity}",
        f"TTFT: {', '.join(assumed)}.",
    )
    if setting.exact:
        return sentences
    estimated = (
        f"Estimated from {share(setting.sample_rate)} of the trace: counts, TTFT and TEL are those"
        " of the sample."
    )
    return (*sentences, estimated)


def _contest_table(
    simulation: Simulation, measure: _Measure, contests: dict[int, Contest]
) -> Table:
    """Return a row per capacity (the key of `contests`): best policy, change vs LRU, and gap."""
    name = names(simulation.runs)

    def cell(run: Run | None) -> str:
        return NONE if run is None else measure.cell(measure.value(run))

    def change(run: Run | None, other: Run | None) -> str:
        if run is None or other is None or run is other:
            return NONE
        return measure.change(measure.value(run) - measure.value(other), measure.cell)

    columns: dict[str, Callable[[Any], str]] = {
        **_sizes(simulation).columns(lambda row: row[0]),
        "best": lambda row: NONE if row[1].best is None else name(row[1].best),
        measure.column: lambda row: cell(row[1].best),
        "lru": lambda row: cell(row[1].baseline),
        "vs lru": lambda row: change(row[1].best, row[1].baseline),
    }
    note = ""
    known = [runs.best_known for runs in contests.values() if runs.best_known is not None]
    if known:
        bound = measure.bound(known)
        columns[bound] = lambda row: cell(row[1].best_known)
        columns["gap"] = lambda row: change(row[1].best_known, row[1].best)
        note = f"gap: {bound} minus best policy"
    return tabulate(measure.title, contests.items(), columns, note)


def _runs(simulation: Simulation) -> Section:
    return Section.of(
        "Policies",
        *(_policy_table(simulation, capacity) for capacity in simulation.capacities),
        partial(hit_rates_chart, simulation),
        *(partial(ttft_chart, simulation, rank) for rank in ("p50", "p95", "p99")),
        None if simulation.setting.slo_s is None else partial(tail_excess_chart, simulation),
    )


def _policy_table(simulation: Simulation, capacity: int, limit: int | None = None) -> Table:
    """Return a row per run at a capacity, most hits first, oracles last.

    With `limit`, return only so many rows: LRU, the two best oracles and the best other runs, all
    of which count towards it. A note says how many runs are left out.
    """
    runs = simulation.at(capacity)
    ranked = sorted(runs, key=lambda run: (run.hindsight, -rate(run)))
    note = _star(runs)
    if limit is not None and len(ranked) > limit:
        pinned = [run for run in ranked if run.policy == BASELINE][:1]
        pinned += [run for run in ranked if run.hindsight][:2]
        others = [run for run in ranked if not any(run is pin for pin in pinned)]
        shown = {id(run) for run in (*pinned, *others[: limit - len(pinned)])}
        ranked = [run for run in ranked if id(run) in shown]
        note += f"{'; ' if note else ''}{len(runs) - limit} more runs with --section policies"
    columns = {"policy": names(simulation.runs), **run_columns(runs)}
    return tabulate(f"At {_sizes(simulation).in_words(capacity)}", ranked, columns, note)


def tier_sections(simulation: Simulation) -> list[Section]:
    """Return a section with a row for each tier of each run; [] where the cache has one tier."""
    name, sizes = names(simulation.runs), _sizes(simulation)
    rows = [(run, tier) for run in simulation.runs for tier in run.tiers]
    beside = "time, beside its batch," if simulation.setting.on_tree else "wait"

    def transfer(row: tuple[Run, TierOutcome]) -> str:
        requests, wait_ms = row[0].outcome.requests, row[1].transfer_ms
        return significant(wait_ms / requests) if requests and wait_ms else NONE

    table = tabulate(
        "Hits by tier",
        rows,
        {
            "policy": lambda row: name(row[0]),
            "tier": lambda row: row[1].name,
            "capacity": lambda row: sizes.label(row[1].capacity_blocks),
            "hit tokens": lambda row: count(row[1].hit_tokens),
            "hit rate": lambda row: share(row[1].token_hit_rate),
            "transfer (ms)": transfer,
            "evictions": lambda row: count(row[1].evictions),
        },
        f"transfer: mean {beside} of a request for this tier's blocks, part of its TTFT",
        words=("tier",),
    )
    if not rows:
        return []
    launch = None if simulation.without_tier else offload_launch(simulation.setting)  # the file has
    return [Section.of("Tiers", table, *([launch] if launch else []))]


def _category_table(simulation: Simulation, limit: int | None = None) -> Table:
    """Return hit rates by category at the middle capacity, most requests first.

    With `limit`, return at most `limit` rows.
    """
    capacity, name = simulation.middle, names(simulation.runs)
    runs = simulation.at(capacity)[:_COMPARED]
    outcomes = {name(run): ttft.by_category(run) for run in runs}
    requests = {key: of.requests for parts in outcomes.values() for key, of in parts.items()}
    ranked = large(requests, lambda category: requests[category])
    shown = ranked[:limit]

    def hits(run: Run, category: str) -> str:
        outcome = outcomes[name(run)].get(category)
        return NONE if outcome is None else share(hit_rate(run.setting, outcome))

    more = len(ranked) - len(shown)
    notes = [f"{more} smaller ones with --section categories"] if more else []
    notes += filter(None, [left_out(list(requests), ranked)])
    return tabulate(
        f"Hit rate by category at {_sizes(simulation).label(capacity)}",
        shown,
        {
            "category": str,
            "requests": lambda category: count(requests[category]),
            **{name(run): partial(hits, run) for run in runs},
        },
        "; ".join(notes),
    )


def _sizes(simulation: Simulation) -> Sizes:
    return Sizes(simulation.trace.block_size, simulation.model)


def _star(runs: Sequence[Run]) -> str:
    return ORACLE_NOTE if any(run.hindsight for run in runs) else ""


def hit_rates_chart(simulation: Simulation) -> style.Figure:
    """Draw hit rate over capacity: LRU's exact curve, other policies at replayed capacities."""
    unit, curve = _sizes(simulation).axis, simulation.curve
    series = list(_over_capacity(simulation, rate, plain_lru=curve is None))
    if curve is not None:
        low, high = (max(simulation.capacities[end], 1) for end in (0, -1))
        if low == high:  # a line has to be seen
            low, high = max(low // _AROUND, 1), high * _AROUND
        series.insert(0, _lru(curve, unit, low, high, _CURVE_POINTS))
    y = f"hit rate by {simulation.setting.definition.weight}"
    chart = style.lines("Hit rate by policy", unit.axis, y, series)
    return chart if curve is None else style.ideal_level(chart, curve.ideal)


def _lru(curve: HitCurve, unit: Unit, low: int, high: int, points: int) -> style.Series:
    """Return LRU's hit rates at up to `points` capacities from `low` to `high` (blocks)."""
    grid = np.unique(np.geomspace(low, high, points).round().astype(np.int64))
    hover = {"hovertemplate": f"%{{x:,.4~g}} {unit.name}: %{{y:.2%}}"}
    sizes, rates = (grid * unit.per_block).tolist(), curve.rate(grid).tolist()
    return style.Series(BASELINE, sizes, rates, policy_line(BASELINE), hover)


def ttft_chart(simulation: Simulation, percentile: str) -> style.Figure:
    """Draw a percentile of the unloaded time to first token over capacity."""

    def ttft_ms(run: Run) -> float:
        return float(getattr(run.outcome.ttft_ms, percentile))

    x, y = _sizes(simulation).axis.axis, f"{percentile} TTFT (ms)"
    chart = style.lines(f"TTFT, {percentile}", x, y, _over_capacity(simulation, ttft_ms), shares="")
    return style.slo_level(chart, simulation.setting.slo_s)


def tail_excess_chart(simulation: Simulation) -> style.Figure:
    """Draw tail excess latency over capacity."""
    x, series = _sizes(simulation).axis.axis, _over_capacity(simulation, _tel_s)
    return style.lines("Tail excess latency", x, "TEL (s)", series, shares="")


def _over_capacity(
    simulation: Simulation, value: Callable[[Run], float], *, plain_lru: bool = True
) -> Iterator[style.Series]:
    """Yield a series over capacity per policy and parameters; markers tell parameters apart.

    Without `plain_lru`, leave out LRU without a TTL, whose exact curve is drawn instead.
    """
    unit, name = _sizes(simulation).axis, names(simulation.runs)
    by_name: dict[str, list[Run]] = {}
    for run in simulation.runs:
        if plain_lru or not is_plain_lru(run):
            by_name.setdefault(name(run), []).append(run)
    markers: Counter[str] = Counter()
    for label, runs in by_name.items():
        policy = runs[0].policy
        look: dict[str, object] = {"symbol": SYMBOLS[markers[policy] % len(SYMBOLS)], "size": 8}
        if policy == BASELINE:
            look = {"symbol": "diamond-open", "size": 14, "line": {"width": 3}}
        markers[policy] += 1
        sizes = [run.capacity_blocks * unit.per_block for run in runs]
        options = {**style.POINTS, "marker": look}
        yield style.Series(label, sizes, list(map(value, runs)), policy_line(policy), options)


def over_time_chart(simulation: Simulation, capacity_blocks: int) -> style.Figure:
    """Draw hit rate over time at one capacity."""
    name = names(simulation.runs)
    series = [
        style.Series(name(run), *hits_by_window(run), policy_line(run.policy))
        for run in simulation.at(capacity_blocks)
    ]
    title = f"Hit rate over time at {_sizes(simulation).label(capacity_blocks)}"
    return style.lines(title, style.HOURS, "hit rate", series, log="")


def hits_by_window(run: Run) -> tuple[list[float], list[float]]:
    """Return the starts (h) and the hit rates of a run's windows of equal length."""
    parts = [part for part in run.parts if part.start_s is not None]
    hours = [(part.start_s or 0.0) / 3600 for part in parts]
    return hours, [hit_rate(run.setting, part.outcome) for part in parts]


def trade_off_chart(simulation: Simulation, capacity_blocks: int) -> style.Figure:
    """Draw p95 against median TTFT at one capacity: every run as a point."""
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
    memory: tuple[str, int] | None = None,
    replayed: float | None = None,
    runs: Sequence[Run] = (),
) -> style.Figure:
    """Draw LRU's hit rate at every capacity, with `at_blocks` ("chosen") and `runs` as points.

    Of each policy, only the parameters with most `runs`, which have one setting, are drawn.
    Vertical lines mark the working set and the present `memory` (name, blocks). `replayed` is the
    hit rate of an engine's pool of that size, which also holds running requests.
    """
    largest = max(int(curve.knots[-1]), at_blocks, memory[1] if memory else 0, 2)
    visible = curve.capacity_for(_VISIBLE * curve.ideal)
    first = max(min(visible, at_blocks, *(run.capacity_blocks for run in runs)), 1)
    series = [_lru(curve, unit, first, largest, _SMOOTH_POINTS)]
    name = names(runs)
    by_policy: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        if not is_plain_lru(run):  # which is the line
            by_policy.setdefault(run.policy, {}).setdefault(name(run), []).append(run)
    for policy, by_name in by_policy.items():
        label, alike = max(by_name.items(), key=lambda item: len(item[1]))
        sizes = [run.capacity_blocks * unit.per_block for run in alike]
        look = {**style.POINTS, "marker": {"size": 8, "symbol": ttft.symbol(policy)}}
        series.append(style.Series(label, sizes, list(map(rate, alike)), policy_line(policy), look))
    title, weight = "LRU's exact hit rate at every capacity", curve.definition.weight
    chart = style.lines(title, unit.axis, f"hit rate by {weight}", series, height=430)
    style.point(chart, at_blocks * unit.per_block, float(curve.rate(at_blocks)), "chosen")
    style.ideal_level(chart, curve.ideal)
    if working_set_blocks:
        side = "right" if memory and working_set_blocks > memory[1] else "left"
        size = working_set_blocks * unit.per_block
        style.mark(chart, size, "working set, peak", at=0.12, side=side)
    if memory:
        size = memory[1] * unit.per_block
        style.mark(chart, size, memory[0], at=0.24)
        if replayed is not None:
            marker = {"color": style.VERMILION, "size": 10, "symbol": "x"}
            words = f"{memory[0]}, with running requests"
            chart.add_scatter(x=[size], y=[replayed], mode="markers", name=words, marker=marker)
    return chart


def lru_times_chart(
    unit: Unit,
    outcomes: Mapping[int, Outcome],
    slo_s: float,
    rank: str,
    memory: tuple[str, int] | None,
) -> style.Figure:
    """Draw a percentile of LRU's TTFT on an idle engine and the share within the SLO over capacity.

    `outcomes` are LRU's by capacity (blocks). `rank` names the percentile, such as "p95". `memory`
    is the name and size (blocks) of the present memory, None if unknown.
    """
    title = f"LRU's {rank} TTFT and share within {units.duration_in_words(slo_s)}"
    chart = style.subplots(title, rows=2, shared_xaxes=True, height=460)
    sizes = [blocks * unit.per_block for blocks in outcomes]
    times = [getattr(each.ttft_ms, rank) for each in outcomes.values()]
    within = [1 - (each.violations or 0) / each.requests for each in outcomes.values()]
    marker = {"color": policy_line(BASELINE)["color"], "size": 7}
    look = {"mode": "markers", "marker": marker, "showlegend": False}
    chart.add_scatter(x=sizes, y=times, name=f"{rank} TTFT", row=1, col=1, **look)
    chart.add_scatter(x=sizes, y=within, name="within the SLO", row=2, col=1, **look)
    chart.add_hline(y=slo_s * 1e3, line_dash="dot", line_color=style.VERMILION, row=1, col=1)
    if memory:
        x = memory[1] * unit.per_block
        chart.add_vline(x=x, line_dash="dot", line_color=style.GREY, row="all", col=1)
    chart.update_yaxes(
        title_text=f"{rank} TTFT (ms)", type="log", tickformat=",~g", dtick="D2", row=1, col=1
    )
    chart.update_yaxes(title_text="within the SLO", tickformat=".0%", range=[0, 1.02], row=2, col=1)
    chart.update_xaxes(type="log", tickformat="~s" if unit.name != "GiB" else ",~g")
    return chart.update_xaxes(title_text=unit.axis, row=2, col=1)
