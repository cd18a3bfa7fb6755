"""The plan: options as a table, cheapest first, and what they say of the SLO."""

from __future__ import annotations

import math
from collections.abc import Callable

from kvscope.app.tune import Recommendation
from kvscope.core import units
from kvscope.policies.lru import Lru
from kvscope.report.added_memory import tier_label
from kvscope.report.explanation import sizes_of
from kvscope.report.section import Columns, Section, Table, Tile, tabulate
from kvscope.report.words import NONE, count, ms_in_words, share
from kvscope.routers.session import Session
from kvscope.tuning.plan import PlanOption, TuningPlan
from kvscope.tuning.search import XI

_INFINITE = "∞"
_UNSURE = (
    "?: as estimated; not certain within the CI and both ends of latency and pool (--section"
    " assumed), which kvscope calibrate and --engine-log narrow"
)


def options_section(tuned: Recommendation, plan: TuningPlan) -> Section:
    """Return the table of options, with the SLO and the deployment in its first lines."""
    target, where = tuned.tuning.target, tuned.deployment
    slo, scale = units.duration_in_words(target.slo_s), tuned.tuning.setting.rate_scale
    title = f"Options: {tuned.target_name} ≤ {slo}"
    machine = "" if scale == 1 else f"Arrivals {scale:g} times as fast."
    if where is not None:
        pool = sizes_of(tuned).label(tuned.tuning.capacity_blocks)
        machine = f"{where.summary}, pool {pool} ({where.pool.origin}). {machine}".rstrip()
    limit = tuned.tuning.limit
    reached = _time(limit.target_s * 1e3) if limit.keeps_up else "the queue grows"
    infinite = f"An infinite cache: {reached}"
    infinite += f", hit rate {share(limit.outcome.token_hit_rate)}."
    tiles = _tiles(tuned, plan)
    return Section.of(
        title, *tiles, machine or None, _table(tuned, plan), infinite, _recorded(tuned)
    )


def _tiles(tuned: Recommendation, plan: TuningPlan) -> list[Tile]:
    """Return what a page shows first: the target today, what to do now, what meets the SLO."""
    tuning, today, cheapest = tuned.tuning, plan.today, plan.cheapest
    slo = units.duration_in_words(tuning.target.slo_s)
    time = _time(today.trial.target_s * 1e3) if today.judged.keeps_up else "the queue grows"
    met = {"meets": True, "misses": False, "overloaded": False}.get(today.slo)
    choice = tuning.choice
    do = "Nothing" if choice is None else tuned.called(choice.policy).replace(f" {XI}=", ", ξ ")
    if choice is not None and tuning.grade == "canary":
        do = f"Canary: {do}"
    meets, about = "nothing tried", "No option tried meets the SLO."
    if cheapest is not None:
        meets, about = option_name(tuned, cheapest, plan), "The cheapest option that meets the SLO."
    return [
        Tile(f"{tuned.target_name}, SLO {slo}", time, "LRU today, on the later requests.", met),
        Tile("Do now, free", do, "The change of policy, if one is sure or likely to gain."),
        Tile(f"Meets {slo}", meets, about, cheapest is not None),
    ]


def _recorded(tuned: Recommendation) -> str | None:
    """Return what the trace says of the same requests, beside what LRU's replay gives."""
    recorded, lru = tuned.recorded, tuned.tuning.lru.later
    if recorded is None:
        return None
    times = f"{tuned.tuning.target.rank_name} TTFT {_time(recorded.target_s * 1e3)}"
    replayed = f"LRU's replay: {_time(lru.target_s * 1e3)}"
    if recorded.hit_rate is not None:
        times += f", hit rate {share(recorded.hit_rate)}"
        replayed += f", {share(lru.outcome.token_hit_rate)}"
    return f"Recorded in the trace ({count(recorded.requests)} requests): {times}; {replayed}."


def to_meet(tuned: Recommendation, plan: TuningPlan) -> list[str]:
    """Return what meets the SLO at the least price, and what the present hardware can promise."""
    target, where = tuned.tuning.target, tuned.deployment
    if where is None:
        return []
    sentences, slo = [], units.duration_in_words(target.slo_s)
    cheapest = plan.cheapest
    if cheapest is not None and cheapest is not plan.today and not _lru_replicas(cheapest):
        extra = ""
        if cheapest.price_hour is not None and plan.today.price_hour is not None:
            more = cheapest.price_hour - plan.today.price_hour
            than = f"{abs(more):.4g} {'more' if more > 0 else 'less'}"
            extra = f" ({cheapest.price_hour:.4g} an hour, {than})" if more else ", free"
        sure = "" if cheapest.slo == "meets" else ", as estimated"
        what = f"For less, {slo} is met by" if plan.today.meets else f"To meet {slo}{sure}:"
        sentences.append(f"{what} {option_name(tuned, cheapest, plan)}{extra}.")
        if cheapest.router is not None and (flags := cheapest.router.flags()):
            sentences.append(f"Router flags: {' '.join(flags)}")
    elif cheapest is None:
        sentences.append(f"No option tried meets {slo}.")
    if math.isfinite(plan.promise_s) and not tuned.tuning.baseline.rejected:
        promise = units.duration_in_words(plan.promise_s)
        sentences.append(f"The present hardware can promise {promise} (upper end of the 95% CI).")
    return sentences


def _lru_replicas(option: PlanOption) -> bool:
    """Return whether an option is more of the same with LRU, which the verdict names itself."""
    same = option.machine is None and option.tier is None
    session = option.router is not None and option.router.name == Session.name
    return same and session and option.policy.name == Lru.name


def option_name(tuned: Recommendation, option: PlanOption, plan: TuningPlan) -> str:
    """Return an option's name: `2 replicas, session, gittins, ξ 1,585`."""
    policy = tuned.called(option.policy).replace(f" {XI}=", ", ξ ")
    ways = [other.tier.offload for other in plan.options if other.tier]
    name = option.label(policy, tier_label(option.tier, ways) if option.tier else "")
    return f"today: {name}" if option is plan.today else name


def _table(tuned: Recommendation, plan: TuningPlan) -> Table:
    rank = tuned.tuning.target.rank_name
    priced = any(each.price_hour is not None for each in plan.options)
    rejected = any(each.trial.rejected for each in plan.options)

    def time(option: PlanOption, milliseconds: float) -> str:
        """Return a time where the queue does not grow; a longer trace would have a larger one."""
        return _number(milliseconds) if option.judged.keeps_up else NONE

    def confidence(option: PlanOption) -> str:
        if not option.judged.keeps_up:
            return NONE
        low, high = option.judged.later.interval_s
        if not low and math.isinf(high):
            return "unknown"
        return f"{_number(low * 1e3)} to {_number(high * 1e3)}"

    optional: dict[str, Callable[[PlanOption], str]] = {}
    if rejected:
        optional["rejected"] = lambda option: count(option.trial.rejected)
    if priced:
        optional["per h"] = lambda option: (
            NONE if option.price_hour is None else f"{option.price_hour:.2f}"
        )
    columns: Columns = {
        "option": lambda option: option_name(tuned, option, plan),
        "hits": lambda option: share(option.trial.outcome.token_hit_rate),
        **({} if rank == "p50" else {"p50": lambda each: time(each, each.trial.times_ms.p50)}),
        rank: lambda option: time(option, option.trial.target_s * 1e3),
        "95% CI": confidence,
        "within": lambda option: share(option.trial.attainment),
        **optional,
        "SLO": _answer,
    }
    notes = ["TTFT of the later requests (validation and held-out) in ms; within: the SLO"]
    if any(_answer(each).endswith("?") for each in plan.options):
        notes.append(_UNSURE)
    return tabulate("", plan.options, columns, "; ".join(notes), words=("SLO",))


def _answer(option: PlanOption) -> str:
    if option.slo != "undecided":
        return option.slo
    return "meets?" if option.meets else "misses?"


def _number(milliseconds: float) -> str:
    if math.isinf(milliseconds):
        return _INFINITE
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def _time(milliseconds: float) -> str:
    return _INFINITE if math.isinf(milliseconds) else ms_in_words(milliseconds)


def worth_in_words(tuned: Recommendation, plan: TuningPlan) -> list[str]:
    """Return the LRU cache that the change of policy replaces, and what its guard costs."""
    choice, sentences = tuned.tuning.choice, []
    if choice is None:
        return []
    if (deciding := tuned.deciding_category) is not None:
        category, part = deciding
        part = min(part, 1.0)
        sentences.append(f"It gains most in category {category}: {part:.0%} of the tail saved.")
    if plan.worth_blocks is None:
        sentences.append("No LRU cache, however large, is as fast.")
    elif plan.worth_blocks:
        size = sizes_of(tuned).label(plan.worth_blocks)
        sentences.append(f"Worth {size} more of LRU cache.")
    if plan.unguarded is not None:
        times = (_time(trial.target_s * 1e3) for trial in (plan.unguarded, choice.later))
        free, guarded = times
        rank, reverts = tuned.tuning.target.rank_name, "Without its guard, which reverts to LRU"
        if free != guarded:
            sentences.append(f"{reverts}: {rank} {free}, not {guarded}.")
    return sentences
