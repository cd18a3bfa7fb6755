"""Why this recommendation: the target against xi and against capacity, and what was tried."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from kvscope.app.tune import Recommendation
from kvscope.core import units
from kvscope.report import style, ttft, xi
from kvscope.report.runs import policy_line
from kvscope.report.section import Columns, Section, bar, tabulate
from kvscope.report.words import NONE, Sizes, count, share, significant
from kvscope.tuning.search import XI
from kvscope.tuning.trial import Trial

_ABOUT_XI = (
    "Blocks that the next turn can compute in time are evicted first: all beyond token L + Q - xi.",
    "Only the difference of xi and Q, the expected next prompt, matters, so only xi was searched.",
)


def sections(tuned: Recommendation) -> list[Section]:
    """Return the sections that `--explain` adds."""
    return [*_xi(tuned), *_capacities(tuned), _tried(tuned), *_by_category(tuned)]


def sizes_of(tuned: Recommendation) -> Sizes:
    """Return how to write the capacities of a tuning."""
    return Sizes(tuned.trace.block_size, tuned.model, tuned.hbm_bytes)


def sensitivity(tuned: Recommendation) -> dict[str, list[Trial]]:
    """Return for each policy with a xi its trials at the user's capacity, one a xi, ascending."""
    by_policy: dict[str, dict[float, Trial]] = {}
    for trial in tuned.tuning.explored:
        policy = trial.policy
        if trial.capacity_blocks == tuned.tuning.capacity_blocks and XI in policy.values:
            by_policy.setdefault(policy.name, {}).setdefault(policy.values[XI], trial)
    return {name: [trials[xi] for xi in sorted(trials)] for name, trials in by_policy.items()}


def best_by_capacity(tuned: Recommendation) -> dict[str, dict[int, Trial]]:
    """Return for each policy the trial with the lowest target at each capacity that was tried."""
    best: dict[str, dict[int, Trial]] = {}
    for trial in tuned.tuning.explored:
        known = best.setdefault(trial.policy.name, {})
        other = known.get(trial.capacity_blocks)
        if other is None or trial.target_s < other.target_s:
            known[trial.capacity_blocks] = trial
    return best


def _xi(tuned: Recommendation) -> list[Section]:
    """Return the target's latency as a function of xi."""
    tables = []
    for name, trials in sensitivity(tuned).items():
        slowest = max(trial.target_s for trial in trials)
        columns: Columns = {
            "xi (tokens)": lambda trial: count(trial.policy.values[XI]),
            "xi (ms)": lambda trial: significant(
                float(tuned.profile.ttft_s(int(trial.policy.values[XI]), 0)) * 1e3
            ),
            f"{tuned.target_name} (ms)": _ms,
            "over SLO": lambda trial: share(trial.violation_share),
            "": partial(_bar, slowest),
        }
        tables.append(tabulate(f"{name}: effect of xi in the training window", trials, columns))
    if not tables:
        return []
    figures = (partial(sensitivity_chart, tuned),)
    return [Section("Why this xi", _ABOUT_XI, tuple(tables), figures=figures)]


def _bar(slowest_s: float, trial: Trial) -> str:
    return bar(trial.target_s / slowest_s)


def _capacities(tuned: Recommendation) -> list[Section]:
    """Return the target's latency as a function of capacity, where several were tried."""
    by_policy = {name: at for name, at in best_by_capacity(tuned).items() if len(at) > 1}
    if not by_policy:
        return []
    slo_s = tuned.tuning.target.slo_s

    def cell(at: Mapping[int, Trial], blocks: int) -> str:
        trial = at.get(blocks)
        return NONE if trial is None else _ms(trial) + (" *" if trial.target_s <= slo_s else "")

    table = tabulate(
        f"{tuned.target_name} (ms) at the capacities tried, in the training window",
        sorted({blocks for at in by_policy.values() for blocks in at}),
        {
            **sizes_of(tuned).columns(int),
            **{name: partial(cell, at) for name, at in by_policy.items()},
        },
        "* within the SLO; each policy with the best parameters tried there",
    )
    return [Section("Why this capacity", tables=(table,))]


def _tried(tuned: Recommendation) -> Section:
    """Return all that was tried at the user's capacity, the best first."""
    tuning = tuned.tuning
    here = [trial for trial in tuning.explored if trial.capacity_blocks == tuning.capacity_blocks]
    table = tabulate(
        "Tried in the training window",
        sorted(here, key=lambda trial: trial.rank(tuning.target)),
        {
            "policy": lambda trial: tuned.called(trial.policy),
            f"{tuned.target_name} (ms)": _ms,
            "over SLO": lambda trial: share(trial.violation_share),
            "TEL (s)": lambda trial: significant(trial.tel_s),
            "p50 (ms)": lambda trial: significant(tuned.times_ms(trial.outcome).p50),
            "hit rate": lambda trial: share(trial.outcome.token_hit_rate),
        },
    )
    return Section("Tried", tables=(table,))


def _by_category(tuned: Recommendation) -> list[Section]:
    """Return TTFT by category under LRU and under the recommended policy."""
    tuning = tuned.tuning
    if tuning.recommended is tuning.baseline:
        return []
    before, after = (
        {part.category or "": part.outcome for part in judged.categories}
        for judged in (tuning.baseline, tuning.recommended)
    )
    title = (
        f"Held-out requests: LRU now, then {tuned.called(tuning.recommended.policy)} as recommended"
    )
    return [ttft.category_section(title, before, after, tuned.times_ms)]


def _ms(trial: Trial) -> str:
    return significant(trial.target_s * 1e3)


def sensitivity_chart(tuned: Recommendation) -> style.Figure:
    """Build the target's latency against xi."""
    points = {
        name: [(trial.policy.values[XI], trial.target_s * 1e3) for trial in trials]
        for name, trials in sensitivity(tuned).items()
    }
    title = "Effect of xi in the training window"
    chart = xi.sensitivity_chart(title, tuned.target_name, points)
    style.level(chart, tuned.tuning.target.slo_s * 1e3, "SLO")
    return chart


def capacities_chart(tuned: Recommendation) -> style.Figure:
    """Build the target's latency against capacity: the best setting of each policy at each."""
    sizes = sizes_of(tuned)
    unit, series = sizes.axis, []
    for name, trials in best_by_capacity(tuned).items():
        if len(trials) < 2:  # a point is no line
            continue
        capacities = [blocks for blocks in sorted(trials) if blocks > 0]
        series.append(
            style.Series(
                name,
                [blocks * unit.per_block for blocks in capacities],
                [trials[blocks].target_s * 1e3 for blocks in capacities],
                policy_line(name),
                style.MARKED,
            )
        )
    title, y = "Tail against capacity in the training window", f"{tuned.target_name} (ms)"
    chart = style.lines(title, f"capacity ({unit.name})", y, series, shares="")
    style.level(chart, tuned.tuning.target.slo_s * 1e3, "SLO")
    style.mark(chart, max(tuned.tuning.capacity_blocks, 1) * unit.per_block, "current capacity")
    if sizes.hbm_blocks and sizes.hbm_bytes:
        words = f"{units.format_size(sizes.hbm_bytes)} HBM"
        style.mark(chart, sizes.hbm_blocks * unit.per_block, words, at=0.9)
    return chart
