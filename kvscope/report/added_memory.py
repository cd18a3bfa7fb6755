"""Whether memory below the pool is to be added: what it gains, saves and costs; how it is set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvscope.app.tune import Recommendation
from kvscope.core import units
from kvscope.report.words import NONE, percent_change, share, significant
from kvscope.tuning.plan import FULL_SSD, SLOW_COPIES, PlanOption, TierDoubt, TierReason, TuningPlan
from kvscope.tuning.tiers import TierCandidate, TierOffer

_MEMORY = {"dram": "CPU memory", "ssd": "SSD"}
_DAY_S = 86_400


def tier_label(candidate: TierCandidate, ways: Sequence[str] = ()) -> str:
    """Return a tier's sizes, and how it stores where several `ways` are compared.

    Of one engine's, its options: `64 GiB CPU tier, store_threshold=2`.
    """
    size = units.format_size(candidate.size_bytes)
    label = f"{size} CPU tier"
    if candidate.files_bytes:
        label = f"{size} CPU + {units.format_size(candidate.files_bytes)} SSD tier"
    way = candidate.offload
    if len({each.partition(":")[0] for each in ways}) < 2:
        way = way.partition(":")[2]
    return f"{label}, {way.replace(':', ' ')}" if way and ways else label


def memory_in_words(tuned: Recommendation) -> list[str]:
    """Return whether memory is to be added, where that was asked; empty where it was not."""
    plan, offer = tuned.plan, tuned.tiers
    if offer is None or not offer.chooses:
        return []
    if plan.tier is not None:
        return [*_added(tuned, plan, plan.tier, offer), *_rejected(plan)]
    assert plan.tier_doubt is not None  # noqa: S101  (one of both is there)
    why = _why_none(tuned, plan.tier_doubt, offer)
    return [f"Add no memory below the pool: {why}.", *_rejected(plan)]


def memory_to_set(tuned: Recommendation) -> Iterator[str]:
    """Yield what is to be known of the tier to add before it is set."""
    if tuned.plan.tier is not None and tuned.plan.tier.full_s is not None:
        yield "PATH: a folder on that SSD; vLLM fills what space is free."
        yield (
            "Where prompts that are read at once do not fit into the CPU memory, requests never"
            " start: do not take less of it, and replay again before more load comes."
        )


def _added(
    tuned: Recommendation, plan: TuningPlan, option: PlanOption, offer: TierOffer
) -> Iterator[str]:
    """Yield what the tier gains, what it frees and costs, and where that holds."""
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
        f"Add {_named(tuned, option)}: {tuned.target_name} {times}"
        f" ({percent_change(-gain.value)}, 95% CI {percent_change(-gain.high)} to"
        f" {percent_change(-gain.low)}), within the SLO {within}, hit rate {hits} on the later"
        " requests."
    )
    missed = "" if option.judged.meets(tuned.tuning.target) else " The SLO is missed with it, too."
    yield f"It {_frees(tuned, option)}, for {_cost(option, offer)}.{missed}"
    tier = option.tier
    if tier is not None and (wear := offer.wear(tier, option.written_bytes_s)):
        daily = significant(option.written_bytes_s * _DAY_S / 2**40)
        rated = f"{daily} TiB a day are written, {significant(wear)} times what the drive is rated"
        worn = " for: it wears out sooner by that factor, which the price counts."
        yield rated + (" for." if wear <= 1 else worn)
    if option.full_s is not None and tier is not None:
        size, after = units.format_size(tier.files_bytes), units.duration_in_words(option.full_s)
        yield (
            f"vLLM deletes none of its files: the SSD of {size} is full after"
            f" {after} at the earliest, and nothing new is written from then on. Delete old files"
            " before that, or the gain fades."
        )
    ends = [end.end.name for end in tuned.tuning.ends]
    ends.append(f"copies {SLOW_COPIES:g}x as long")
    if option.full_s is not None:
        ends.append(FULL_SSD.name)
    yield f"No harm either with {'; '.join(ends)}."


def _why_none(tuned: Recommendation, doubt: TierDoubt, offer: TierOffer) -> str:
    """Return why no tier is to be added."""
    option, name = doubt.option, tuned.target_name
    slo = units.duration_in_words(tuned.tuning.target.slo_s)
    if doubt.why == "overloaded":
        return "the queue grows with every tier, and without: add replicas"
    if option is None:
        return f"no size takes {name} down"
    best, time = _named(tuned, option), units.duration_in_words(option.trial.target_s)
    frees, cost = _frees(tuned, option), _cost(option, offer)
    measured = any(end != FULL_SSD.name for end in doubt.ends)
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
    """Return the tiers under which requests never start, and why."""
    if not plan.rejected:
        return []
    names = dict.fromkeys(tier_label(each.candidate) for each in plan.rejected)
    return [f"Rejected: {', '.join(names)}: {plan.rejected[0].reason}."]


def _named(tuned: Recommendation, option: PlanOption) -> str:
    tier = option.tier
    if tier is None:
        return NONE
    sizes = " and ".join(
        f"{units.format_size(size)} of {_MEMORY[kind]}" for kind, size in tier.tiers
    )
    each = " below each pool" if option.replicas > 1 else ""
    return f"{sizes}{each} ({tier.offload}, with {tuned.called(option.policy)} in the pool)"


def _frees(tuned: Recommendation, option: PlanOption) -> str:
    """Return the GPU time that an option frees, with its price where that is known."""
    free = tuned.plan.free or tuned.plan.today
    freed, saved = free.trial.utilization - option.trial.utilization, option.saves_hour
    if saved is not None:
        saved -= free.saves_hour or 0.0
    worth = "" if saved is None else f" (worth {saved:.3f} an hour)"
    return f"frees {share(freed)} of the GPU's time{worth}"


def _cost(option: PlanOption, offer: TierOffer) -> str:
    """Return the price of an option's memory for an hour."""
    assert option.tier is not None  # noqa: S101  (of options with a tier alone)
    hour = option.replicas * offer.price_hour(option.tier, option.written_bytes_s)
    of = offer.currency or "in the currency of your prices"
    return f"{hour:.3f} {of} an hour"
