"""Why this recommendation: the SLO's TTFT percentile by xi and by capacity, and all trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby
from typing import Any

from kvscope.app.requests import BASELINE
from kvscope.core import units
from kvscope.report import style, ttft, xi
from kvscope.report.runs import policy_line
from kvscope.report.section import Columns, Section, Table, bar, tabulate
from kvscope.report.words import (
    MILLISECONDS,
    NONE,
    SECONDS,
    Sizes,
    TimeUnit,
    percentiles,
    share,
    significant,
)
from kvscope.tuning.search import XI
from kvscope.tuning.trial import Trial, category_times_ms
from kvscope.usecases.tune.recommendation import Recommendation

_LONG_MS = 10_000.0
_ABOUT_XI = (
    "Blocks that the next turn can compute in time, at the end of a history, are worth less.",
    "The expected next prompt is the mean of the training window; xi alone was searched.",
)


def sections(tuned: Recommendation) -> list[Section]:
    """Return the sections beyond one screen: for `--full`, `--section` and HTML."""
    return [*_xi(tuned), *_capacities(tuned), _tried(tuned), *_by_category(tuned)]


def sizes_of(tuned: Recommendation) -> Sizes:
    """Return the formatter for the capacities of a tuning."""
    return Sizes(tuned.trace.block_size, tuned.model, tuned.hbm_bytes)


def sensitivity(tuned: Recommendation) -> dict[str, list[Trial]]:
    """Return, by policy, its trials with a parameter xi at the user's capacity, by ascending xi.

    Of a policy's trials with the same xi, the first one tried is returned.
    """
    by_policy: dict[str, dict[float, Trial]] = {}
    for trial in tried_here(tuned):
        if XI in trial.policy.values:
            by_policy.setdefault(trial.policy.name, {}).setdefault(trial.policy.values[XI], trial)
    return {name: [trials[xi] for xi in sorted(trials)] for name, trials in by_policy.items()}


def median_name(tuned: Recommendation) -> str:
    """Return the title of the p50 column, with the unit of all TTFT columns: `p50 (ms)`."""
    return f"p50 ({_unit(tuned).name})"


def _unit(tuned: Recommendation) -> TimeUnit:
    """Return the unit of TTFTs: seconds if LRU's median is 10 s or more, else milliseconds."""
    return SECONDS if tuned.tuning.lru.validation.times_ms.p50 >= _LONG_MS else MILLISECONDS


def trial_columns(tuned: Recommendation, trial: Callable[[Any], Trial]) -> Columns:
    """Return table columns of a trial's figures; `trial` returns the trial of a row."""
    unit = _unit(tuned)

    def cell(milliseconds: float) -> str:
        return unit.cell(milliseconds / 1e3)

    return {
        median_name(tuned): lambda row: cell(trial(row).times_ms.p50),
        **percentiles("p90 p95 p99", lambda row: trial(row).times_ms, cell),
        "TEL (s)": lambda row: significant(trial(row).tel_s),
        "over SLO": lambda row: share(trial(row).violation_share),
        "hit rate": lambda row: share(trial(row).outcome.token_hit_rate),
    }


def tried_here(tuned: Recommendation) -> list[Trial]:
    """Return the trials at the user's capacity."""
    tuning = tuned.tuning
    return [trial for trial in tuning.explored if trial.capacity_blocks == tuning.capacity_blocks]


def best_by_capacity(tuned: Recommendation) -> dict[str, dict[int, Trial]]:
    """Return each policy's best trial of the training window, by policy and capacity (blocks).

    Best: the lowest TTFT at the SLO's percentile.
    """
    best: dict[str, dict[int, Trial]] = {}
    for trial in tuned.tuning.explored:
        known = best.setdefault(trial.policy.name, {})
        other = known.get(trial.capacity_blocks)
        if other is None or trial.target_s < other.target_s:
            known[trial.capacity_blocks] = trial
    return best


def _xi(tuned: Recommendation) -> list[Section]:

    def table(name: str, trials: list[Trial]) -> Table:
        slowest_s = max(trial.target_s for trial in trials)
        alike = [
            list(group)
            for _, group in groupby(
                trials, lambda trial: (_ms(trial), share(trial.violation_share))
            )
        ]

        def ends(cell: Callable[[Trial], str]) -> Callable[[list[Trial]], str]:
            """Return a function that writes `cell` of a row's first and last trial: `1 to 5`."""
            return lambda row: " to ".join(dict.fromkeys(map(cell, (row[0], row[-1]))))

        of_xi = xi.columns(tuned.profile, lambda trial: trial.policy.values[XI])
        columns: Columns = {
            **{title: ends(cell) for title, cell in of_xi.items()},
            f"{tuned.target_name} (ms)": lambda row: _ms(row[0]),
            "over SLO": lambda row: share(row[0].violation_share),
            "": lambda row: bar(row[0].target_s / slowest_s),
        }
        return tabulate(f"{name}: effect of xi in the training window", alike, columns)

    tables = [table(name, trials) for name, trials in sensitivity(tuned).items()]
    chart = partial(sensitivity_chart, tuned)
    return [Section.of("Why this xi", *_ABOUT_XI, *tables, chart)] if tables else []


def _capacities(tuned: Recommendation) -> list[Section]:
    """Return a table of the SLO's TTFT percentile by capacity; [] if no policy has several."""
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
    return [Section.of("Why this capacity", table)]


def _tried(tuned: Recommendation) -> Section:
    """Return a table of training-window results; settings with equal figures share a row."""
    known = trial_columns(tuned, lambda trial: trial)
    figures = {
        f"{tuned.target_name} (ms)": _ms,
        **{name: known[name] for name in ("over SLO", "TEL (s)", median_name(tuned), "hit rate")},
    }
    alike: dict[tuple[str, ...], list[Trial]] = {}
    for trial in sorted(tried_here(tuned), key=lambda trial: trial.rank(tuned.tuning.target)):
        alike.setdefault(tuple(cell(trial) for cell in figures.values()), []).append(trial)

    def name(trials: list[Trial]) -> str:
        lru = next((trial for trial in trials if trial.policy.name == BASELINE), trials[0])
        more = f" and {len(trials) - 1} more" if len(trials) > 1 else ""
        return f"{tuned.called(lru.policy)}{more}"

    rows = [(name(trials), *cells) for cells, trials in alike.items()]
    several = len(rows) < sum(map(len, alike.values()))
    note = "and n more: other settings with the same figures" if several else ""
    table = Table("Tried in the training window", ("policy", *figures), tuple(rows), note)
    return Section.of("Tried", table)


def _by_category(tuned: Recommendation) -> list[Section]:
    """Return TTFT by category under LRU and the recommended policy; [] if LRU stays."""
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
    times = partial(category_times_ms, view=tuning.target.view)
    return [ttft.category_section(title, before, after, times)]


def _ms(trial: Trial) -> str:
    return significant(trial.target_s * 1e3)


def sensitivity_chart(tuned: Recommendation) -> style.Figure:
    """Draw the SLO's TTFT percentile over xi, as points of each policy with a xi."""
    points = {
        name: [(trial.policy.values[XI], trial.target_s * 1e3) for trial in trials]
        for name, trials in sensitivity(tuned).items()
    }
    chart = xi.sensitivity_chart("Effect of xi in the training window", tuned.target_name, points)
    return style.slo_level(chart, tuned.tuning.target.slo_s)


def capacities_chart(tuned: Recommendation) -> style.Figure:
    """Draw the SLO's TTFT percentile over capacity: of each policy the best setting at each one."""
    sizes = sizes_of(tuned)
    unit, series = sizes.axis, []
    for name, trials in best_by_capacity(tuned).items():
        capacities = [blocks for blocks in sorted(trials) if blocks > 0]
        x = [blocks * unit.per_block for blocks in capacities]
        y = [trials[blocks].target_s * 1e3 for blocks in capacities]
        series.append(style.Series(name, x, y, policy_line(name), style.POINTS))
    title, measure = "Tail against capacity in the training window", f"{tuned.target_name} (ms)"
    chart = style.lines(title, unit.axis, measure, series, shares="")
    style.slo_level(chart, tuned.tuning.target.slo_s)
    style.mark(chart, max(tuned.tuning.capacity_blocks, 1) * unit.per_block, "current capacity")
    if sizes.hbm_blocks and sizes.hbm_bytes:
        words = f"{units.format_size(sizes.hbm_bytes)} HBM"
        style.mark(chart, sizes.hbm_blocks * unit.per_block, words, at=0.9)
    return chart
