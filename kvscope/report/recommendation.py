"""A recommendation: what to run, its gain and cost, and how certain they are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kvscope.app.requests import BASELINE
from kvscope.core import units
from kvscope.policies.wa import Wa
from kvscope.replay.policy_options import VLLM, contenders
from kvscope.report import explanation, fleet, style, ttft
from kvscope.report.plan import (
    memory_in_words,
    memory_to_set,
    options_section,
    to_meet,
    worth_in_words,
)
from kvscope.report.runs import ORACLE_NOTE
from kvscope.report.section import Columns, Section, Table, tabulate
from kvscope.report.words import (
    NONE,
    Sizes,
    count,
    counted,
    money,
    ms_in_words,
    percent_change,
    points,
    share,
    significant,
)
from kvscope.tuning.bootstrap import FEWEST, Gain
from kvscope.tuning.comparison import VALUES, Canary, Harm, WindowTrial
from kvscope.tuning.flags import plugin_command
from kvscope.tuning.least import FewestReplicas
from kvscope.tuning.rule import Grade, Judged, SloAnswer
from kvscope.tuning.target import LIKELY
from kvscope.tuning.trial import Trial
from kvscope.tuning.tuner import EndVerdict, RequiredCapacity
from kvscope.usecases.tune import WINDOWS
from kvscope.usecases.tune.recommendation import Recommendation

TYPES = "wa needs each request's type, where this trace states one: docs/run-it.md."
ON_SGLANG = "Simulated by SGLang's scheduler and prefix tree; max_new_tokens as the outputs were."
CACHE_STUDY = "cache study: idle cached blocks only, without weights, running requests or replicas"

HELD_OUT, VALIDATION = "held-out requests", "the validation window"
LATER = "the later requests"
ONE_WINDOW = "only one of the two later windows shows it"
_ANSWERS: dict[SloAnswer, str] = {
    "meets": "meets it",
    "misses": "misses it",
    "undecided": "is undecided",
    "overloaded": "does not keep up",
}
_TITLES: dict[Grade, str] = {"do-now": "do now", "canary": "canary first"}
_NO_WIDTH = 1e-9  # of an interval: sums of times differ by rounding alone


def screen(tuned: Recommendation) -> list[Section]:
    """Return one screen: the options, the verdict, the flags, the assumptions."""
    taken = ", ".join(
        f"{assumed.name} {assumed.value}"
        for assumed in tuned.assumptions
        if assumed.name != WINDOWS  # the verdict names them
    )
    assumed = f"{taken} (why: --section assumed)." if taken else None
    return [
        options_section(tuned),
        _verdict(tuned),
        _to_set(tuned),
        Section.of("Assumed", assumed, *_ends(tuned, layouts=False)),
    ]


def sections(tuned: Recommendation) -> list[Section]:
    """Return the verdict, its evidence, and all trials."""
    assumed = (f"{each.name} {each.value}: {each.why}." for each in tuned.assumptions)
    notes = tuned.deployment.notes if tuned.deployment else ()
    doubts = (f"{note[0].upper()}{note[1:]}." for note in notes)
    return [
        options_section(tuned),
        _verdict(tuned),
        _policies(tuned),
        *([] if tuned.deployment else [_capacities(tuned)]),
        _to_set(tuned),
        Section.of("Assumed", *assumed, *_ends(tuned), *doubts),
        *explanation.sections(tuned),
    ]


def verdict_in_words(tuned: Recommendation) -> list[str]:
    """Return the gain of the policy change, then whether the SLO is met, in sentences.

    Each sentence names its window; later requests are those of the validation and held-out window.
    """
    words = {
        "keep-lru": _keep_lru,
        "switch": _slo_met,
        "add-capacity": _add_capacity,
        "unreachable": _unreachable,
        "overloaded": _overloaded,
    }
    meet = to_meet(tuned)
    memory = memory_in_words(tuned)
    if tuned.tier is not None and tuned.canary is not None:
        arms = "one replica, with and without the tier in turn,"
        memory.append(canary_in_words(tuned.canary, arms))
    return [*_worth(tuned), *memory, *words[tuned.tuning.verdict](tuned), *meet]


def _worth(tuned: Recommendation) -> list[str]:
    """Return the gain of the policy change, apart from the SLO, or why there is no change."""
    tuning = tuned.tuning
    if tuning.choice is None:
        return _no_change(tuned)
    trial, name = tuning.choice.later, tuned.called(tuning.choice.policy)
    moves = f"{name}: {_moves(trial, tuned)} on {LATER}"
    if tuned.uncertain:
        first = f"Not certain: {moves}."
    elif tuning.grade == "do-now":
        first = f"Do now, free: {moves}."
    else:
        first = f"Canary first: {moves}. No harm shows, and a gain is {trial.likely:.0%} likely."
    place = tuning.contenders.index(tuning.choice)
    before = f"{counted(place, 'policy', 'policies')} preferred before failed there."
    return [
        first,
        *([before] if place else []),
        *([TYPES] if isinstance(tuning.choice.policy, Wa) else []),
        *_side_effects(tuned),
        *worth_in_words(tuned),
        *_unguarded(tuned),
        *_canary(tuned),
    ]


def _no_change(tuned: Recommendation) -> list[str]:
    """Return why no policy change is recommended: too few requests, harm, or no gain."""
    tuning = tuned.tuning
    if tuning.promising is not None:
        contender, needed = tuning.promising
        requests = f"{count(tuning.split.requests)} of about {count(needed)}"
        moves = f"{tuned.called(contender.policy)}: {_moves(contender.later, tuned)} on {LATER}"
        but = "harm is possible" if contender.gains_twice else ONE_WINDOW
        return [f"Not enough requests: {requests}. A gain is likely, but {but}: {moves}."]
    for contender in tuning.contenders:
        if contender.later.likely >= LIKELY:
            why = _harms(contender.harms) or (
                ONE_WINDOW if contender.keeps_up else "its queue grows"
            )
            return [f"No change: {tuned.called(contender.policy)} gains on {LATER}, but {why}."]
    return [f"No change: no policy is likely better than LRU on {LATER}."]


def _now(tuned: Recommendation, trial: Trial | None = None, window: str = HELD_OUT) -> str:
    time = _time(trial or tuned.tuning.baseline)
    where = "" if tuned.deployment else f" at {_where(tuned)}"
    return f"LRU has a {tuned.target_name} of {time} on {window}{where}"


def _misses(tuned: Recommendation) -> str:
    """Return how LRU misses the SLO, on the held-out window or else on the validation window.

    If LRU is within the SLO on both, return that, and whether its queue grows.
    """
    lru, slo_s = tuned.tuning.lru, tuned.tuning.target.slo_s
    for window, trial in ((HELD_OUT, lru.held_out), (VALIDATION, lru.validation)):
        if trial.target_s > slo_s:
            return f"{_now(tuned, trial, window)}, beyond {_slo(tuned)}."
    within = f"{_now(tuned)}, within {_slo(tuned)}"
    return f"{within}, but its queue grows." if not lru.keeps_up else f"{within}."


def _slo(tuned: Recommendation) -> str:
    return f"the SLO of {units.duration_in_words(tuned.tuning.target.slo_s)}"


def _keep_lru(tuned: Recommendation) -> list[str]:
    what = "Keep LRU" if tuned.tuning.choice is None else "Without the change"
    keep = [f"{what}: {_now(tuned)}, within {_slo(tuned)}.", *_tpot(tuned), *_shrink(tuned)]
    fewest = tuned.tuning.fewest_lru
    fewer = fewest is not None and (fewest.replicas or math.inf) < tuned.tuning.replicas
    return [*keep, *(_replicas(tuned) if fewer else [])]


def _slo_met(tuned: Recommendation) -> list[str]:
    """Return whether the change and LRU meet the SLO, and replicas or a capacity that meet it."""
    tuning = tuned.tuning

    def answer(judged: Judged, met: SloAnswer, at: Callable[[EndVerdict], Trial]) -> str:
        interval_s = " to ".join(_in_words(end_s) for end_s in judged.later.interval_s)
        figures = f"{_time(judged.later)}, 95% CI {interval_s}"
        meets = judged.meets(tuning.target)
        others = (end for end in tuning.ends if at(end).meets(tuning.target) != meets)
        if met == "undecided" and (other := next(others, None)):
            figures += f"; {_time(at(other))} with {other.end.name}"
        return f"{judged.policy.name} {_ANSWERS[met]} ({figures})"

    answers = [
        answer(tuning.chosen, tuning.slo_met, lambda end: end.run),
        answer(tuning.lru, tuning.lru_slo_met, lambda end: end.baseline),
    ]
    slo = f"SLO of {units.duration_in_words(tuning.target.slo_s)} for {tuned.target_name}"
    sentences = [f"{slo} on {LATER}: {', '.join(answers)}.", *_tpot(tuned)]
    if tuning.chosen.meets(tuning.target):
        return [*sentences, *_replicas(tuned)]
    if not tuning.infinite.meets(tuning.target):
        return [*sentences, *_beyond_reach(tuned), *_replicas(tuned)]
    return [*sentences, *(_replicas(tuned) if tuned.deployment else _enough(tuned))]


def _unguarded(tuned: Recommendation) -> list[str]:
    """Return a warning that the policy can fall below LRU later, if it has no guard."""
    policy = tuned.tuning.recommended.policy
    if policy.guarded:
        return []
    guarded = tuned.engine == VLLM and not tuned.tuning.setting.kv_groups
    other = f"; {contenders(VLLM)} revert to LRU by themselves" if guarded else ""
    return [f"{policy.name} has no guard: it can fall below LRU once the traffic changes{other}."]


def _beyond_reach(tuned: Recommendation) -> list[str]:
    """Return by how much even an infinite cache misses the SLO on the validation window."""
    tuning = tuned.tuning
    slo, time, name = _slo(tuned), _time(tuning.infinite), tuned.target_name
    if tuning.infinite.target_s <= tuning.target.slo_s:  # its output tokens are too slow
        time, name = _in_words(tuning.infinite.tpot_s), f"{tuning.target.rank_name} TPOT"
        slo = f"the TPOT SLO of {_in_words(tuning.target.tpot_slo_s)}"
    even = f"on {VALIDATION} even an infinite one has a {name} of {time}"
    idle_s = _too_slow_idle_s(tuned)
    why = f", {units.duration_in_words(idle_s)} on an idle engine" if idle_s else ""
    return [f"No cache meets {slo}: {even}{why}."]


def _too_slow_idle_s(tuned: Recommendation) -> float | None:
    """Return the percentile with an infinite cache on an idle engine, None if it meets the SLO."""
    target, times = tuned.tuning.target, tuned.tuning.infinite.outcome.ttft_ms
    idle_s = float(getattr(times, target.rank_name, 0.0)) / 1e3
    return idle_s if target.view == "queued" and idle_s > target.slo_s else None


def _unreachable(tuned: Recommendation) -> list[str]:
    now = f"{_now(tuned, tuned.tuning.lru.validation, VALIDATION)}."
    remains = [] if tuned.deployment else ["Faster prefill or shorter prompts remain."]
    return [*_beyond_reach(tuned), now, *_tpot(tuned), *_replicas(tuned), *remains]


def _add_capacity(tuned: Recommendation) -> list[str]:
    add = [f"Add capacity: {_misses(tuned)}", *_tpot(tuned)]
    return [*add, *(_replicas(tuned) if tuned.deployment else _enough(tuned))]


def _enough(tuned: Recommendation) -> list[str]:
    """Return the larger capacity that meets the SLO, or that no capacity tried does."""
    tuning, sizes, best = tuned.tuning, explanation.sizes_of(tuned), tuned.tuning.enough
    if best is None:
        return ["No capacity within the search range meets it."]
    enough = f"{tuned.called(best.policy)} meets it at {sizes.in_words(best.capacity_blocks)}"
    if best.meets(tuning.target):
        enough += f": {tuned.target_name} {_time(best)} on held-out requests."
    else:
        fails = "in the training window but not on held-out requests"
        enough += f" {fails}: {tuned.target_name} {_time(best)} there."
    return [" ".join([enough, *_held_out(tuned, best.capacity_blocks, sizes)])]


def _where(tuned: Recommendation) -> str:
    """Return the present capacity in words, per replica if there are several."""
    here = explanation.sizes_of(tuned).in_words(tuned.tuning.capacity_blocks)
    replicas = tuned.tuning.replicas
    return f"{here} on each of {replicas} replicas" if replicas > 1 else here


def _overloaded(tuned: Recommendation) -> list[str]:
    tuning, load = tuned.tuning, tuned.tuning.load
    replicas = counted(tuning.replicas, "replica")
    growth = f"{significant(load.growth)} s to the TTFT, up to the end of the validation window"
    sentences = [
        f"Overloaded: {replicas} cannot serve these arrivals.",
        f"Under LRU each second of traffic adds {growth}.",
    ]
    if not load.overloaded:  # the held-out window alone
        return [f"Overloaded: under LRU the queue of {replicas} grows over the held-out window."]
    if load.replicas_at_least is not None:
        sentences.append(f"At least {load.replicas_at_least} replicas keep up.")
    elif not tuning.of_ranks:
        sentences.append(
            f"Not even {count(tuning.replicas_tried)} replicas keep up: the requests are too long."
        )
    if load.carried is not None and load.carried_share is not None:
        sentences.append(
            f"With {load.carried_share:.0%} of the conversations the queue of {replicas} stops"
            f" growing: LRU then has a {tuned.target_name} of {_time(load.carried)}, with"
            f" {share(load.carried.attainment)} of the requests within the SLO."
        )
    if (idle_s := _too_slow_idle_s(tuned)) is not None:
        alone = f"{tuned.target_name} of {units.duration_in_words(idle_s)} on an idle engine"
        sentences.append(
            f"Even an infinite cache has a {alone}: no number of replicas meets the SLO."
        )
    return [*sentences, *_replicas(tuned)]


def _replicas(tuned: Recommendation) -> list[str]:
    """Return the fewest replicas that meet the SLO in words: with LRU, then the chosen policy."""
    tuning, lru = tuned.tuning, tuned.tuning.fewest_lru
    if tuning.of_ranks and not tuning.chosen.meets(tuning.target):
        return ["Another --dp has pools of another size: tune it on its own."]
    if lru is None:
        return []
    slo, router = f"{_slo(tuned)} on {LATER}", lru.router.name
    time_model, model = "tree" if tuning.setting.on_tree else "queue", ""
    if tuning.setting.capacity_model != "engine":  # the one of the rows above
        model = f" ({fleet.TIME_MODELS[time_model]})"
    if lru.replicas is None:
        even = f"With LRU, even {counted(lru.tried, 'replica')} behind {router}"
        longer = ["Requests longer than the pool need a larger one: raise --tp, or quantize."]
        words = [f"{even} {'misses' if lru.tried == 1 else 'miss'} {slo}{model}."]
        return [*words, *_with_choice(tuned), *(longer if tuning.baseline.rejected else [])]
    more = lru.replicas - tuning.replicas
    price, extra = tuned.price_hour(lru.replicas), tuned.price_hour(abs(more))
    than = f", {money(extra)} {'more' if more > 0 else 'less'} than now" if extra else ""
    each = "" if price is None else f" ({money(price)} an hour{than})"
    verb = "meets" if lru.replicas == 1 else "meet"
    fewest = f"With LRU, {counted(lru.replicas, 'replica')} behind {router}{each} {verb} {slo}"
    words = [f"{fewest}{model}.{_interval_of(lru)}", *_with_choice(tuned)]
    saves = tuning.slo_met == "meets" and tuning.choice is not None and tuning.replicas_needed
    if saves and extra and more > 0:
        words.append(f"The change saves {money(extra)} an hour.")
    return words


def _interval_of(fewest: FewestReplicas) -> str:
    """Return the 95 % CI of the fewest replicas in words, after a blank; "" without a CI."""
    return f" {fleet.interval(fewest.size, fewest.compared)}" if fewest.size else ""


def _with_choice(tuned: Recommendation) -> list[str]:
    """Return the fewest replicas that meet the SLO with the chosen policy; [] if not replayed."""
    fewest = tuned.tuning.fewest_choice
    if fewest is None:
        return []
    name = fewest.policy.name
    if fewest.replicas is None:
        return [f"With {name}, even {count(fewest.tried)} miss it.{_interval_of(fewest)}"]
    verb = "does" if fewest.replicas == 1 else "do"
    return [f"With {name}, {fewest.replicas} {verb}.{_interval_of(fewest)}"]


def _tpot(tuned: Recommendation) -> list[str]:
    """Return the held-out TPOT, or validation's if it alone misses; [] without a TPOT SLO."""
    tuning, slo_s = tuned.tuning, tuned.tuning.target.tpot_slo_s
    judged = tuning.chosen
    if slo_s is None or judged.held_out.tpot_s is None or judged.validation.tpot_s is None:
        return []
    window, time_s = HELD_OUT, judged.held_out.tpot_s
    if time_s <= slo_s < judged.validation.tpot_s:
        window, time_s = VALIDATION, judged.validation.tpot_s
    within, slo = "within" if time_s <= slo_s else "beyond", _in_words(slo_s)
    time = f"{tuning.target.rank_name} TPOT is {_in_words(time_s)} on {window}"
    return [f"{time}, {within} the SLO of {slo}."]


def _harms(harms: Sequence[Harm]) -> str:
    """Return what a policy makes worse: 'p50 +80.1% (limit +25.0%)'."""

    def words(harm: Harm) -> str:
        if harm.figure == "attainment":
            change = f"{points(harm.change)} at worst (limit {points(harm.limit)})"
            return f"requests within the SLO {change}"
        interval = "" if harm.figure in VALUES else " at worst"
        figure = "TEL" if harm.figure == "tel" else harm.figure
        change = "unbounded" if math.isinf(harm.change) else percent_change(harm.change)
        return f"{figure} {change}{interval} (limit {percent_change(harm.limit)})"

    return ", ".join(words(harm) for harm in harms)


def _canary(tuned: Recommendation) -> list[str]:
    plan = tuned.tuning.canary
    if plan is None or tuned.tier is not None:
        return []
    arms = f"{counted(plan.replicas or 0, 'replica')} against as many with LRU"
    if tuned.tuning.replicas == 1 or tuned.tuning.of_ranks:
        arms = "one engine, alternating with LRU"
    return [canary_in_words(plan, arms)]


def canary_in_words(plan: Canary, arms: str) -> str:
    """Return a canary test in words; `arms` names what runs with and what without the change."""
    if plan.hours is None or plan.replicas is None:
        return (
            f"A canary cannot confirm the change of {plan.figure} at this traffic within a month."
        )
    hours = units.duration_in_words(plan.hours * 3600)
    return f"Canary: {arms} for {hours} of this traffic; roll back if {plan.figure} rises."


def _time(trial: Trial) -> str:
    if math.isinf(trial.target_s):
        return "∞ (too many requests get no token)"
    return units.duration_in_words(trial.target_s)


def _in_words(seconds: float | None) -> str:
    return NONE if seconds is None else units.duration_in_words(seconds)


def _moves(trial: WindowTrial, tuned: Recommendation) -> str:
    """Return the SLO's TTFT percentile under LRU and under a policy, and the change with its CI.

    `trial` is the policy's, on the later requests. If the target's measure is "violations", or
    LRU's percentile is infinite, the shares of requests over the SLO come first, with their change.
    """
    target, lru = tuned.tuning.target, tuned.tuning.lru.later
    moves = f"{tuned.target_name} {_time(lru)} -> {_time(trial)}"
    percentile = target.measure == "percentile" and not math.isinf(lru.target_s)
    gain = trial.gains[target.objective if percentile else "violations"]
    how = f"({change(gain)}, 95% CI {interval(gain)})"
    if percentile:
        return f"{moves} {how}"
    before, after = share(lru.violation_share), share(trial.violation_share)
    late = f"{before} -> {after} of the requests over the SLO {how}"
    return late if math.isinf(trial.target_s) else f"{late}, {moves}"


def _held_out(tuned: Recommendation, blocks: int, sizes: Sizes) -> list[str]:
    """Return the other capacity for the SLO, if training window and held-out requests differ in it.

    `blocks` is the capacity that the text before names: if held-out requests need it, state what
    the training window needed; if the training window did, what held-out requests would need. []
    for any other capacity, and if the training window's meets the SLO on held-out requests too.
    """
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
    """Return changes of other figures: attainment, median, hits and prefill throughput."""
    best, lru = tuned.tuning.chosen.later, tuned.tuning.lru.later
    before, after = (ms_in_words(trial.times_ms.p50) for trial in (lru, best))
    hits, then = (share(trial.outcome.token_hit_rate) for trial in (lru, best))
    prefills = f"{lru.served_per_s:.3g} -> {best.served_per_s:.3g}"
    p50 = f"{before} -> {after} ({change(best.gains['p50'])})"
    within = f"{share(lru.attainment)} -> {share(best.attainment)}"
    rest = f"hit rate {hits} -> {then}, prefills/s {prefills}"
    return [f"Also: within the SLO {within}, p50 {p50}, {rest}."]


def _shrink(tuned: Recommendation) -> list[str]:
    least, sizes = tuned.tuning.least_lru, explanation.sizes_of(tuned)
    if least is None or not least.held_out.meets(tuned.tuning.target):
        return []
    blocks = least.held_out.capacity_blocks
    rejects = least.held_out.rejected > tuned.tuning.baseline.rejected  # a percentile forgives it
    if rejects or blocks >= tuned.tuning.capacity_blocks:
        return []
    if not blocks:
        return ["You could shrink: the SLO is met without any cache."]
    least_size, time = sizes.in_words(blocks), _time(least.held_out)
    return [f"You could shrink: LRU meets it down to {least_size} ({time})."]


def _verdict(tuned: Recommendation) -> Section:
    split = tuned.tuning.split
    how = (
        f"Requests: warm-up {count(split.warmup_requests)}, training"
        f" {count(split.training_requests)} (search), validation"
        f" {count(split.validation_requests)} (choice), held-out {count(split.held_out_requests)}."
    )
    what = tuned.deployment.summary if tuned.deployment else CACHE_STUDY
    what_to_do = "not certain" if tuned.uncertain else _TITLES.get(tuned.grade, tuned.verdict)
    title = f"Recommendation: {'add memory' if tuned.tier else what_to_do}"
    first = (*tuned.warnings, *_layouts(tuned))
    words = (*verdict_in_words(tuned), *_drafting(tuned))
    return Section.of(title, *first, *words, f"For: {what}.", how)


def _drafting(tuned: Recommendation) -> list[str]:
    """Return how much hit rate speculative decoding costs, if the deployment has a drafter."""
    where, without = tuned.deployment, tuned.without_drafter
    if where is None or without is None or where.engine.drafter is None:
        return []
    drafter, size = where.engine.drafter, tuned.trace.block_size
    name = f"Speculative decoding ({drafter})"
    shortens = where.engine.shortens_hits
    if shortens and not tuned.tuning.setting.kv_groups and not drafter.drops(size):
        return [
            (
                f"{name} computes the last {drafter.block_tokens} tokens of each hit again, which"
                f" blocks of {size} tokens, the trace's, do not show."
            )
        ]
    lost = max(0.0, without - tuned.tuning.lru.later.outcome.token_hit_rate)
    pool = "" if where.pool.origin == "derived" else " in the same pool"
    return [
        (
            f"{name} costs LRU {units.format_pp(lost)[1:]} of hit rate: {share(without)} on the"
            f" later requests without it{pool}."
        )
    ]


def _layouts(tuned: Recommendation) -> list[str]:
    """Return the range of results over other start times of sessions; [] if the trace has them."""
    layouts = tuned.tuning.layouts
    if not layouts:
        return []

    def span(texts: Sequence[str]) -> str:
        return " to ".join(dict.fromkeys((texts[0], texts[-1])))

    def figures(trials: Sequence[Trial]) -> str:
        times = [_time(trial) for trial in sorted(trials, key=lambda trial: trial.target_s)]
        rates = [share(rate) for rate in sorted(trial.outcome.token_hit_rate for trial in trials)]
        return f"{tuned.target_name} {span(times)}, hit rate {span(rates)}"

    counts = sorted(end.end.sessions.open_sessions for end in layouts if end.end.sessions)
    verdicts = Counter(end.verdict for end in layouts).most_common()
    spread = f"{span([f'{number:.3g}' for number in counts])} open"
    spread += f" (Poisson arrivals, {counted(len(layouts), 'layout')})"
    split = ", ".join(f"{name} in {number}" for name, number in verdicts)
    lru = figures([end.baseline for end in layouts])
    sentences = [f"With {spread}: {split}. LRU on held-out requests: {lru}."]
    chosen = [end.choice for end in layouts if end.choice is not None]
    if chosen:
        eligible = sum(bool(end.eligible) for end in layouts)
        name = tuned.called(chosen[0].policy)
        within = f"eligible in {eligible} of {len(layouts)}"
        sentences.append(f"{name} there: {figures(chosen)}, {within}.")
    return sentences


def _policies(tuned: Recommendation) -> Section:
    """Return LRU, the contenders and the oracles on the later requests, and gains with CIs."""
    tuning = tuned.tuning
    rows = [
        (BASELINE, tuning.lru.later),
        *((tuned.called(judged.policy), judged.later) for judged in tuning.contenders),
        ("infinite cache", tuning.limit),
        *((tuned.called(judged.policy), judged) for judged in tuning.oracles),
    ]

    known = explanation.trial_columns(tuned, lambda row: row[1])
    median = explanation.median_name(tuned)
    columns: Columns = {
        "policy": lambda row: row[0],
        f"{tuned.ttft} {median}": known[median],
        **{name: known[name] for name in ("p90", "p95", "p99", "TEL (s)", "over SLO", "hit rate")},
        "prefills/s": lambda row: f"{row[1].served_per_s:.3g}",
    }
    here = f"{tuned.ttft[0].upper()}{tuned.ttft[1:]} on {LATER} at {_where(tuned)}"
    table = tabulate(here, rows, columns, ORACLE_NOTE if tuning.oracles else "")
    distributions = partial(distributions_chart, tuned)
    return Section.of("Policies", table, _gains(tuned), distributions, *trade_off_charts(tuned))


def _gains(tuned: Recommendation) -> Table:
    """Return each contender's changes against LRU on the later requests, and limits that it breaks.

    The figure by which policies are ranked (TTFT percentile or violations) has its CI.
    """
    decisive = tuned.tuning.target.objective

    def changed(name: str, judged: Judged) -> str:
        return change(judged.later.gains[name])

    others = [name for name in ("p50", "p95", "p99", "violations") if name != decisive]
    about = (
        "likely: how likely TEL or attainment is better; harms: limits that it breaks against LRU,"
        " by the 95% CI (the widest of three bootstraps) of tails"
    )
    intervals = {interval(judged.later.gains[decisive]) for judged in tuned.tuning.contenders}
    without_width = sorted(text for text in intervals if ":" in text)
    return tabulate(
        f"Change vs LRU on {LATER}, the preferred policy first",
        tuned.tuning.contenders,
        {
            "policy": lambda judged: tuned.called(judged.policy),
            "grade": lambda judged: judged.grade,
            "likely": lambda judged: f"{judged.later.likely:.0%}",
            decisive: partial(changed, decisive),
            f"{decisive}, 95% CI": lambda judged: interval(judged.later.gains[decisive]).partition(
                ":"
            )[0],  # the note says the rest
            **{name: partial(changed, name) for name in others},
            "harms": lambda judged: _harms(judged.harms) or NONE,
        },
        "; ".join([about, *without_width]),
        words=("harms",),
    )


def change(gain: Gain) -> str:
    """Return a gain, which is a reduction, as a signed change: -24.1%."""
    return percent_change(-gain.value)


def interval(gain: Gain) -> str:
    """Return the 95 % CI of the change: -30.2% to -17.9%; explain a CI of zero width."""
    if math.isinf(gain.low):
        return f"unknown: fewer than {FEWEST} conversations"
    if math.isclose(gain.low, gain.high, abs_tol=_NO_WIDTH):
        return "same as LRU" if not gain.value else "no spread: all resamples agree"
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
        verdict = "yes" if least.held_out.meets(tuning.target) else "no"
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
    return Section.of("Capacity", tabulate(title, rows, columns, note, words=("holds",)), chart)


def _to_set(tuned: Recommendation) -> Section:
    """Return the flags for the deployment's engine, or why there are none."""
    flags, more = tuned.flags, tuple(memory_to_set(tuned))
    if why := tuned.why_no_flags:
        return Section.of("To set", why)
    if flags.sglang:
        return Section.of("To set", f"SGLang: {flags.sglang}", None if more else ON_SGLANG, *more)
    if flags.vllm_needs_plugin:
        plugin = f"vLLM, with kvscope's plugin: {plugin_command(tuned.path)} {flags.vllm}"
        return Section.of("To set", plugin, *more)
    return Section.of("To set", f"vLLM: {flags.vllm}", *more)


def _ends(tuned: Recommendation, *, layouts: bool = True) -> list[str]:
    """Return the verdict with each input at the end of its range of uncertainty.

    Inputs: pool capacity, prefill time and, with `layouts`, start times of sessions.
    """

    def words(other: EndVerdict) -> str:
        times = f"LRU {_time(other.baseline)}"
        if other.choice is not None:
            times += f", {other.choice.policy.name} {_time(other.choice)}"
            times += "" if other.eligible else " (not eligible)"
        return f"With {other.end.name}: {other.verdict}, {times}."

    return [words(end) for end in tuned.tuning.ends if layouts or not end.end.sessions]


def distributions_chart(tuned: Recommendation) -> style.Figure:
    """Draw TTFT distributions (CDF) of LRU, the first contender and an infinite cache.

    The first contender is the best in the validation window, recommended or not.
    """
    tuning = tuned.tuning
    shown = [ttft.distribution(f"{BASELINE}, now", BASELINE, _ms(tuning.lru.later))]
    if tuning.contenders:
        best = tuning.contenders[0].later
        shown.append(ttft.distribution(tuned.called(best.policy), best.policy.name, _ms(best)))
    grey = {"color": style.GREY, "width": 2}
    shown.append(ttft.distribution("infinite cache", "", _ms(tuning.limit), grey))
    chart = ttft.distributions_chart(f"{tuned.ttft} on {LATER}", shown, tuning.target.slo_s)
    rank = tuning.target.percentile
    return style.level(chart, rank, units.format_percentile(rank))


def _ms(judged: WindowTrial) -> NDArray[np.float64]:
    return judged.ttft_s[np.isfinite(judged.ttft_s)] * 1e3


def trade_off_charts(tuned: Recommendation) -> Iterator[Callable[[], style.Figure]]:
    """Yield builders of charts of the SLO's TTFT percentile: over the median, over prefill time."""
    prices: dict[str, Callable[[Trial], float]] = {
        f"p50 {tuned.ttft}": lambda trial: trial.times_ms.p50,
        "mean prefill time": lambda trial: 1e3 / trial.served_per_s,
    }
    for price, of in prices.items():
        yield partial(trade_off_chart, tuned, price, of)


def trade_off_chart(
    tuned: Recommendation, price: str, of: Callable[[Trial], float]
) -> style.Figure:
    """Draw the SLO's TTFT percentile of each trial against a time (ms); mark the choice.

    `price` is what that time is called, `of` returns a trial's. Trials are those of the training
    window at the user's capacity.
    """
    points = []
    for trial in explanation.tried_here(tuned):
        name = tuned.called(trial.policy)
        points.append(ttft.Point(trial.policy.name, name, of(trial), trial.target_s * 1e3))
    choice = tuned.tuning.choice
    chosen = tuned.called(choice.policy) if choice else None
    title = f"Tail against {price} in the training window"
    chart = ttft.trade_off_chart(title, price, tuned.target_name, points, chosen)
    return style.slo_level(chart, tuned.tuning.target.slo_s)
