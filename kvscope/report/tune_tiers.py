"""Tuned tiers: does offloading pay, with what memory, at what price, and how it is set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kvscope.app.documents.tune_tiers import tune_tiers_document
from kvscope.app.tune_tiers import TierRecommendation
from kvscope.core import units
from kvscope.replay.tier_spec import READS, WRITES
from kvscope.report import style
from kvscope.report.recommendation import canary_in_words
from kvscope.report.report import Report
from kvscope.report.section import Section, Table, tabulate
from kvscope.report.words import NONE, count, percent_change, share, significant
from kvscope.tuning.tier_prices import STATED, tier_prices
from kvscope.tuning.tier_trial import TierCandidate, TierTrial, about_lowest
from kvscope.tuning.tiers import FULL, SLOW_COPIES
from kvscope.vllm_sim.offload_engines import parse_offload
from kvscope.vllm_sim.offload_spec import OffloadSpec

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SECTIONS = ("answer", "cost-and-latency", "sizes", "to-set", "tried", "assumed")
"""What `--section` of `kvscope tune --tiers` takes; sizes and to-set only with a choice."""

_MEMORY = {"dram": "CPU memory", "ssd": "SSD"}
_FRONT, _SIZES = 6, 4  # rows on the one screen
_NOTE = "GPU time: share that computes prompts; TiB/day: written to the tier"
_YOURS = " --dram-price (0: it is there), --ssd-price and --gpu-hour state yours."
_DECIMALS = 3  # of amounts below 1
_DAY_S = 86_400


def report(tuned: TierRecommendation) -> Report:
    """Return the tuning in every form."""
    return Report(
        "kvscope tune --tiers",
        tuned.trace,
        document=lambda: tune_tiers_document(tuned, in_words(tuned)),
        screen=lambda: sections(tuned, one_screen=True),
        sections=lambda: sections(tuned),
    )


def in_words(tuned: TierRecommendation) -> list[str]:
    """Return the answer: does it pay, what it gains and costs, from which size on."""
    tuning = tuned.tuning
    if tuning.recommended is None:
        none = "Does offloading pay? No: keep no CPU tier"
        words = [f"{none}. {_why(tuned)}"]
        if tuning.verdict == "set-interval":
            option = f"--prefix-cache-retention-interval {_interval_of(tuning.best)}"
            every = "" if isfinite(tuning.best.interval) else " (all windows are kept)"
            interval = (
                f"{none}, but set {option}{every}, which costs nothing: on held-out requests it"
            )
            words = [f"{interval} {_interval_alone(tuned)}", _why(tuned)]
        return [*words, *_doubtful_interval(tuned), *_never_start(tuned)]
    trial, alone = tuning.recommended, tuning.baseline[1]
    least = tuning.least or trial
    pays = "Yes" if tuning.verdict == "pays" else "In part"
    meets, slo = trial.trial.meets(tuned.plan.target), units.duration_in_words(_slo_s(tuned))
    answer = (
        f"Does offloading pay? {pays}: {_named(trial)} {_moves(tuned, alone, trial)} (SLO {slo},"
        f" {'met' if meets else 'still missed'}) and {_gpu_time(tuned, alone, trial)}, for"
        f" {_money(tuned, trial.cost_hour)} an hour{_of_yours(tuned)}{_instead(tuned, trial)};"
        f" {_from(tuned, least)}."
    )
    gain = trial.trial.gains[tuned.plan.target.objective]
    rates = (share(each.trial.outcome.token_hit_rate) for each in (alone, trial))
    evidence = (
        f"On held-out requests: {tuned.plan.target.objective} {percent_change(-gain.value)}"
        f" (95 % CI {percent_change(-gain.high)} to {percent_change(-gain.low)}), hit rate"
        f" {' → '.join(rates)}, {share(trial.tier_hit_rate)} from the tier."
    )
    words = [answer, *_of_interval(tuned), *_fastest(tuned), *_filled(tuned, trial), evidence]
    words += [*_worn(tuned, trial), *_doubtful_interval(tuned)]
    words.append(_held(tuned))
    words += _never_start(tuned)
    if tuning.verdict == "helps" and tuned.plan.gpu_hour is None:
        words.append("Another engine may be cheaper: name --gpu-hour to compare.")
    return words


def _interval_alone(tuned: TierRecommendation) -> str:
    """Return what the retention interval of the pool alone gains over today's."""
    tuning, target = tuned.tuning, tuned.plan.target
    today, kept = tuning.today[1], tuning.baseline[1]
    gain, slo = kept.trial.gains[target.objective], units.duration_in_words(_slo_s(tuned))
    met = "met" if kept.trial.meets(target) else "still missed"
    return (
        f"{_moves(tuned, today, kept)} (SLO {slo}, {met};"
        f" {target.objective} {percent_change(-gain.value)}, 95 % CI"
        f" {percent_change(-gain.high)} to {percent_change(-gain.low)}) and"
        f" {_gpu_time(tuned, today, kept)}."
    )


def _of_interval(tuned: TierRecommendation) -> list[str]:
    """Return what of the change is the retention interval's, which needs no tier."""
    tuning = tuned.tuning
    if tuning.baseline[1] is tuning.today[1]:
        return []
    sentence = (
        f"The retention interval {_interval_of(tuning.baseline[1])} of the pool alone, which costs"
        f" nothing, is part of the baseline: it {_interval_alone(tuned)}"
    )
    return [sentence]


def _doubtful_interval(tuned: TierRecommendation) -> list[str]:
    """Return which interval of the pool alone was chosen, and rejected on later requests."""
    interval = tuned.tuning.interval
    if interval is None or interval.kept:
        return []
    chosen = _interval_of(interval.choice[0])
    sentence = (
        f"The retention interval {chosen} of the pool alone was better on the validation window,"
        " but not on held-out requests or within what is not known exactly: it stays as it is."
    )
    return [sentence]


def _interval_of(trial: TierTrial) -> str:
    """Return the retention interval of a trial, as vLLM's option has it."""
    return f"{trial.interval:.0f}" if isfinite(trial.interval) else "None"


def _why(tuned: TierRecommendation) -> str:
    """Return why no tier is recommended."""
    tuning, rank = tuned.tuning, tuned.plan.target.rank_name
    if tuning.why == "never-starts":
        return "The choice of the validation window does not serve all requests elsewhere."
    if tuning.choice is None:
        return _why_none(tuned)
    chosen, judged = tuning.choice
    if tuning.why == "uncertain":
        broken = [each.end for each in tuning.ends if not each.holds]
        measured = "" if broken == [FULL] else ": measure them (kvscope calibrate, --engine-log)"
        return (
            f"{_named(chosen)} would help, but does harm or costs more than it saves with"
            f" {'; '.join(each.name for each in broken)}{measured}."
        )
    return (
        f"{_named(chosen)} was chosen on the validation window, and {_rejected(tuned, judged)} on"
        f" held-out requests: {rank} TTFT {_ttft(judged)} instead of {_ttft(tuning.baseline[1])}."
    )


def _rejected(tuned: TierRecommendation, judged: TierTrial) -> str:
    """Return what held-out requests have against the choice."""
    if judged.trial.harms:
        return f"may break limits ({_broken(judged)})"
    if not judged.trial.keeps_up:
        return "does not keep up with the arrivals"
    if judged.trial.gains[tuned.plan.target.objective].value <= 0:
        return "does not gain"
    saved = tuned.plan.saved_hour(tuned.tuning.baseline[1], judged) or 0.0
    cost = _money(tuned, judged.cost_hour)
    return f"saves {_money(tuned, saved)} an hour for {cost}"


def _why_none(tuned: TierRecommendation) -> str:
    """Return why none could be chosen on the validation window."""
    tuning, plan = tuned.tuning, tuned.plan
    alone, rank = tuning.baseline[0], plan.target.rank_name
    best = min(tuning.compared, key=lambda each: each.trial.target_s)
    able = [each for each in tuning.compared if each.trial.recommendable(plan.target)]
    cheapest = min(able or [best], key=lambda each: each.cost_hour)
    return {
        "overloaded": (
            "The engine does not keep up with the arrivals, with a tier or without: add replicas."
        ),
        "met-without": (
            f"The SLO is met without: {rank} TTFT {_ttft(alone)}. {_size(best)} would"
            f" {_gpu_time(tuned, alone, best, verb='free')}: name --gpu-hour to weigh that"
            f" against {_money(tuned, best.cost_hour)} an hour{_of_yours(tuned)}."
        ),
        "costs-more": (
            f"The SLO is met without, {rank} TTFT {_ttft(alone)}, and no size saves as much GPU"
            f" time as it costs: {_worth(tuned, alone)}."
        ),
        "too-dear": (
            f"What gains costs more than another engine: {_named(cheapest)} takes {rank} TTFT to"
            f" {_ttft(cheapest)} for {_money(tuned, cheapest.cost_hour)} an hour."
        ),
    }.get(
        tuning.why,
        f"{_none_gains(tuned)}: at best {rank} TTFT {_ttft(best)} instead of {_ttft(alone)}"
        f" ({_size(best)}: {_doubt(tuned, best)}).",
    )


def _none_gains(tuned: TierRecommendation) -> str:
    """Return that no size may be recommended, for a pool that meets the SLO or not."""
    sizes = _tried_sizes(tuned)
    if tuned.tuning.baseline[0].trial.meets(tuned.plan.target):
        return f"The SLO is met without, and every tier of {sizes} may make it worse"
    return f"No tier of {sizes} is significantly better and harmless"


def _doubt(tuned: TierRecommendation, trial: TierTrial) -> str:
    """Return why a trial may not be recommended."""
    gain = trial.trial.gains[tuned.plan.target.objective]
    if not gain.significant:
        if not isfinite(gain.high - gain.low):
            return "too few conversations for a CI"
        return f"95 % CI {percent_change(-gain.high)} to {percent_change(-gain.low)}"
    if trial.trial.harms:
        return f"may break limits: {_broken(trial)}"
    return "the queue still grows"


def _broken(trial: TierTrial) -> str:
    """Return the limits that a trial breaks; of those with a CI, at its bad end."""
    return ", ".join("TEL" if harm.figure == "tel" else harm.figure for harm in trial.trial.harms)


def _worth(tuned: TierRecommendation, alone: TierTrial) -> str:
    """Return what the tier that comes nearest to its price saves and costs."""
    nearest = max(
        tuned.tuning.compared,
        key=lambda each: (tuned.plan.saved_hour(alone, each) or 0.0) - each.cost_hour,
    )
    saved = tuned.plan.saved_hour(alone, nearest) or 0.0
    cost = _money(tuned, nearest.cost_hour)
    return f"{_size(nearest)} saves {_money(tuned, saved)} an hour and costs {cost}"


def _from(tuned: TierRecommendation, least: TierTrial) -> str:
    """Return what the least size does: it meets the SLO, pays where that is met, or helps."""
    target, size = tuned.plan.target, _size(least)
    if tuned.tuning.baseline[0].trial.meets(target):
        return f"it pays from {size} on"
    if least.trial.meets(target):
        chosen = tuned.tuning.choice and _size(tuned.tuning.choice[0])
        return "no smaller size meets it" if size == chosen else f"{size} meets it, too"
    return f"it helps from {size} on"


def _instead(tuned: TierRecommendation, trial: TierTrial) -> str:
    """Return the price of another engine, where a tier costs more than the GPU time it saves."""
    plan = tuned.plan
    if plan.gpu_hour is None or plan.net_hour(tuned.tuning.baseline[1], trial) > 0:
        return ""
    return f" (another engine: {_money(tuned, plan.gpus * plan.gpu_hour)})"


def _fastest(tuned: TierRecommendation) -> list[str]:
    """Return which tier has the lowest percentile, where none meets the SLO and it does not pay."""
    tuning, plan = tuned.tuning, tuned.plan
    chosen, alone = tuning.choice and tuning.choice[0], tuning.baseline[0]
    if chosen is None or chosen.trial.meets(plan.target):
        return []
    able = [each for each in tuning.compared if each.trial.recommendable(plan.target)]
    lowest = about_lowest([each for each in able if plan.affordable(each)])
    if chosen in lowest:
        return []
    best = min(lowest, key=lambda each: each.cost_hour)
    sentence = (
        f"The lowest {plan.target.rank_name} TTFT on the validation window, {_ttft(best)}, needs"
        f" {_named(best)}: it costs {_money(tuned, best.cost_hour)} an hour and saves"
        f" {_money(tuned, plan.saved_hour(alone, best) or 0.0)}."
    )
    return [sentence]


def _of_yours(tuned: TierRecommendation) -> str:
    """Return whose currency amounts without one are in."""
    return "" if tuned.plan.currency else " in the currency of your prices"


def _filled(tuned: TierRecommendation, trial: TierTrial) -> list[str]:
    """Return when files fill their SSD, and what follows."""
    if trial.candidate is None or trial.full_s is None or tuned.launch is None:
        return []
    engine, size = tuned.launch.engine, units.format_size(trial.candidate.files_bytes)
    after = units.duration_in_words(trial.full_s)
    sentence = (
        f"{engine} deletes none of its files: at this rate the SSD of {size} is full after {after}"
        " at the earliest, and nothing new is written from then on. Delete old files before that,"
        " or the gain fades."
    )
    return [sentence]


def _never_start(tuned: TierRecommendation) -> list[str]:
    """Return which tiers were rejected because requests never start, and the least reason."""
    rejected = tuned.tuning.rejected
    if not rejected:
        return []
    names = dict.fromkeys(_label(each.candidate) for each in rejected)
    return [f"Rejected: {', '.join(names)}: {rejected[0].reason}."]


def _worn(tuned: TierRecommendation, trial: TierTrial) -> list[str]:
    """Return how far the writes to a drive are from those that it is rated for."""
    wear = tuned.plan.wear(trial)
    if not wear:
        return []
    daily = significant(trial.written_bytes_s * _DAY_S / 2**40)
    rated = f"{daily} TiB a day are written, {significant(wear)} times what the drive is rated for"
    if wear <= 1:
        return [f"{rated}."]
    return [f"{rated}: it is worn out so many times sooner, which the price counts."]


def _held(tuned: TierRecommendation) -> str:
    """Return under which conditions the choice did no harm."""
    names = [each.end.name for each in tuned.tuning.ends]
    return f"No harm either with {'; '.join(names)}."


def _moves(tuned: TierRecommendation, alone: TierTrial, trial: TierTrial) -> str:
    rank = tuned.plan.target.rank_name
    return f"takes {rank} TTFT from {_ttft(alone)} to {_ttft(trial)}"


def _gpu_time(
    tuned: TierRecommendation, alone: TierTrial, trial: TierTrial, verb: str = "frees"
) -> str:
    """Return the GPU time that a tier saves, with its price where that is known."""
    saved = tuned.plan.saved_hour(alone, trial)
    freed = alone.prefill_share - trial.prefill_share
    price = "" if saved is None else f" (worth {_money(tuned, saved)} an hour)"
    return f"{verb} {share(freed)} of the GPU's time{price}"


def _money(tuned: TierRecommendation, value: float) -> str:
    sign = "-" if round(value, _DECIMALS) < 0 else ""
    return f"{sign}{tuned.plan.currency}{_amount(abs(value))}"


def _amount(value: float) -> str:
    rounded = round(value, _DECIMALS) + 0.0  # no -0.000
    return f"{rounded:,.{_DECIMALS}f}" if abs(rounded) < 1 else f"{rounded:,.2f}"


def _ttft(trial: TierTrial) -> str:
    return units.duration_in_words(trial.trial.target_s)


def _slo_s(tuned: TierRecommendation) -> float:
    return tuned.plan.target.slo_s


def _size(trial: TierTrial) -> str:
    interval = f" with interval {_interval_of(trial)}" if trial.interval else ""
    return _label(trial.candidate) + interval if trial.candidate else NONE


def _label(candidate: TierCandidate) -> str:
    below = f" + {units.format_size(candidate.files_bytes)} SSD" if candidate.files_bytes else ""
    return units.format_size(candidate.size_bytes) + below


def _named(trial: TierTrial) -> str:
    candidate = trial.candidate
    if candidate is None:
        kept = f" with retention interval {_interval_of(trial)}" if trial.interval else ""
        return f"the pool alone{kept}"
    sizes = " and ".join(
        f"{units.format_size(size)} of {_MEMORY[kind]}" for kind, size in candidate.tiers
    )
    interval = f", retention interval {_interval_of(trial)}" if trial.interval else ""
    return f"{sizes} ({_way(candidate)}{interval})"


def _way(candidate: TierCandidate) -> str:
    """Return how a tier works, without the parameters of its policy."""
    spec = parse_offload(candidate.offload)
    return replace(spec, params=()).text if isinstance(spec, OffloadSpec) else spec.text


def _tried_sizes(tuned: TierRecommendation) -> str:
    candidates = sorted(tuned.plan.candidates, key=lambda each: each.sizes)
    low, high = _label(candidates[0]), _label(candidates[-1])
    return low if low == high else f"{low} to {high}"


def sections(tuned: TierRecommendation, *, one_screen: bool = False) -> list[Section]:
    """Return every section, or those that fit on one screen."""
    tuning = tuned.tuning
    rows, alone = _FRONT if one_screen else None, tuning.baseline[0]
    front = Section.of(
        "Cost and latency: validation window",
        _table(
            tuned, _shown(tuned, tuning.front, rows), alone, f"no cheaper tier is as fast; {_NOTE}"
        ),
        partial(front_chart, tuned),
    )
    shown = [Section.of("Answer", *in_words(tuned)), front]
    crowded = one_screen and (tuned.left_out or _path(tuned))  # more is said of how to set it
    if tuning.choice and len(tuning.sizes) > 1 and not crowded:
        table = _table(tuned, _shown(tuned, tuning.sizes, rows and _SIZES), alone)
        shown.append(Section.of("Sizes: as the choice stores, validation window", table))
    if tuned.launch is not None:
        notes = (tuned.left_out, _try_first(tuned))
        if one_screen and tuned.left_out and _path(tuned):
            notes = ("What the simulation leaves out: --section to-set.", _try_first(tuned))
        shown.append(Section.of("To set", tuned.launch.text, *notes, _path(tuned), _canary(tuned)))
    if not one_screen:
        shown.append(_tried(tuned))
    return [*shown, _assumed(tuned, one_screen=one_screen)]


def _shown(
    tuned: TierRecommendation, trials: Sequence[TierTrial], rows: int | None
) -> list[TierTrial]:
    """Return at most so many trials: the first, the choice, the least that does, the largest."""
    if rows is None or len(trials) <= rows:
        return list(trials)
    tuning = tuned.tuning
    wanted = [trials[0], *(tuning.choice or ())[:1], tuning.least, *reversed(trials)]
    picked: list[TierTrial] = []
    for trial in wanted:
        if len(picked) < rows and trial in trials and trial not in picked:
            picked.append(trial)
    return [trial for trial in trials if trial in picked]


def _try_first(tuned: TierRecommendation) -> str | None:
    if tuned.left_out is None:
        return None
    return "An approximation: try it on one replica before you rely on it."


def _path(tuned: TierRecommendation) -> str | None:
    """Return what files need: a folder, and in vLLM memory for what is read at once."""
    trial, launch = tuned.tuning.recommended, tuned.launch
    if trial is None or launch is None or trial.full_s is None:
        return None
    folder = f"PATH: a folder on that SSD; {launch.engine} fills what space is free."
    if tuned.left_out is not None:
        return folder
    return (
        f"{folder} Where prompts that are read at once do not fit into the CPU memory, requests"
        " never start: do not take less of it, and replay again before more load comes."
    )


def _canary(tuned: TierRecommendation) -> str | None:
    plan = tuned.tuning.canary
    if plan is None:
        return None
    what = "interval" if tuned.tuning.verdict == "set-interval" else "tier"
    return canary_in_words(plan, f"one engine, with and without the {what} in turn,")


def _table(
    tuned: TierRecommendation, trials: Sequence[TierTrial], alone: TierTrial, note: str = ""
) -> Table:
    """Return a row a tier: price, latency and hits."""
    plan, rank, format_size = tuned.plan, tuned.plan.target.rank_name, units.format_size
    engines = {each.offload.partition(":")[0] for each in plan.candidates}

    def _short(way: str) -> str:
        options = way.partition(":")[2] if len(engines) == 1 else ""
        words = (options or way).split(":")
        return " ".join(word.rpartition("policy=")[2] for word in words)

    columns: dict[str, Callable[[TierTrial], str]] = {
        "size": lambda each: format_size(each.candidate.size_bytes) if each.candidate else "none",
    }
    if any(each.files_bytes for each in plan.candidates):
        columns["SSD"] = lambda each: (
            format_size(each.candidate.files_bytes)
            if each.candidate and each.candidate.files_bytes
            else NONE
        )
    columns |= {
        "as": lambda each: _short(_way(each.candidate)) if each.candidate else NONE,
    }
    if plan.intervals:
        columns["interval"] = _interval_of
    columns |= {
        f"{plan.currency or 'price'}/hour": lambda each: _amount(each.cost_hour),
        f"{rank} TTFT": _ttft,
        "in SLO": lambda each: share(each.trial.attainment),
        "hit rate": lambda each: share(each.trial.outcome.token_hit_rate),
        "GPU time": lambda each: share(each.prefill_share),
    }
    if plan.gpu_hour is not None:
        columns["saves"] = lambda each: (
            _amount(plan.saved_hour(alone, each) or 0.0) if each.candidate else NONE
        )
    columns["TiB/day"] = lambda each: significant(each.written_bytes_s * _DAY_S / 2**40)
    return tabulate("", trials, columns, note, words=("as",))


def front_chart(tuned: TierRecommendation) -> Figure:
    """Draw the target's percentile over the price: all tiers that were compared, and the front."""
    rank, tuning, currency = tuned.plan.target.rank_name, tuned.tuning, tuned.plan.currency
    chart = style.figure(
        f"{rank} TTFT and price",
        f"price an hour{f' ({currency})' if currency else ''}",
        f"{rank} TTFT (s)",
    )
    for name, trials, look in (
        ("Pareto front", tuning.front, {"mode": "lines", "line": {"dash": "dot", "shape": "hv"}}),
        ("compared", (tuning.baseline[0], *tuning.compared), {"mode": "markers"}),
        ("chosen", (tuning.choice or ())[:1], {"mode": "markers", "marker": {"size": 14}}),
    ):
        finite = [each for each in trials if isfinite(each.trial.target_s)]
        chart.add_scatter(
            x=[each.cost_hour for each in finite],
            y=[each.trial.target_s for each in finite],
            text=[_named(each) for each in finite],
            hovertemplate="%{text}: %{y:.3~s} s for %{x:.3~f}",
            name=name,
            **look,
        )
    style.logarithmic(chart, "y")
    return style.level(chart, _slo_s(tuned), f"SLO {units.duration_in_words(_slo_s(tuned))}")


def _tried(tuned: TierRecommendation) -> Section:
    tuning = tuned.tuning
    others = (each for each in tuning.explored if each is not tuning.trained)
    trials = (tuning.trained, *others)
    return Section.of("Tried: training window", _table(tuned, trials, tuning.trained, _NOTE))


def _assumed(tuned: TierRecommendation, *, one_screen: bool) -> Section:
    plan, split, known = tuned.plan, tuned.tuning.split, tier_prices()
    pool = units.format_size(plan.pool_blocks * plan.block_bytes)
    kinds = plan.kinds
    prices = ", ".join(
        f"{plan.prices[kind].gib_hour:.4g} a GiB of {_MEMORY[kind]}"
        + (" (yours)" if plan.prices[kind].source == STATED else f" (list of {known.date})")
        for kind in kinds
    )
    speeds = ", ".join(
        {
            "dram": "{0:g} GB/s a GPU each way",
            "ssd": "{0:g} GB/s from a drive and {1:g} GB/s to it",
        }[kind].format(READS[kind].bytes_per_s / 1e9, WRITES[kind] / 1e9)
        for kind in kinds
    )
    engine = (
        "" if str(tuned.deployment.engine).startswith("vllm") else " vLLM's scheduler stands in."
    )
    where = f" in {plan.currency}" if plan.currency else ", in the currency of yours"
    gpu = "not stated" if plan.gpu_hour is None else f"{plan.gpu_hour:.4g}"
    return Section.of(
        "Assumed",
        f"{tuned.deployment.summary}: a pool of {pool}, LRU on the GPU, latency of"
        f" {plan.setting.latency}, copies at {speeds} (also tried {SLOW_COPIES:g}x as"
        f" long).{engine}",
        f"Prices an hour{where}: {prices}; a GPU {gpu}.{_YOURS if one_screen else ''}",
        f"Requests: {count(split.warmup_requests)} warm up, {count(split.training_requests)}"
        f" search, {count(split.validation_requests)} choose, {count(split.held_out_requests)} held"
        f" out.{' More: --full.' if one_screen else ''}",
    )
