"""Why this recommendation: the target against xi and against capacity, and what was rejected."""

from __future__ import annotations

from functools import partial

from kvscope.app.tune import Tuned
from kvscope.core import units
from kvscope.replay.policy_options import format_value
from kvscope.report.section import Section, Table
from kvscope.report.sections import who_pays
from kvscope.report.sections.run_cells import NONE, in_ms, size_cells, size_columns
from kvscope.report.text_plots import bar
from kvscope.tune.objective import Trial
from kvscope.tune.search import XI

_ABOUT_XI = (
    "What the next turn can compute in time leaves first: all beyond token L + Q - xi.",
    "Only the difference of xi and Q, the expected next prompt, matters: xi alone was searched.",
)


def explained(found: Tuned) -> list[Section]:
    """The sections that `--explain` adds."""
    return [*_xi(found), *_capacities(found), *_rejected(found), *_who_pays(found)]


def sensitivity(found: Tuned) -> dict[str, list[Trial]]:
    """For each policy with a xi, its trials at the user's capacity by xi, one for each."""
    by_policy: dict[str, dict[float, Trial]] = {}
    for trial in found.tuning.explored:
        policy = trial.policy
        if trial.capacity_blocks != found.tuning.capacity_blocks or XI not in policy.values:
            continue
        known = by_policy.setdefault(policy.name, {})
        known.setdefault(policy.values[XI], trial)
    return {name: [known[xi] for xi in sorted(known)] for name, known in by_policy.items()}


def _xi(found: Tuned) -> list[Section]:
    """The target's latency as a function of xi."""
    from kvscope.report.charts import tuning as charts

    tables = []
    for name, trials in sensitivity(found).items():
        slowest = max(trial.target_s for trial in trials)
        rows = tuple(
            (
                format_value(XI, trial.policy.values[XI]),
                in_ms(float(found.profile.ttft_s(int(trial.policy.values[XI]), 0)) * 1e3),
                units.format_duration(trial.target_s),
                units.format_share(trial.violation_share),
                bar(trial.target_s / slowest),
            )
            for trial in trials
        )
        columns = ("xi (tokens)", "xi (time)", found.target_name, "over SLO", "")
        tables.append(Table(f"{name}: what xi does, in the part to choose on", columns, rows))
    if not tables:
        return []
    charted = (partial(charts.sensitivity, found),)
    return [Section("Why this xi", _ABOUT_XI, tuple(tables), figures=charted)]


def best_by_capacity(found: Tuned) -> dict[str, dict[int, Trial]]:
    """For each policy the trial with the lowest target at each capacity that was tried."""
    best: dict[str, dict[int, Trial]] = {}
    for one in found.tuning.explored:
        known = best.setdefault(one.policy.name, {})
        other = known.get(one.capacity_blocks)
        if other is None or one.target_s < other.target_s:
            known[one.capacity_blocks] = one
    return best


def _capacities(found: Tuned) -> list[Section]:
    """The target's latency as a function of capacity, where it was looked for."""
    by_policy = {name: at for name, at in best_by_capacity(found).items() if len(at) > 1}
    if not by_policy:
        return []
    sizes = sorted({size for at in by_policy.values() for size in at})
    slo_s = found.tuning.target.slo_s

    def told(trial: Trial | None) -> str:
        if trial is None:
            return NONE
        return units.format_duration(trial.target_s) + (" *" if trial.target_s <= slo_s else "")

    rows = tuple(
        (
            *size_cells(size, found.trace.block_size, found.model),
            *(told(at.get(size)) for at in by_policy.values()),
        )
        for size in sizes
    )
    table = Table(
        f"{found.target_name} at the capacities tried, in the part to choose on",
        (*size_columns(found.model), *by_policy),
        rows,
        "* within the SLO; each policy with the best of the parameters tried there",
    )
    return [Section("Why this capacity", tables=(table,))]


def _rejected(found: Tuned) -> list[Section]:
    """All that was tried at the user's capacity, the best first."""
    tuning = found.tuning
    here = [one for one in tuning.explored if one.capacity_blocks == tuning.capacity_blocks]
    here.sort(key=lambda one: one.rank(tuning.target))
    rows = tuple(
        (
            found.called(one.policy),
            units.format_duration(one.target_s),
            units.format_share(one.violation_share),
            f"{one.tel_s:,.1f}s",
            in_ms(found.times_ms(one.outcome).p50),
            units.format_share(one.outcome.token_hit_rate),
        )
        for one in here
    )
    columns = ("policy", found.target_name, "over SLO", "TEL", "p50", "hit rate")
    return [Section("Tried in the part to choose on", tables=(Table("", columns, rows),))]


def _who_pays(found: Tuned) -> list[Section]:
    """TTFT by category under LRU and under what is recommended."""
    tuning = found.tuning
    if tuning.recommended is tuning.baseline:
        return []
    then = {one.category: one.outcome for one in tuning.recommended.categories}
    now = {one.category: one.outcome for one in tuning.baseline.categories}
    title = f"LRU now, and {found.called(tuning.recommended.trial.policy)} as recommended"
    return [who_pays.section(title, now, then, found.times_ms)]
