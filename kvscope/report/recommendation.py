"""A recommendation: what to run, what it gives and costs, and how certain that is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.app.documents.tune import tune_document
from kvscope.app.requests import BASELINE
from kvscope.app.tune import Recommendation
from kvscope.core import units
from kvscope.policies.registry import plugin_policies
from kvscope.replay.policy_options import FORESEEING
from kvscope.report import explanation, style, ttft
from kvscope.report.report import Report
from kvscope.report.runs import ORACLE_NOTE
from kvscope.report.section import Columns, Section, Table, tabulate
from kvscope.report.words import (
    NONE,
    Sizes,
    count,
    counted,
    ms_in_words,
    percent_change,
    share,
    significant,
)
from kvscope.tuning.bootstrap import FEWEST, Gain
from kvscope.tuning.flags import Flags, plugin_command
from kvscope.tuning.trial import Trial
from kvscope.tuning.tuner import HeldOutTrial, PrefillScenario, RequiredCapacity

SECTIONS = (
    *("recommendation", "policies", "capacity", "to-set", "assumed"),
    *("why-this-xi", "why-this-capacity", "tried", "ttft-by-category"),
)
"""What `--section` of `kvscope tune` takes; not every recommendation has them all."""

ADD_RUNNING = "Add KV memory for running requests: this capacity covers only idle cached blocks."

_CONTENDERS = 4  # on the one screen


def screen(tuned: Recommendation) -> list[Section]:
    """Return the one screen: verdict, policies, capacities, what to set, what was assumed."""
    least = _capacities(tuned)
    if least.tables:
        least = Section.of(least.tables[0].title, replace(least.tables[0], title=""))
    taken = ", ".join(f"{assumed.name} {assumed.value}" for assumed in tuned.assumptions)
    assumed = f"{taken} (why: --section assumed)." if taken else None
    return [
        _verdict(tuned),
        Section.of(_here(tuned), _digest(tuned)),
        least,
        _to_set(tuned),
        Section.of("Assumed", assumed, " ".join(_scaled(tuned))),
    ]


def sections(tuned: Recommendation) -> list[Section]:
    """Return the verdict, what it rests on, and what was tried."""
    assumed = (f"{each.name} {each.value}: {each.why}." for each in tuned.assumptions)
    return [
        _verdict(tuned),
        _policies(tuned),
        _capacities(tuned),
        _to_set(tuned),
        Section.of("Assumed", *assumed, *_scaled(tuned)),
        *explanation.sections(tuned),
    ]


def report(tuned: Recommendation) -> Report:
    """Return the recommendation in every form."""
    return Report(
        "kvscope tune",
        tuned.trace,
        document=lambda: tune_document(tuned),
        screen=lambda: screen(tuned),
        sections=lambda: sections(tuned),
    )


def verdict_in_words(tuned: Recommendation) -> list[str]:
    """Return the verdict, and the figures behind it, in sentences."""
    tuning, sizes = tuned.tuning, explanation.sizes_of(tuned)
    best, target, goal = tuning.recommended, tuning.target, tuned.target_name
    slo, name = units.duration_in_words(target.slo_s), tuned.called(best.policy)
    here = sizes.in_words(tuning.capacity_blocks)
    now = f"LRU has a {goal} of {_time(tuning.baseline)} at {here}"
    if tuning.verdict == "keep-lru":
        return [f"Keep LRU: {now}, within the SLO of {slo}.", *_shrink(tuned, sizes)]
    if tuning.verdict == "unreachable":
        worst_s = max(tuning.infinite_training.target_s, tuning.infinite.target_s)
        least = f"even an infinite one has a {goal} of {units.duration_in_words(worst_s)}"
        sentences = [f"No cache can meet the SLO of {slo}: {least}. {now}."]
        if best.policy.name != BASELINE:
            still = f"{name} is still better than LRU: {_moves(best, tuned)}."
            sentences += [still, *_side_effects(tuned)]
        return [*sentences, "What remains is faster prefill or shorter prompts."]
    if tuning.verdict == "switch":
        switch = (
            f"Switch to {name}: {_moves(best, tuned)}, within the SLO of {slo} in"
            f" {best.meeting_share:.0%} of the bootstrap resamples, at {here}."
        )
        return [switch, *_side_effects(tuned)]
    add = f"Add capacity: {now}; no policy significantly meets the SLO of {slo} there."
    if best.capacity_blocks <= tuning.capacity_blocks:
        none = "No capacity within the search range meets it."
        return [f"{add} {none}", *_side_effects(tuned)]
    enough = f"{name} meets it at {sizes.in_words(best.capacity_blocks)}"
    if best.meets(target):
        enough += f": {goal} {_time(best)} on held-out requests."
    else:
        fails = "in the training window but not on held-out requests"
        enough += f" {fails}: {goal} {_time(best)} there."
    return [" ".join([add, enough, *_held_out(tuned, sizes)]), *_side_effects(tuned)]


def _time(trial: Trial) -> str:
    return units.duration_in_words(trial.target_s)


def _moves(trial: HeldOutTrial, tuned: Recommendation) -> str:
    """Return what the target measures, from LRU to another policy, with the change's interval."""
    target, lru = tuned.tuning.target, tuned.tuning.baseline
    gain = trial.gains[target.objective]
    how = f"({change(gain)}, 95% CI {interval(gain)})"
    moves = f"{tuned.target_name} {_time(lru)} -> {_time(trial)}"
    if target.measure == "percentile":
        return f"{moves} {how}"
    before, after = share(lru.violation_share), share(trial.violation_share)
    return f"{before} -> {after} of the requests over the SLO {how}, {moves}"


def _held_out(tuned: Recommendation, sizes: Sizes) -> list[str]:
    """Return what the held-out requests need, where that is not what the training window needed."""
    blocks = tuned.tuning.recommended.capacity_blocks
    for least in (tuned.tuning.least_any, tuned.tuning.least_lru):
        if least is None or least.would_need_blocks is None:
            continue
        if least.would_need_blocks == blocks:
            early = sizes.in_words(least.training.capacity_blocks)
            return [f"Held-out requests need that much; the training window needed {early}."]
        if least.training.capacity_blocks == blocks:
            return [f"Held-out requests would need {sizes.in_words(least.would_need_blocks)}."]
    return []


def _side_effects(tuned: Recommendation) -> list[str]:
    """Return what often pays for the tail: the median, the hits, and so prefill throughput."""
    best, lru = tuned.tuning.recommended, tuned.tuning.baseline
    if "p50" not in best.gains:
        return []
    before, after = (ms_in_words(tuned.times_ms(trial.outcome).p50) for trial in (lru, best))
    hits, then = (share(trial.outcome.token_hit_rate) for trial in (lru, best))
    prefills = f"{lru.served_per_s:.3g} -> {best.served_per_s:.3g}"
    p50 = f"{before} -> {after} ({change(best.gains['p50'])})"
    return [f"Also: p50 {p50}, hit rate {hits} -> {then}, prefills/s {prefills}."]


def _shrink(tuned: Recommendation, sizes: Sizes) -> list[str]:
    least = tuned.tuning.least_lru
    if least is None or not least.held_out.meets(tuned.tuning.target):
        return []
    blocks = least.held_out.capacity_blocks
    if blocks >= tuned.tuning.capacity_blocks:
        return []
    if not blocks:
        return ["You could shrink: the SLO is met without any cache."]
    least_size, time = sizes.in_words(blocks), _time(least.held_out)
    return [f"You could shrink: LRU meets it down to {least_size} ({time})."]


def _verdict(tuned: Recommendation) -> Section:
    split = tuned.tuning.split
    how = (
        f"Chosen on {counted(split.chosen_on_requests, 'request')} (training window) after"
        f" {count(split.warmup_requests)} to warm the cache; measured on the next"
        f" {count(split.judged_requests)} (held-out requests)."
    )
    title = f"Recommendation: {tuned.tuning.verdict}"
    return Section.of(title, *verdict_in_words(tuned), how)


def _policies(tuned: Recommendation) -> Section:
    """Return LRU, the policies and the oracles side by side, and the gains with intervals."""
    tuning = tuned.tuning
    rows = [
        (BASELINE, tuning.baseline),
        *((tuned.called(judged.policy), judged) for judged in tuning.contenders),
        ("infinite cache", tuning.infinite),
        *((tuned.called(judged.policy), judged) for judged in tuning.oracles),
    ]

    known = explanation.trial_columns(tuned, lambda row: row[1])
    columns: Columns = {
        "policy": lambda row: row[0],
        f"{tuned.ttft} p50 (ms)": known["p50 (ms)"],
        **{name: known[name] for name in ("p90", "p95", "p99", "TEL (s)", "over SLO", "hit rate")},
        "prefills/s": lambda row: f"{row[1].served_per_s:.3g}",
    }
    table = tabulate(_here(tuned), rows, columns, ORACLE_NOTE)
    charts = partial(distributions_chart, tuned), partial(trade_off_chart, tuned)
    return Section.of("Policies", table, _gains(tuned), *charts)


def _gains(tuned: Recommendation) -> Table:
    """Return the change that each contender makes to each figure, marked where significant."""
    decisive = tuned.tuning.target.objective

    def changed(name: str, judged: HeldOutTrial) -> str:
        return change(judged.gains[name])

    others = [name for name in ("p50", "p95", "p99", "violations") if name != decisive]
    return tabulate(
        "Change vs LRU on held-out requests, ranked by training-window result",
        tuned.tuning.contenders,
        {
            "policy": lambda judged: tuned.called(judged.policy),
            "significant": lambda judged: _yes(judged.gains[decisive].significant),
            decisive: partial(changed, decisive),
            f"{decisive}, 95% CI": lambda judged: interval(judged.gains[decisive]),
            **{name: partial(changed, name) for name in others},
        },
        "significant: better, and the 95% CI (bootstrap resamples of conversations) excludes 0",
    )


def _digest(tuned: Recommendation) -> Table:
    """Return LRU, the first contenders, an infinite cache and the best oracle in a row each."""
    tuning = tuned.tuning
    decisive = tuning.target.objective
    oracle = min(tuning.oracles, key=lambda judged: judged.target_s, default=None)
    rows = [
        (BASELINE, tuning.baseline, None),
        *(
            (judged.policy.name, judged, judged.gains.get(decisive))
            for judged in tuning.contenders[:_CONTENDERS]
        ),
        ("infinite cache", tuning.infinite, None),
    ]
    what = "requests over the SLO" if decisive == "violations" else decisive
    notes = [f"vs LRU: change of {what}; significant: better, and the 95% CI excludes 0"]
    if oracle:
        rows.append((f"{oracle.policy.name}{FORESEEING}", oracle, None))
        notes.append(ORACLE_NOTE)
    if any(row[2] is not None and math.isinf(row[2].low) for row in rows):
        notes.append(f"unknown: fewer than {FEWEST} conversations")
    if len(tuning.contenders) > _CONTENDERS:
        more = len(tuning.contenders) - _CONTENDERS
        notes.append(f"{more} more, and the parameters, with --section policies")

    def gained(write: Callable[[Gain], str]) -> Callable[[Any], str]:
        return lambda row: NONE if row[2] is None else write(row[2])

    known = explanation.trial_columns(tuned, lambda row: row[1])
    columns: Columns = {
        "policy": lambda row: row[0],
        **{name: known[name] for name in ("p50 (ms)", "p95", "p99")},
        "vs LRU": gained(change),
        "95% CI": gained(lambda gain: "unknown" if math.isinf(gain.low) else interval(gain)),
        "significant": gained(lambda gain: _yes(gain.significant)),
        **{name: known[name] for name in ("over SLO", "hit rate")},
    }
    return tabulate("", rows, columns, "; ".join(notes))


def _here(tuned: Recommendation) -> str:
    here = explanation.sizes_of(tuned).in_words(tuned.tuning.capacity_blocks)
    return f"{tuned.ttft[0].upper()}{tuned.ttft[1:]} of held-out requests at {here}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def change(gain: Gain) -> str:
    """Return a gain as the change that it is: -24.1%."""
    return percent_change(-gain.value)


def interval(gain: Gain) -> str:
    """Return the change's interval: -30.2% to -17.9%; where it has no width, why."""
    if math.isinf(gain.low):
        return f"unknown: fewer than {FEWEST} conversations"
    if gain.low == gain.high:
        return "same as LRU" if not gain.value else "same in all"
    return f"{percent_change(-gain.high)} to {percent_change(-gain.low)}"


def _capacities(tuned: Recommendation) -> Section:
    tuning, chart = tuned.tuning, partial(explanation.capacities_chart, tuned)
    rows = [
        least
        for least in (tuning.least_lru, tuning.least_any)
        if least is not None
        and (least is tuning.least_lru or least.training.policy.name != BASELINE)
    ]
    title = f"Least capacity with a {tuned.target_name} within the SLO"
    if not rows:
        none = f"{title}: none; an infinite cache does not meet it in the training window."
        return Section.of("Capacity", none, chart)
    sizes = explanation.sizes_of(tuned)

    def holds(least: RequiredCapacity) -> str:
        verdict = _yes(least.held_out.meets(tuning.target))
        if least.would_need_blocks is None:
            return verdict
        return f"{verdict}, needs {sizes.label(least.would_need_blocks)}"

    columns: Columns = {
        "policy": lambda least: tuned.called(least.training.policy),
        **sizes.columns(lambda least: least.training.capacity_blocks),
        "training (ms)": lambda least: significant(least.training.target_s * 1e3),
        "held-out (ms)": lambda least: significant(least.held_out.target_s * 1e3),
        "holds": holds,
    }
    note = "resolved to 1%; holds: also on held-out requests"
    table = tabulate(title, rows, columns, note, words=("holds",))
    return Section.of("Capacity", table, chart)


def _to_set(tuned: Recommendation) -> Section:
    policy, flags = tuned.tuning.recommended.policy.name, tuned.flags
    if flags.sglang:
        sglang = f"SGLang: {flags.sglang}"
    elif (other := tuned.next_best_for_sglang()) is not None:
        name, instead = tuned.called(other.policy), tuned.flags_for(other).sglang
        sglang = f"SGLang has no {policy}; its best is {name} ({_time(other)}): {instead}"
    else:
        sglang = f"SGLang has no {policy}."
    least, with_lru = tuned.tuning.least_lru, None
    if tuned.tuning.verdict == "add-capacity" and policy != BASELINE and least is not None:
        lru = tuned.flags_at(least.training)
        with_lru = f"With LRU instead: SGLang: {lru.sglang}; vLLM: {lru.vllm}"
    vllm = _for_vllm(policy, flags, tuned.path)
    return Section.of("To set", sglang, vllm, with_lru, ADD_RUNNING)


def _for_vllm(policy: str, flags: Flags, path: str) -> str:
    if flags.vllm is None:
        return (
            f"Neither vLLM nor kvscope's plugin runs {policy}. For the best that the plugin runs,"
            f" tune with --policies {plugin_policies()}."
        )
    if flags.vllm_needs_plugin:
        return f"vLLM, with kvscope's plugin: {plugin_command(path)} {flags.vllm}"
    return f"vLLM: {flags.vllm}"


def _scaled(tuned: Recommendation) -> list[str]:
    """Return what another speed of prefill would change."""

    def words(other: PrefillScenario) -> str:
        lru, then = (units.duration_in_words(time) for time in (other.baseline_s, other.expected_s))
        at = explanation.sizes_of(tuned).label(other.capacity_blocks)
        runs = "" if lru == then else f", {other.policy} at {at} {then}"
        return f"With prefill {1 / other.times:g}× as fast: {other.verdict}, LRU {lru}{runs}."

    return [words(other) for other in tuned.tuning.scenarios]


def distributions_chart(tuned: Recommendation) -> style.Figure:
    """Build the share of requests with a TTFT up to each value: LRU, the best, an ideal cache."""
    tuning = tuned.tuning
    rank, policy = tuning.target.percentile, tuning.chosen.policy
    shown = [ttft.distribution(f"{BASELINE}, now", BASELINE, _ms(tuning.baseline))]
    if tuning.chosen is not tuning.baseline:
        shown.append(ttft.distribution(tuned.called(policy), policy.name, _ms(tuning.chosen)))
    grey = {"color": style.GREY, "width": 2}
    shown.append(ttft.distribution("infinite cache", "", _ms(tuning.infinite), grey))
    title = f"{tuned.ttft} of the held-out requests"
    chart = ttft.distributions_chart(title, shown, tuning.target.slo_s)
    return style.level(chart, rank, units.format_percentile(rank))


def _ms(judged: HeldOutTrial) -> NDArray[np.float64]:
    return judged.ttft_s[np.isfinite(judged.ttft_s)] * 1e3


def trade_off_chart(tuned: Recommendation) -> style.Figure:
    """Build the tail against the median: every setting that was tried, as a point."""
    points = []
    for trial in explanation.tried_here(tuned):
        name, median_ms = tuned.called(trial.policy), tuned.times_ms(trial.outcome).p50
        points.append(ttft.Point(trial.policy.name, name, median_ms, trial.target_s * 1e3))
    title = "Median against tail in the training window"
    chart = ttft.trade_off_chart(title, f"p50 {tuned.ttft}", tuned.target_name, points)
    return style.slo_level(chart, tuned.tuning.target.slo_s)
