"""A recommendation in words and tables: what to run, what it gives, what it costs, how sure."""

from __future__ import annotations

import math
from functools import partial

from kvscope.app.tune import Tuned
from kvscope.core import units
from kvscope.report import html
from kvscope.report.report import trace_in_words
from kvscope.report.section import Section, Table
from kvscope.report.sections.run_cells import in_ms, in_s, size_cells, size_columns
from kvscope.report.sections.sizes import multiple
from kvscope.report.words import counted
from kvscope.tune.bootstrap import FEWEST, Gain, objective_of
from kvscope.tune.flags import Flags
from kvscope.tune.objective import Trial
from kvscope.tune.result import Judged, Least, Scaled

_FIGURES = ("p50", "p90", "p95", "p99", "TEL", "over SLO", "hit rate", "prefills/s")
_STAR = "* knows the future: a ceiling, not a choice"
ON_TOP = "What runs takes its tokens on top of the capacity, which is kept between."
PLUGIN = "KVSCOPE_RECOMMENDATION=recommendation.toml vllm serve MODEL"


def sections(found: Tuned, *, explain: bool = False) -> list[Section]:
    """The verdict and what it rests on; with `explain` also what was tried and rejected."""
    from kvscope.report.sections.tuning_explained import explained

    parts = [_verdict(found), _judged(found), _capacities(found), _to_set(found), _assumed(found)]
    return parts + (explained(found) if explain else [])


def html_report(found: Tuned) -> str:
    """The recommendation as one self-contained HTML page, with charts and all that was tried."""
    title = f"kvscope tune: {found.trace.name}"
    return html.page(title, trace_in_words(found.trace), sections(found, explain=True))


def figures_of(found: Tuned, trial: Trial) -> tuple[str, ...]:
    """The figures of a trial in the order of the columns, in the target's view."""
    times = found.times_ms(trial.outcome)
    return (
        *(in_ms(one) for one in (times.p50, times.p90, times.p95, times.p99)),
        in_s(trial.tel_s * 1e3),
        units.format_share(trial.violation_share),
        units.format_share(trial.outcome.token_hit_rate),
        f"{trial.served_per_s:.3g}",
    )


def verdict_in_words(found: Tuned) -> list[str]:
    """The verdict, and the figures behind it, in sentences."""
    tuning = found.tuning
    best, lru, target = tuning.recommended.trial, tuning.baseline.trial, tuning.target
    slo, goal = units.format_duration(target.slo_s), found.target_name
    here = found.size(tuning.capacity_blocks)
    now = f"LRU gives a {goal} of {_s(lru)} at {here}"
    if tuning.verdict == "keep-lru":
        return [f"Keep LRU: {now}, within the SLO of {slo}.", *_shrink(found)]
    if tuning.verdict == "unreachable":
        early, late = tuning.infinite_chosen.target_s, tuning.infinite.trial.target_s
        lever = (
            f"No cache can keep the SLO of {slo}: even an infinite one, which hits all that is ever"
            f" reused, leaves a {goal} of {units.format_duration(max(early, late))}. {now}."
        )
        return [lever, *_still(found), "The levers left are faster prefill and shorter prompts."]
    if tuning.verdict == "switch":
        switch = (
            f"Switch to {found.called(best.policy)}: {_moves(tuning.recommended, found)}, within"
            f" the SLO of {slo} {_how_often(tuning.recommended)}, at {here}."
        )
        return [switch, *_beside(found)]
    add = f"Add capacity: {now}, and no policy surely keeps the SLO of {slo} there."
    if best.capacity_blocks <= tuning.capacity_blocks:
        return [f"{add} None was found that does, where it was looked for.", *_beside(found)]
    more = found.size(best.capacity_blocks)
    name = found.called(best.policy)
    if best.meets(target):
        enough = f"{name} keeps it at {more}, with a {goal} of {_s(best)}."
    else:
        enough = (
            f"{name} keeps it at {more} in the part to choose on, but not in the judged one: its"
            f" {goal} there is {_s(best)}.{_needed(found)}"
        )
    return [f"{add} {enough}", *_hindsight(found), *_beside(found)]


def _how_often(judged: Judged) -> str:
    return f"(in {judged.keeps:.0%} of the draws)"


def _s(trial: Trial) -> str:
    return units.format_duration(trial.target_s)


def _moves(judged: Judged, found: Tuned) -> str:
    """What the target measures, from LRU to another policy, with the interval of the change."""
    target, now, then = found.tuning.target, found.tuning.baseline.trial, judged.trial
    gain = judged.gains[objective_of(target)]
    told = f"({change(gain)}, 95% interval {interval(gain)})"
    moves = f"{found.target_name} {_s(now)} -> {_s(then)}"
    if target.measure == "percentile":
        return f"{moves} {told}"
    before, after = (units.format_share(one.violation_share) for one in (now, then))
    return f"{before} -> {after} of the requests over the SLO {told}, {moves}"


def _needed(found: Tuned) -> str:
    """What the judged part would have needed with the policy that is recommended."""
    best = found.tuning.recommended.trial
    for least in (found.tuning.least_best, found.tuning.least_lru):
        if least is None or least.chosen.capacity_blocks != best.capacity_blocks:
            continue
        if least.would_need_blocks is not None:
            return f" The judged requests would need {found.size(least.would_need_blocks)}."
    return ""


def _hindsight(found: Tuned) -> list[str]:
    """Says so where the capacity is not what the part to choose on asked for."""
    best = found.tuning.recommended.trial
    for least in (found.tuning.least_best, found.tuning.least_lru):
        if least is not None and least.would_need_blocks == best.capacity_blocks:
            early = found.size(least.chosen.capacity_blocks)
            return [f"That is what the judged requests need: those before them needed {early}."]
    return []


def _beside(found: Tuned) -> list[str]:
    """What often pays for the tail: the median, the hits, and so what an engine can take."""
    best = found.tuning.recommended
    if "p50" not in best.gains:
        return []
    both = (found.tuning.baseline.trial, best.trial)
    before, after = (in_ms(found.times_ms(one.outcome).p50) for one in both)
    hits, still_hits = (units.format_share(one.outcome.token_hit_rate) for one in both)
    beside = (
        f"With it: p50 {before} -> {after} ({change(best.gains['p50'])}), hit rate {hits} ->"
        f" {still_hits}, prefills/s {both[0].served_per_s:.3g} -> {both[1].served_per_s:.3g}."
    )
    return [beside]


def _still(found: Tuned) -> list[str]:
    """What another policy is worth all the same."""
    best = found.tuning.recommended
    if best.trial.policy.name == "lru":
        return []
    told = found.called(best.trial.policy)
    return [f"{told} is worth something all the same: {_moves(best, found)}.", *_beside(found)]


def _shrink(found: Tuned) -> list[str]:
    least = found.tuning.least_lru
    if least is None or not least.judged.meets(found.tuning.target):
        return []
    blocks = least.judged.capacity_blocks
    if blocks >= found.tuning.capacity_blocks:
        return []
    if not blocks:
        return ["You could shrink: the SLO is kept without any cache."]
    return [f"You could shrink: LRU still keeps it at {found.size(blocks)} ({_s(least.judged)})."]


def _verdict(found: Tuned) -> Section:
    parted = found.tuning.split
    how = (
        f"Chosen on {counted(parted.chosen_on_requests, 'request')} after"
        f" {units.format_count(parted.warmup_requests)} that warm the cache, judged on the"
        f" {units.format_count(parted.judged_requests)} after them."
    )
    title = f"Recommendation: {found.tuning.verdict}"
    return Section(title, sentences=(*verdict_in_words(found), how))


def _judged(found: Tuned) -> Section:
    """LRU, the policies and the ceilings beside each other, and the gains with intervals."""
    from kvscope.report.charts import tuning as charts

    tuning = found.tuning
    rows = [("lru", *figures_of(found, tuning.baseline.trial))]
    rows += [
        (found.called(one.trial.policy), *figures_of(found, one.trial)) for one in tuning.contenders
    ]
    rows.append(("infinite cache", *figures_of(found, tuning.infinite.trial)))
    rows += [
        (found.called(one.trial.policy), *figures_of(found, one.trial)) for one in tuning.ceilings
    ]
    at = f"At {found.size(tuning.capacity_blocks)}, by the judged requests"
    median, *others = _FIGURES
    table = Table(at, ("policy", f"{found.ttft} {median}", *others), tuple(rows), _STAR)
    charted = (partial(charts.distributions, found), partial(charts.trade_off, found))
    return Section("Policies", tables=(table, _gains(found)), figures=charted)


def _gains(found: Tuned) -> Table:
    """The change that each contender makes to each figure; surely better ones are marked."""
    tuning = found.tuning
    names = ("p50", "p95", "p99", "violations")
    decisive = objective_of(tuning.target)
    columns = [decisive, f"{decisive}, 95% interval", *(one for one in names if one != decisive)]
    rows = []
    for one in tuning.contenders:
        gain = one.gains[decisive]
        others = (change(one.gains[name]) for name in names if name != decisive)
        verdict = "yes" if gain.sure else "no"
        name = found.called(one.trial.policy)
        rows.append((name, verdict, change(gain), interval(gain), *others))
    return Table(
        "Change against LRU, in the order of the part chosen on",
        ("policy", "surely better", *columns),
        tuple(rows),
        "less is better; an interval that contains 0 is no gain",
    )


def _capacities(found: Tuned) -> Section:
    """The least capacity that keeps the SLO."""
    from kvscope.report.charts import tuning as charts

    tuning = found.tuning
    rows = []
    for least in (tuning.least_lru, tuning.least_best):
        if least is not None and (least is tuning.least_lru or _other(least)):
            rows.append(_least(found, least))
    title = f"Least capacity with a {found.target_name} within the SLO"
    if not rows:
        words = (f"{title}: none, not even an infinite cache in the part to choose on.",)
        return Section("Capacity", words, figures=(partial(charts.capacities, found),))
    hbm = (
        (f"x {units.format_size(found.hbm_bytes)} HBM",) if found.model and found.hbm_bytes else ()
    )
    columns = ("policy", *size_columns(found.model), *hbm, "chosen on", "judged", "keeps it")
    table = Table(title, columns, tuple(rows), "to 1 %; keeps it: on the judged requests too")
    return Section("Capacity", tables=(table,), figures=(partial(charts.capacities, found),))


def _other(least: Least) -> bool:
    return least.chosen.policy.name != "lru"


def _least(found: Tuned, least: Least) -> tuple[str, ...]:
    blocks = least.chosen.capacity_blocks
    size = found.bytes_in(blocks)
    hbm = (multiple(size / found.hbm_bytes),) if size is not None and found.hbm_bytes else ()
    keeps = "yes" if least.judged.meets(found.tuning.target) else "no"
    if least.would_need_blocks is not None:
        keeps += f", needs {units.format_count(least.would_need_blocks)} blocks"
    return (
        found.called(least.chosen.policy),
        *size_cells(blocks, found.trace.block_size, found.model),
        *hbm,
        _s(least.chosen),
        _s(least.judged),
        keeps,
    )


def _to_set(found: Tuned) -> Section:
    """What to tell the engine."""
    policy, flags = found.tuning.recommended.trial.policy.name, found.flags
    sentences = []
    if flags.sglang:
        sentences.append(f"SGLang: {flags.sglang}")
    elif (other := found.next_best_for_sglang()) is not None:
        name, told = found.called(other.trial.policy), found.flags_for(other).sglang
        sentences.append(f"SGLang has no {policy}; its best is {name} ({_s(other.trial)}): {told}")
    else:
        sentences.append(f"SGLang has no {policy}.")
    sentences.append(_for_vllm(policy, flags))
    least, own = found.tuning.least_lru, policy == "lru"
    if found.tuning.verdict == "add-capacity" and not own and least is not None:
        lru = found.flags_at(least.chosen)
        sentences.append(f"With LRU instead, in SGLang: {lru.sglang}; in vLLM: {lru.vllm}")
    sentences.append(ON_TOP)
    return Section("To set", sentences=tuple(sentences))


def _for_vllm(policy: str, flags: Flags) -> str:
    if flags.vllm is None:
        return (
            f"vLLM cannot run {policy}, and kvscope's plugin neither: for the best that it can,"
            " tune with --policies tlru,threshold-lru,wa,gittins,tlru-learned,ttl."
        )
    if flags.vllm_needs_plugin:
        return f"vLLM, with kvscope's plugin: {PLUGIN} {flags.vllm}"
    return f"vLLM: {flags.vllm}"


def _assumed(found: Tuned) -> Section:
    words = (f"{one.name} {one.value}: {one.why}." for one in found.assumptions)
    return Section("Assumed", (*words, *(_scaled(one) for one in found.tuning.scaled)))


def _scaled(other: Scaled) -> str:
    """What another speed of prefill would change."""
    speed = f"Were prefill {1 / other.times:g} times as fast: {other.verdict}"
    lru, then = (units.format_duration(one) for one in (other.baseline_s, other.expected_s))
    if lru == then:
        return f"{speed}, LRU {lru}."
    return (
        f"{speed}, LRU {lru},"
        f" {other.policy} at {units.format_count(other.capacity_blocks)} blocks {then}."
    )


def change(gain: Gain) -> str:
    """A gain as the change that it is: -24.1%."""
    return _percent(-gain.value)


def interval(gain: Gain) -> str:
    """The change's interval: -30.2% to -17.9%."""
    if math.isinf(gain.low):
        return f"unknown: fewer than {FEWEST} conversations"
    return f"{_percent(-gain.high)} to {_percent(-gain.low)}"


def _percent(change: float) -> str:
    text = f"{change:+.1%}"
    return "0.0%" if text in {"+0.0%", "-0.0%"} else text
