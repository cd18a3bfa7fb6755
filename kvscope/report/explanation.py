"""Why this recommendation: the target against xi and against capacity, and what was tried."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvscope.app.tune import Tuned
from kvscope.core import units
from kvscope.replay.policy_options import format_value
from kvscope.report import style, ttft, xi
from kvscope.report.runs import policy_line
from kvscope.report.section import Section, Table
from kvscope.report.sizes import Sizes
from kvscope.report.text_plots import bar
from kvscope.report.words import NONE, significant
from kvscope.tuning.objective import Trial
from kvscope.tuning.search import XI

if TYPE_CHECKING:
    import plotly.graph_objects as go

_ABOUT_XI = (
    "Blocks that the next turn can compute in time are evicted first: all beyond token L + Q - xi.",
    "Only the difference of xi and Q, the expected next prompt, matters, so only xi was searched.",
)


def sections(tuned: Tuned) -> list[Section]:
    """Return the sections that `--explain` adds."""
    return [*_xi(tuned), *_capacities(tuned), _tried(tuned), *_by_category(tuned)]


def sizes_of(tuned: Tuned) -> Sizes:
    """Return how to write the capacities of a tuning."""
    return Sizes(tuned.trace.block_size, tuned.model, tuned.hbm_bytes)


def sensitivity(tuned: Tuned) -> dict[str, list[Trial]]:
    """Return for each policy with a xi its trials at the user's capacity, one a xi, ascending."""
    by_policy: dict[str, dict[float, Trial]] = {}
    for trial in tuned.tuning.explored:
        policy = trial.policy
        if trial.capacity_blocks == tuned.tuning.capacity_blocks and XI in policy.values:
            by_policy.setdefault(policy.name, {}).setdefault(policy.values[XI], trial)
    return {name: [trials[xi] for xi in sorted(trials)] for name, trials in by_policy.items()}


def best_by_capacity(tuned: Tuned) -> dict[str, dict[int, Trial]]:
    """Return for each policy the trial with the lowest target at each capacity that was tried."""
    best: dict[str, dict[int, Trial]] = {}
    for trial in tuned.tuning.explored:
        known = best.setdefault(trial.policy.name, {})
        other = known.get(trial.capacity_blocks)
        if other is None or trial.target_s < other.target_s:
            known[trial.capacity_blocks] = trial
    return best


def _xi(tuned: Tuned) -> list[Section]:
    """Return the target's latency as a function of xi."""
    tables = []
    for name, trials in sensitivity(tuned).items():
        slowest = max(trial.target_s for trial in trials)
        rows = tuple(
            (
                format_value(XI, trial.policy.values[XI]),
                significant(float(tuned.profile.ttft_s(int(trial.policy.values[XI]), 0)) * 1e3),
                _ms(trial),
                units.format_share(trial.violation_share),
                bar(trial.target_s / slowest),
            )
            for trial in trials
        )
        columns = ("xi (tokens)", "xi (ms)", f"{tuned.target_name} (ms)", "over SLO", "")
        tables.append(Table(f"{name}: effect of xi in the training window", columns, rows))
    if not tables:
        return []
    figures = (partial(sensitivity_chart, tuned),)
    return [Section("Why this xi", _ABOUT_XI, tuple(tables), figures=figures)]


def _capacities(tuned: Tuned) -> list[Section]:
    """Return the target's latency as a function of capacity, where several were tried."""
    by_policy = {name: at for name, at in best_by_capacity(tuned).items() if len(at) > 1}
    if not by_policy:
        return []
    capacities = sorted({blocks for at in by_policy.values() for blocks in at})
    slo_s, sizes = tuned.tuning.target.slo_s, sizes_of(tuned)

    def cell(trial: Trial | None) -> str:
        return NONE if trial is None else _ms(trial) + (" *" if trial.target_s <= slo_s else "")

    rows = tuple(
        (*sizes.cells(blocks), *(cell(at.get(blocks)) for at in by_policy.values()))
        for blocks in capacities
    )
    table = Table(
        f"{tuned.target_name} (ms) at the capacities tried, in the training window",
        (*sizes.columns, *by_policy),
        rows,
        "* within the SLO; each policy with the best parameters tried there",
    )
    return [Section("Why this capacity", tables=(table,))]


def _tried(tuned: Tuned) -> Section:
    """Return all that was tried at the user's capacity, the best first."""
    tuning = tuned.tuning
    here = [trial for trial in tuning.explored if trial.capacity_blocks == tuning.capacity_blocks]
    rows = tuple(
        (
            tuned.called(trial.policy),
            _ms(trial),
            units.format_share(trial.violation_share),
            significant(trial.tel_s),
            significant(tuned.times_ms(trial.outcome).p50),
            units.format_share(trial.outcome.token_hit_rate),
        )
        for trial in sorted(here, key=lambda trial: trial.rank(tuning.target))
    )
    columns = ("policy", f"{tuned.target_name} (ms)", "over SLO", "TEL (s)", "p50 (ms)", "hit rate")
    return Section("Tried", tables=(Table("Tried in the training window", columns, rows),))


def _by_category(tuned: Tuned) -> list[Section]:
    """Return TTFT by category under LRU and under the recommended policy."""
    tuning = tuned.tuning
    if tuning.recommended is tuning.baseline:
        return []
    before, after = (
        {part.category or "": part.outcome for part in judged.categories}
        for judged in (tuning.baseline, tuning.recommended)
    )
    title = f"LRU now, then {tuned.called(tuning.recommended.trial.policy)} as recommended"
    return [ttft.category_section(title, before, after, tuned.times_ms)]


def _ms(trial: Trial) -> str:
    return significant(trial.target_s * 1e3)


def sensitivity_chart(tuned: Tuned) -> go.Figure:
    """Build the target's latency against xi."""
    points = {
        name: [(trial.policy.values[XI], trial.target_s * 1e3) for trial in trials]
        for name, trials in sensitivity(tuned).items()
    }
    title = "Effect of xi in the training window"
    chart = xi.sensitivity_chart(title, tuned.target_name, points)
    style.level(chart, tuned.tuning.target.slo_s * 1e3, "SLO")
    return chart


def capacities_chart(tuned: Tuned) -> go.Figure:
    """Build the target's latency against capacity: the best setting of each policy at each."""
    title, unit = "Tail against capacity in the training window", sizes_of(tuned).axis
    chart = style.figure(title, f"capacity ({unit.name})", f"{tuned.target_name} (ms)")
    for name, trials in best_by_capacity(tuned).items():
        if len(trials) < 2:  # a point is no line
            continue
        capacities = [blocks for blocks in sorted(trials) if blocks > 0]
        chart.add_scatter(
            x=[blocks * unit.per_block for blocks in capacities],
            y=[trials[blocks].target_s * 1e3 for blocks in capacities],
            name=name,
            mode="lines+markers",
            line=policy_line(name),
        )
    style.level(chart, tuned.tuning.target.slo_s * 1e3, "SLO")
    here = max(tuned.tuning.capacity_blocks, 1) * unit.per_block
    style.mark(chart, here, "current capacity")
    style.logarithmic(chart, counts=unit.name == "blocks")
    return chart
