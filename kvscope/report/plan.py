"""The plan as a table: options on the same requests, those that meet the SLO, memory to add."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from kvscope.core import units
from kvscope.fleet.options import router_flags
from kvscope.policies.lru import Lru
from kvscope.report.explanation import sizes_of
from kvscope.report.section import Columns, Section, Table, Tile, tabulate
from kvscope.report.words import NONE, count, money, ms_in_words, percent_change, share, significant
from kvscope.routers.balancers import Session
from kvscope.tuning.plan import (
    FULL_DISK,
    SLOW_COPIES,
    PlanOption,
    TierDoubt,
    TierReason,
    TuningPlan,
)
from kvscope.tuning.tiers import HICACHE, TierCandidate, TierOffer
from kvscope.usecases.tune.recommendation import Recommendation

_MEMORY = {"dram": "CPU memory", "ssd": "SSD"}
_DAY_S = 86_400
_INFINITE = "∞"
_UNSURE = (
    "?: as estimated, not certain within the CI and both ends of latency and pool"
    " (--section assumed)"
)


def options_section(tuned: Recommendation) -> Section:
    """Return the table of options, with the SLO and the deployment in its first lines."""
    target, where = tuned.tuning.target, tuned.deployment
    slo, scale = units.duration_in_words(target.slo_s), tuned.tuning.setting.rate_scale
    label = sizes_of(tuned).label
    title = f"Options: {tuned.target_name} ≤ {slo}"
    machine = "" if scale == 1 else f"Arrivals {scale:g} times as fast."
    if where is not None:
        pool = label(tuned.tuning.capacity_blocks)
        machine = f"{where.summary}, pool {pool} ({where.pool.origin}). {machine}".rstrip()
    machines = [each.machine for each in tuned.plan.options if each.machine]
    others = {each.name: each for each in machines if each.kv_cache_bytes is None}
    filled = next((each for each in machines if each.kv_cache_bytes is not None), None)
    pools = ", ".join(f"{name} {label(each.capacity_blocks)}" for name, each in others.items())
    weights = {each.where.stated.weight_dtype for each in others.values()}
    own = {where.stated.weight_dtype, where.model and where.model.weight_dtype} if where else set()
    changed = weights - own
    quality = " What a precision does to the answers is not compared." if changed else ""
    limit = tuned.tuning.limit
    reached = _time(limit.target_s * 1e3) if limit.keeps_up else "the queue grows"
    infinite = f"An infinite cache: {reached}"
    infinite += f", hit rate {share(limit.outcome.token_hit_rate)}."
    return Section.of(
        title,
        *_tiles(tuned),
        machine or None,
        f"Pools of other machines (derived): {pools}.{quality}" if pools else None,
        f"{filled.name} is what vLLM's log says fits: --kv-cache-memory {filled.kv_cache_bytes}"
        " leaves 150 MiB of the GPU. Try it on one engine first."
        if filled
        else None,
        _table(tuned),
        infinite,
        _recorded(tuned),
    )


def _tiles(tuned: Recommendation) -> list[Tile]:
    """Return tiles: the SLO's TTFT percentile today, change to make now, cheapest way to the SLO.

    Today's is that of LRU on the later requests.
    """
    tuning, today, cheapest = tuned.tuning, tuned.plan.today, tuned.plan.cheapest
    slo = units.duration_in_words(tuning.target.slo_s)
    time = _time(today.trial.target_s * 1e3) if today.judged.keeps_up else "the queue grows"
    met = {"meets": True, "misses": False, "overloaded": False}.get(today.slo)
    choice = tuning.choice
    do = "Nothing" if choice is None else tuned.called(choice.policy)
    if choice is not None and tuned.uncertain:
        do = f"Not certain: {do}"
    elif choice is not None and tuning.grade == "canary":
        do = f"Canary: {do}"
    meets, about = "no option", "None of those tried meets the SLO."
    if cheapest is not None:
        meets, about = option_name(tuned, cheapest), "The cheapest option that meets the SLO."
    return [
        Tile(f"{tuned.target_name}, SLO {slo}", time, "LRU today, on the later requests.", met),
        Tile("Do now, free", do, "The change of policy, if one is sure or likely to gain."),
        Tile(f"Meets {slo}", meets, about, cheapest is not None),
    ]


def _recorded(tuned: Recommendation) -> str | None:
    """Return TTFT and hit rate recorded in the trace, next to those of LRU's replay."""
    recorded, lru = tuned.recorded, tuned.tuning.lru.later
    if recorded is None:
        return None
    times = f"{tuned.tuning.target.rank_name} TTFT {_time(recorded.target_s * 1e3)}"
    replayed = f"LRU's replay: {_time(lru.target_s * 1e3)}"
    if recorded.hit_rate is not None:
        times += f", hit rate {share(recorded.hit_rate)}"
        replayed += f", {share(lru.outcome.token_hit_rate)}"
    return f"Recorded in the trace ({count(recorded.requests)} requests): {times}; {replayed}."


def to_meet(tuned: Recommendation) -> list[str]:
    """Return the cheapest option that meets the SLO, and the tightest SLO that is met now."""
    target, where, plan = tuned.tuning.target, tuned.deployment, tuned.plan
    if where is None:
        return []
    sentences, slo = [], units.duration_in_words(target.slo_s)
    cheapest = plan.cheapest
    if cheapest is not None and not _said_elsewhere(cheapest, plan):
        extra = ""
        if cheapest.price_hour is not None and plan.today.price_hour is not None:
            more = cheapest.price_hour - plan.today.price_hour
            than = f"{money(abs(more))} {'more' if more > 0 else 'less'}"
            extra = f" ({money(cheapest.price_hour)} an hour, {than})" if more else ", free"
        sure = "" if cheapest.slo == "meets" else ", as estimated"
        what = f"For less, {slo} is met by" if plan.today.meets else f"To meet {slo}{sure}:"
        sentences.append(f"{what} {option_name(tuned, cheapest)}{extra}.")
        router = cheapest.router
        if router is not None and (flags := router_flags(router, cheapest.replicas)):
            sentences.append(f"Router flags: {flags}")
    elif cheapest is None:
        sentences.append(f"No option tried meets {slo}.")
    if math.isfinite(plan.promise_s) and not tuned.tuning.baseline.rejected:
        promise = units.duration_in_words(plan.promise_s)
        sentences.append(
            f"The tightest SLO for {tuned.target_name} that the present hardware meets: {promise}"
            " (upper end of its 95% CI)."
        )
    return sentences


def _said_elsewhere(cheapest: PlanOption, plan: TuningPlan) -> bool:
    """Return whether the verdict already names the cheapest option.

    It does for today's deployment, for an option with the same price and replicas if today's meets
    the SLO, and for LRU on several replicas behind a session router.
    """
    same = [(each.price_hour, each.replicas) for each in (cheapest, plan.today)]
    needless = plan.today.meets and same[0] == same[1]
    return cheapest is plan.today or needless or _lru_replicas(cheapest)


def _lru_replicas(option: PlanOption) -> bool:
    """Return whether an option is LRU behind a session router, without any other change."""
    same = not (option.machine or option.tier or option.scaling or option.split)
    session = option.router is not None and option.router.name == Session.name
    return same and session and option.policy.name == Lru.name


def option_name(tuned: Recommendation, option: PlanOption) -> str:
    """Return an option's name: `2 replicas, session, gittins, ξ 1,585`."""
    policy = tuned.called(option.policy)
    ways = [other.tier.offload for other in tuned.plan.options if other.tier]
    name = option.label(policy, tier_label(option.tier, ways) if option.tier else "")
    return f"today: {name}" if option is tuned.plan.today else name


def _table(tuned: Recommendation) -> Table:
    plan, rank = tuned.plan, tuned.tuning.target.rank_name
    priced = any(each.price_hour is not None for each in plan.options)
    rejected = any(each.trial.rejected for each in plan.options)

    def time(option: PlanOption, milliseconds: float) -> str:
        """Return a time, or a dash if the queue grows: it would depend on the trace's length."""
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
            NONE if option.price_hour is None else money(option.price_hour)
        )
    columns: Columns = {
        "option": lambda option: option_name(tuned, option),
        "hits": lambda option: share(option.trial.outcome.token_hit_rate),
        **({} if rank == "p50" else {"p50": lambda each: time(each, each.trial.times_ms.p50)}),
        rank: lambda option: time(option, option.trial.target_s * 1e3),
        "95% CI": confidence,
        "within": lambda option: share(option.trial.attainment),
        **optional,
        "SLO": _answer,
    }
    notes = ["TTFT of the later requests in ms; within: the SLO"]
    if any(_answer(each).endswith("?") for each in plan.options):
        notes.append(_UNSURE)
    for tier in dict.fromkeys(each.tier for each in plan.options):
        if tier is not None and tier.offload == HICACHE and tuned.tiers is not None:
            pool_bytes = tuned.tuning.capacity_blocks * tuned.tiers.block_bytes
            ratio = tier.size_bytes / pool_bytes
            notes.append(f"HiCache: --engine sglang:hicache_ratio={ratio:.3g} plans above it")
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


def worth_in_words(tuned: Recommendation) -> list[str]:
    """Return sentences on what the chosen policy is worth; [] without one.

    They name the category that gains most, the capacity that LRU would need in addition to be as
    fast, and the percentile without the policy's guard.
    """
    choice, plan, sentences = tuned.tuning.choice, tuned.plan, []
    if choice is None:
        return []
    if (deciding := tuned.deciding) is not None:
        part = f"{min(deciding.category_share, 1.0):.0%} of the tail saved"
        sentences.append(f"It gains most in category {deciding.category}: {part}.")
    if plan.worth_blocks is None:
        sentences.append("No LRU cache, however large, is as fast.")
    elif plan.worth_blocks:
        sentences.append(f"Worth {sizes_of(tuned).label(plan.worth_blocks)} more of LRU cache.")
    if plan.unguarded is not None:
        free, guarded = (_time(at.target_s * 1e3) for at in (plan.unguarded, choice.later))
        rank, reverts = tuned.tuning.target.rank_name, "Without its guard, which reverts to LRU"
        if free != guarded:
            sentences.append(f"{reverts}: {rank} {free}, not {guarded}.")
    return sentences


def tier_label(candidate: TierCandidate, ways: Sequence[str] = ()) -> str:
    """Return a tier's sizes, and its offload method (as for `--offload`) if `ways` has several.

    If `ways` are all one method, add its parameters alone: `64 GiB CPU tier, store_threshold=2`.
    """
    label = candidate.in_words
    if candidate.files_bytes:
        size, files = map(units.format_size, (candidate.size_bytes, candidate.files_bytes))
        label = f"{size} CPU + {files} {'shared pool' if candidate.pool else 'SSD tier'}"
    way = candidate.offload
    if len({each.partition(":")[0] for each in ways}) < 2:
        way = way.partition(":")[2]
    return f"{label}, {way.replace(':', ' ')}" if way and ways else label


def memory_in_words(tuned: Recommendation) -> list[str]:
    """Return whether to add memory; empty without `--compare-tiers`."""
    plan, offer = tuned.plan, tuned.tiers
    if offer is None or not offer.chooses:
        return []
    if plan.tier is not None:
        return [*_added(tuned, plan.tier, offer), *_rejected(plan)]
    assert plan.tier_doubt is not None  # noqa: S101  (one of both is there)
    why = _why_none(tuned, plan.tier_doubt, offer)
    return [f"Add no memory below the pool: {why}.", *_rejected(plan)]


def memory_to_set(tuned: Recommendation) -> Iterator[str]:
    """Yield what PATH is in the flags (a tier's folder), and a caution; nothing without files."""
    tier = tuned.tier
    if tier is not None and tier.files_bytes:
        if not tier.pool:
            yield "PATH: a folder on that SSD; vLLM fills what space is free."
        elif tier.pool.evicts:
            yield (
                "PATH: one folder for all replicas, where you delete the files used least recently"
                f" above {units.format_size(tier.files_bytes)}, as vLLM does not."
            )
        else:
            yield "PATH: one folder for all replicas; vLLM fills what space is free."
        yield (
            "Where prompts that are read at once do not fit into the CPU memory, requests never"
            " start: do not take less of it, and replay again before more load comes."
        )


def _added(tuned: Recommendation, option: PlanOption, offer: TierOffer) -> Iterator[str]:
    """Yield sentences on the added tier: gain, freed GPU time, price, wear of the SSD, limits."""
    plan = tuned.plan
    later, free = plan.beyond_free, plan.free
    assert later is not None and free is not None  # noqa: PT018, S101  (of a tier that is added)
    before, gain = free.trial, later.gains[tuned.tuning.target.objective]
    alone = "" if free is plan.today else f" with {tuned.called(free.policy)} alone"
    times = " -> ".join(
        (units.duration_in_words(before.target_s) + alone, units.duration_in_words(later.target_s))
    )
    within, hits = (
        " -> ".join(share(value) for value in pair)
        for pair in (
            (before.attainment, later.attainment),
            (before.outcome.token_hit_rate, later.outcome.token_hit_rate),
        )
    )
    yield (
        f"Add {_memory_named(tuned, option)}: {tuned.target_name} {times}"
        f" ({percent_change(-gain.value)}, 95% CI {percent_change(-gain.high)} to"
        f" {percent_change(-gain.low)}), within the SLO {within}, hit rate {hits} on the later"
        " requests."
    )
    missed = ""
    if not option.judged.meets(tuned.tuning.target):
        doubt = " It meets the SLO as estimated, not for certain."
        missed = doubt if option.meets else " The SLO is missed with it, too."
    yield f"It {_frees(tuned, option)}, for {_cost(option, offer)}.{missed}"
    tier = option.tier
    if wear := option.wear:
        writing = option.replicas if tier and tier.pool else 1
        daily = significant(writing * option.written_bytes_s * _DAY_S / 2**40)
        rated = f"{daily} TiB a day are written, {significant(wear)} times what the drive is rated"
        worn = " for: it wears out sooner by that factor, which the price counts."
        yield rated + (" for." if wear <= 1 else worn)
    if option.full_s is not None and tier is not None:
        size, after = units.format_size(tier.files_bytes), units.duration_in_words(option.full_s)
        where = "shared pool" if tier.pool else "SSD"
        yield (
            f"vLLM deletes none of its files: the {where} of {size} is full after"
            f" {after} at the earliest, and nothing new is written from then on. Delete old files"
            " before that, or the gain fades."
        )
    ends = [end.end.name for end in tuned.tuning.ends]
    ends.append(f"copies {SLOW_COPIES:g}x as long")
    if option.full_s is not None:
        ends.append(FULL_DISK.name)
    yield f"No harm either with {'; '.join(ends)}."


def _why_none(tuned: Recommendation, doubt: TierDoubt, offer: TierOffer) -> str:
    option, name = doubt.option, tuned.target_name
    slo = units.duration_in_words(tuned.tuning.target.slo_s)
    if doubt.why == "overloaded":
        return "the queue grows with every tier, and without: add replicas"
    if option is None:
        return f"no size takes {name} down"
    best, time = _memory_named(tuned, option), units.duration_in_words(option.trial.target_s)
    frees, cost = _frees(tuned, option), _cost(option, offer)
    measured = any(end != FULL_DISK.name for end in doubt.ends)
    remedy = ". Measure them: kvscope calibrate, --engine-log" if measured else ""
    reasons: dict[TierReason, str] = {
        "met-without": (
            f"the SLO of {slo} is met without. {best} {frees} for {cost}: name --gpu-hour to weigh"
            " that"
        ),
        "costs-more": (
            f"the SLO of {slo} is met without, and none frees as much GPU time as it costs:"
            f" {best} {frees}, for {cost}"
        ),
        "too-dear": (
            f"what gains costs as much as another replica: {best} takes {name} to {time} for {cost}"
        ),
        "uncertain": (
            f"{best} would help, but harms or costs more than it saves with"
            f" {'; '.join(doubt.ends)}{remedy}"
        ),
        "no-gain": (
            "none is harmless and likely better than what costs nothing: at best"
            f" {name} {time} ({best})"
        ),
    }
    return reasons[doubt.why]


def _rejected(plan: TuningPlan) -> list[str]:
    """Return the tiers rejected because some requests would never start with them, and why."""
    if not plan.rejected:
        return []
    names = dict.fromkeys(tier_label(each.candidate) for each in plan.rejected)
    return [f"Rejected: {', '.join(names)}: {plan.rejected[0].reason}."]


def _memory_named(tuned: Recommendation, option: PlanOption) -> str:
    tier = option.tier
    if tier is None:
        return NONE
    own = " and ".join(
        f"{units.format_size(size)} of {_MEMORY[kind]}"
        for kind, size in tier.tiers
        if kind in _MEMORY
    )
    each = " below each pool" if option.replicas > 1 else ""
    if tier.pool:
        each += f" and {units.format_size(tier.files_bytes)} of files that all replicas share"
    return f"{own}{each} ({tier.offload}, with {tuned.called(option.policy)} in the pool)"


def _frees(tuned: Recommendation, option: PlanOption) -> str:
    """Return the GPU time (%) that `option` frees beyond the best free one, and its worth."""
    free = tuned.plan.free or tuned.plan.today
    freed, saved = free.trial.utilization - option.trial.utilization, option.saves_hour
    if saved is not None:
        saved -= free.saves_hour or 0.0
    worth = "" if saved is None else f" (worth {money(saved)} an hour)"
    return f"frees {share(freed)} of the GPU's time{worth}"


def _cost(option: PlanOption, offer: TierOffer) -> str:
    """Return the price of the tiers of all replicas per hour."""
    hour = option.replicas * option.tier_hour
    of = offer.currency or "in the currency of your prices"
    return f"{money(hour)} {of} an hour"
