"""The document of `kvscope tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from kvscope.app.documents.base import Facts, GatedDocument, ModelFacts, TraceFacts, model_facts
from kvscope.app.documents.deployment import DeploymentFacts, deployment_facts
from kvscope.app.documents.runs import SettingFacts, setting_facts
from kvscope.app.gates import Figures
from kvscope.app.tune import Assumption, Recommendation
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Outcome
from kvscope.fleet.options import router_label
from kvscope.ingest.clocks import SessionStarts
from kvscope.tuning.bootstrap import Gain
from kvscope.tuning.canary import Canary
from kvscope.tuning.comparison import Harm, WindowTrial
from kvscope.tuning.fewest import FewestReplicas
from kvscope.tuning.flags import Flags
from kvscope.tuning.plan import PlanOption, TierReason, TuningPlan
from kvscope.tuning.rule import Grade, Judged
from kvscope.tuning.split import Split
from kvscope.tuning.target import Target
from kvscope.tuning.tier_prices import TierKind
from kvscope.tuning.trial import Trial
from kvscope.tuning.tuner import RequiredCapacity
from kvscope.tuning.verdict import SloAnswer

_GIB = 2**30


class CapacityFacts(Facts):
    """A capacity in every unit that is known; `capacity_hbm` is a multiple of the GPU memory."""

    capacity_blocks: int
    capacity_tokens: int
    capacity_bytes: int | None
    capacity_gib: float | None
    capacity_hbm: float | None


class TargetFacts(Facts):
    """The target of a tuning: its `figure` stays within `limit_ms`, which is `slo_ms`, too."""

    figure: str
    limit_ms: float
    slo_ms: float
    percentile: float
    measure: str
    view: str
    tpot_slo_ms: float | None

    @classmethod
    def of(cls, target: Target) -> TargetFacts:
        """Return the facts of a target."""
        figure, limit_ms = f"{target.rank_name} TTFT", target.slo_s * 1e3
        return cls.build(target, figure=figure, limit_ms=limit_ms)


class TrialFigures(Facts, Outcome):
    """One policy at one capacity, by the window that it was tried on, in the target's view.

    `times_ms` are percentiles with requests that got no token as infinitely late (null), which
    `ttft_ms` and `queued_ttft_ms` leave out. `attainment` is the share of requests within the SLO,
    `tpot_ms` the time per output token at the target's percentile (engines only), `rejected`
    requests are longer than the pool.
    """

    policy: str
    params: Mapping[str, float]
    hindsight: bool
    capacity_blocks: int
    times_ms: Percentiles
    target_ms: float
    attainment: float
    violation_share: float
    target_tel_ms: float
    tpot_ms: float | None
    meets_slo: bool
    prefills_per_s: float
    rejected: int


class ComparedFigures(TrialFigures):
    """The same, compared with LRU at the present capacity on the same window.

    `harms` are the limits that the policy breaks. `likely` (0-1) its attainment or TEL is better.
    `interval_ms` is the 95 % CI of `target_ms`.
    """

    keeps_share: float
    interval_ms: tuple[float, float]
    likely: float
    keeps_up: bool
    gain: Mapping[str, Gain]
    attainment_gain: Gain
    harms: tuple[Harm, ...]


class JudgedFigures(Facts):
    """One policy on the validation and the held-out window, and on the requests of both."""

    validation: ComparedFigures
    held_out: ComparedFigures
    later: ComparedFigures


class ChangeFacts(JudgedFigures):
    """What a change to one policy is worth, with the setting that was best for it.

    `grade`: do-now, canary or no. `requests_needed` of this traffic would probably be enough for
    do-now, null where more requests would not help.
    """

    policy: str
    params: Mapping[str, float]
    grade: Grade
    likely: float
    harms: tuple[Harm, ...]
    requests_needed: int | None


class LeastCapacity(CapacityFacts):
    """The least capacity that meets the SLO, by the training window and by the held-out one."""

    training: TrialFigures
    held_out: TrialFigures
    would_need_blocks: int | None


class LeastCapacities(Facts):
    """The least capacity of a cache study that meets the SLO: with LRU, and with any policy."""

    lru: LeastCapacity | None
    best: LeastCapacity | None


class LoadFacts(Facts):
    """Whether the replicas keep up with the arrivals under LRU, on the validation window.

    `growth` is the TTFT gained per second of the window. If they do not keep up: the least number
    of replicas that do, the share of the conversations that these carry, and LRU's figures there.
    """

    growth: float
    overloaded: bool
    replicas_at_least: int | None
    carried_share: float | None
    carried: TrialFigures | None


class EndFacts(Facts):
    """The verdict at one end of what is not known exactly; latencies at the target's percentile.

    `sessions` are other starts of sessions without a common clock, null where they are the trace's.
    The figures are those of LRU and the choice on the held-out window; `eligible`: whether the
    choice may be recommended there, null without a choice.
    """

    name: str
    prefill_times: float
    capacity_blocks: int | None
    sessions: SessionStarts | None
    verdict: str
    baseline_ms: float
    baseline_hit_rate: float
    choice_ms: float | None
    choice_hit_rate: float | None
    eligible: bool | None


class HeldOutFigures(Facts):
    """One policy's main figures on the held-out window, in the target's view."""

    attainment: float
    p50_ms: float
    p95_ms: float
    tel_ms: float
    prefills_per_s: float


class HeldOutPair(Facts):
    """LRU and the chosen policy on the held-out window; None if none may be recommended."""

    lru: HeldOutFigures
    chosen: HeldOutFigures | None


class FewestFacts(Facts):
    """The fewest replicas with a policy behind a router that meet the SLO on the later requests.

    `replicas` is null where up to `replicas_tried` do not. `replicas_interval` is its 95 %
    interval, null in it for more than `replicas_compared`, null itself without the fewest. The
    `price_hour` is `extra_price_hour` above the present one, below it where negative.
    """

    router: str
    policy: str
    replicas: int | None
    replicas_interval: tuple[int | None, int | None] | None
    replicas_compared: int
    replicas_tried: int
    price_hour: float | None
    extra_price_hour: float | None

    @classmethod
    def of(cls, fewest: FewestReplicas, tuned: Recommendation) -> FewestFacts:
        """Return the facts of a search."""
        replicas, size, now = fewest.replicas, fewest.size, tuned.tuning.replicas
        return cls.build(
            fewest,
            router=fewest.router.name,
            policy=fewest.policy.name,
            replicas_interval=(size.low, size.high) if size else None,
            replicas_compared=fewest.compared,
            replicas_tried=fewest.tried,
            price_hour=None if replicas is None else tuned.price_hour(replicas),
            extra_price_hour=None if replicas is None else tuned.price_hour(replicas - now),
        )


class RecommendationFacts(CapacityFacts):
    """What to run, what it gives on the held-out window, and the engine's flags for it.

    `lru` and `choice`, the policy chosen on the validation window, have all figures of both
    windows, `held_out` the main ones; `choice` is None if no policy may be recommended.
    `grade` says whether to change the policy now (do-now), on a canary first, or not (no), wherever
    the SLO lies; `slo_met` whether what is to be run meets it, `lru_slo_met` whether LRU does.
    Without a change, `requests_needed` would probably show that one pays, null where more requests
    than the `requests` of the trace would not. `enough` meets the SLO at a larger capacity.
    `why_no_flags` is empty where there are flags. `replicas_at_least` meet the SLO with LRU, or at
    least keep up, at `replicas_price_hour`: `extra_price_hour` more than now, which a switch saves.
    Up to `replicas_tried` were tried. `fewest` are those of a deployment that meet the SLO, with
    LRU and with the choice.
    """

    verdict: str
    grade: Grade
    slo_met: SloAnswer
    lru_slo_met: SloAnswer
    requests: int
    requests_needed: int | None
    certain: bool
    policy: str
    leaves: str
    params: Mapping[str, float]
    baseline: TrialFigures
    expected: TrialFigures
    enough: TrialFigures | None
    gain: Mapping[str, Gain]
    lru: JudgedFigures
    choice: JudgedFigures | None
    held_out: HeldOutPair
    flags: Flags
    why_no_flags: str
    canary: Canary | None
    replicas_at_least: int | None
    replicas_price_hour: float | None
    extra_price_hour: float | None
    replicas_tried: int
    fewest: tuple[FewestFacts, ...]


class FigureInterval(Facts):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


class MemoryFacts(Facts):
    """Memory below the pool of each replica; `offload` is how it works, as `--offload` has it.

    `files_gib` are those of an SSD below CPU memory (0: none), which files fill in `full_s`. Its
    price for an hour is `price_hour`, and `wear` times what its memory is rated for is written.
    """

    offload: str
    kind: TierKind
    gib: float
    files_gib: float
    full_s: float | None
    written_bytes_s: float
    wear: float
    price_hour: float


class ChangeOf(Facts):
    """What a row changes: `tp` GPUs a replica; `router` is null for one replica, `tier` for none.

    `gpu` and `tp` are null in a cache study.
    """

    policy: str
    params: Mapping[str, float]
    tier: MemoryFacts | None
    router: str | None
    replicas: int
    gpu: str | None
    tp: int | None


class WorthFacts(Facts):
    """What the policy to change to is worth.

    LRU needs `lru_gib` (`lru_blocks`) more to be as fast: null where no LRU cache is. It needs
    `lru_replicas` more to meet the SLO, null where that is not known. `unguarded_ms` is the
    policy's percentile without its guard, null where it has none that can be left out.
    `category_share` (0-1) of the tail excess latency saved is of one `category`, null where there
    is one alone.
    """

    lru_gib: float | None
    lru_blocks: int | None
    lru_replicas: int | None
    unguarded_ms: float | None
    category: str | None
    category_share: float | None


class RowFacts(Facts):
    """One option on the later requests, compared with the first row: the deployment as it is.

    `ttft_ms` has p50 and, with its 95 % interval, the target's percentile. `gain` has shares by
    which a figure is below the first row's, the difference of `attainment`, and by which share
    `throughput` is above. `price_per_hour` is null where prices are not known, `saves_per_hour` the
    price of the GPU time that the present machine computes less. `worth` is of the policy to change
    to, null in other rows. `slo` is meets, misses, undecided or overloaded.
    """

    id: int
    change: ChangeOf
    hit_rate: float
    ttft_ms: Mapping[str, float | FigureInterval]
    within_slo: FigureInterval
    rejected_requests: int
    utilization: float
    price_per_hour: float | None
    saves_per_hour: float | None
    slo: SloAnswer
    grade: Literal["today", "do-now", "canary", "no"]
    likely: float
    gain: Mapping[str, Gain | float]
    harms: tuple[Harm, ...]
    worth: WorthFacts | None


class RecordedFacts(Facts):
    """What the trace says of the later requests; `hit_rate` is null where no request says so."""

    requests: int
    target_ms: float
    hit_rate: float | None


class EnoughRequests(Facts):
    """The requests of the trace, and how many would probably show that a change pays.

    `need` is null where more of them would not, and where one is to be made already.
    """

    have: int
    need: int | None


class TierDoubtFacts(Facts):
    """Why no tier is to be added, and the row that comes nearest; `ends` are where it harms."""

    why: TierReason
    row: int | None
    ends: tuple[str, ...]


class RejectedTier(Facts):
    """A tier under which requests never start, and why."""

    offload: str
    gib: float
    files_gib: float
    reason: str


class TuneDocument(GatedDocument, SettingFacts):
    """What `kvscope tune` recommends, what that rests on, and all that was tried.

    `rows` are the options, the deployment as it is first, then by price. `do_now` and `canary` are
    the row of the policy to change to, `to_meet` that to meet the SLO with, `add_tier` that with
    the memory to add, where `--tiers` asks for it: null for none, `tier_doubt` says why. `recorded`
    is null where the trace has no TTFTs. The present hardware stays within `reachable_ms`;
    `unreachable`: no cache meets the SLO. `changes` are the contenders, the preferred one first.
    `contenders` (the same) and `infinite` are on the validation window, `limit` (an infinite cache)
    and `oracles` on both later windows, `explored` on the training window. `oracles` know the
    future; neither bounds TTFT.
    """

    command: Literal["tune"] = "tune"
    schema: Literal[3] = 3  # type: ignore[assignment]  # a version of its own
    trace: TraceFacts
    target: TargetFacts
    model: ModelFacts | None
    deployment: DeploymentFacts | None
    capacity_blocks: int
    capacity_origin: str
    replicas: int
    warnings: tuple[str, ...]
    words: tuple[str, ...]
    recommendation: RecommendationFacts
    rows: tuple[RowFacts, ...]
    do_now: int | None
    canary: int | None
    to_meet: int | None
    add_tier: int | None
    tier_doubt: TierDoubtFacts | None
    rejected_tiers: tuple[RejectedTier, ...]
    reachable_ms: float | None
    unreachable: bool
    flags: Flags
    enough_requests: EnoughRequests
    recorded: RecordedFacts | None
    load: LoadFacts
    changes: tuple[ChangeFacts, ...]
    contenders: tuple[ComparedFigures, ...]
    infinite: ComparedFigures
    limit: ComparedFigures
    oracles: tuple[ComparedFigures, ...]
    least_capacity: LeastCapacities
    explored: tuple[TrialFigures, ...]
    split: Split
    ends: tuple[EndFacts, ...]
    assumptions: tuple[Assumption, ...]


def tune_document(tuned: Recommendation, words: Sequence[str], figures: Figures) -> TuneDocument:
    """Return the document of `kvscope tune`; `words` are the verdict in sentences."""
    tuning, best, plan = tuned.tuning, tuned.recommended, tuned.plan
    load, needed = tuning.load, tuning.promising[1] if tuning.promising else None
    policy_row = None
    if tuning.choice is not None:
        policy_row = next(
            at for at, option in enumerate(plan.options) if option.judged is tuning.choice
        )
    replicas = tuning.replicas_needed or load.replicas_at_least
    return TuneDocument.build(
        setting_facts(tuning.setting),
        tuning,
        tuned,
        trace=TraceFacts.build(tuned.trace),
        target=TargetFacts.of(tuning.target),
        model=model_facts(tuned.model),
        deployment=deployment_facts(tuned.deployment) if tuned.deployment else None,
        words=tuple(words),
        figures=figures,
        recommendation=RecommendationFacts.build(
            _capacity(tuned, best.capacity_blocks),
            tuning,
            policy=best.policy.name,
            leaves=best.policy.evicts,
            params=_params(tuned, best),
            baseline=_trial(tuned, tuning.baseline),
            expected=_trial(tuned, best),
            enough=_trial(tuned, tuning.enough) if tuning.enough else None,
            requests=tuning.split.requests,
            requests_needed=needed,
            verdict=tuned.verdict,
            grade=tuned.grade,
            canary=tuned.canary,
            gain=best.gains or dict.fromkeys(tuning.infinite.gains, Gain(0.0, 0.0, 0.0)),
            lru=_judged(tuned, tuning.lru),
            choice=_judged(tuned, tuning.choice) if tuning.choice else None,
            held_out=HeldOutPair(
                lru=_held_out(tuning.lru),
                chosen=_held_out(tuning.choice) if tuning.choice else None,
            ),
            flags=tuned.flags,
            why_no_flags=tuned.why_no_flags(),
            fewest=tuple(
                FewestFacts.of(each, tuned)
                for each in (tuning.fewest_lru, tuning.fewest_choice)
                if each
            ),
            replicas_at_least=replicas,
            replicas_price_hour=tuned.price_hour(replicas) if replicas else None,
            extra_price_hour=tuned.price_hour(replicas - tuning.replicas) if replicas else None,
        ),
        rows=tuple(
            _row(tuned, at, option, _worth(tuned) if at == policy_row else None)
            for at, option in enumerate(plan.options)
        ),
        do_now=policy_row if tuning.grade == "do-now" else None,
        canary=policy_row if tuning.grade == "canary" else None,
        to_meet=_place(plan, plan.cheapest),
        add_tier=_place(plan, plan.tier),
        tier_doubt=plan.tier_doubt
        and TierDoubtFacts.build(plan.tier_doubt, row=_place(plan, plan.tier_doubt.option)),
        rejected_tiers=tuple(
            RejectedTier(
                offload=each.candidate.offload,
                gib=each.candidate.size_bytes / _GIB,
                files_gib=each.candidate.files_bytes / _GIB,
                reason=each.reason,
            )
            for each in plan.rejected
        ),
        reachable_ms=plan.promise_s * 1e3,
        unreachable=tuning.verdict == "unreachable",
        flags=tuned.flags,
        enough_requests=EnoughRequests(have=tuning.split.requests, need=needed),
        recorded=RecordedFacts.build(tuned.recorded) if tuned.recorded else None,
        load=LoadFacts.build(load, carried=_trial(tuned, load.carried) if load.carried else None),
        changes=tuple(
            ChangeFacts.build(
                _judged(tuned, each),
                each,
                policy=each.policy.name,
                params=_params(tuned, each.later),
                likely=each.later.likely,
                requests_needed=each.requests_needed(tuning.target, tuning.split.requests),
            )
            for each in tuning.contenders
        ),
        contenders=tuple(_compared(tuned, each.validation) for each in tuning.contenders),
        infinite=_compared(tuned, tuning.infinite),
        limit=_compared(tuned, tuning.limit),
        oracles=tuple(_compared(tuned, trial) for trial in tuning.oracles),
        least_capacity=LeastCapacities(
            lru=_least(tuned, tuning.least_lru), best=_least(tuned, tuning.least_any)
        ),
        explored=tuple(_trial(tuned, trial) for trial in tuning.explored),
        ends=tuple(
            EndFacts.build(
                end.end,
                end,
                baseline_ms=end.baseline.target_s * 1e3,
                baseline_hit_rate=end.baseline.outcome.token_hit_rate,
                choice_ms=end.choice.target_s * 1e3 if end.choice else None,
                choice_hit_rate=end.choice.outcome.token_hit_rate if end.choice else None,
            )
            for end in tuning.ends
        ),
    )


def _place(plan: TuningPlan, option: PlanOption | None) -> int | None:
    return None if option is None else plan.options.index(option)


def _row(tuned: Recommendation, at: int, option: PlanOption, worth: WorthFacts | None) -> RowFacts:
    later, where, first = option.judged.later, tuned.deployment, tuned.plan.today.judged.later
    rank, gain = tuned.tuning.target.rank_name, dict[str, Gain | float](later.gains)
    if at:
        gain["attainment"] = later.attainment_gain
        gain["throughput"] = later.served_per_s / first.served_per_s - 1
    gpu, tp = (where.gpu.name if where.gpu else None, where.tp) if where else (None, None)
    if option.machine is not None:
        gpu, tp = option.machine.gpu, option.machine.tp
    return RowFacts.build(
        option,
        later,
        id=at,
        change=ChangeOf.build(
            option,
            policy=option.policy.name,
            params=_params(tuned, later),
            tier=_tier(tuned, option),
            router=router_label(option.router) if option.router else None,
            gpu=gpu,
            tp=tp,
        ),
        hit_rate=later.outcome.token_hit_rate,
        ttft_ms={
            "p50": later.times_ms.p50,
            rank: _with_interval(later.target_s, later.interval_s, 1e3),
        },
        within_slo=_with_interval(later.attainment, option.attainment_interval),
        rejected_requests=later.rejected,
        price_per_hour=option.price_hour,
        saves_per_hour=option.saves_hour,
        grade=option.judged.grade if at else "today",
        gain=gain,
        harms=option.judged.harms,
        worth=worth,
    )


def _with_interval(
    value: float, interval: tuple[float, float], unit: float = 1.0
) -> FigureInterval:
    low, high = interval
    return FigureInterval(value=value * unit, low=low * unit, high=high * unit)


def _tier(tuned: Recommendation, option: PlanOption) -> MemoryFacts | None:
    tier, offer = option.tier, tuned.tiers
    if tier is None or offer is None:
        return None
    return MemoryFacts.build(
        tier,
        option,
        kind="dram",
        gib=tier.size_bytes / _GIB,
        files_gib=tier.files_bytes / _GIB,
        wear=offer.wear(tier, option.written_bytes_s),
        price_hour=offer.price_hour(tier, option.written_bytes_s),
    )


def _worth(tuned: Recommendation) -> WorthFacts:
    plan, tuning = tuned.plan, tuned.tuning
    category, part = tuned.deciding_category or (None, None)
    size = None if plan.worth_blocks is None else tuned.bytes_in(plan.worth_blocks)
    of_lru, of_choice = (
        each.replicas if each else None for each in (tuning.fewest_lru, tuning.fewest_choice)
    )
    return WorthFacts(
        lru_blocks=plan.worth_blocks,
        lru_gib=None if size is None else size / _GIB,
        lru_replicas=of_lru - of_choice if of_lru and of_choice else None,
        unguarded_ms=plan.unguarded.target_s * 1e3 if plan.unguarded else None,
        category=category,
        category_share=part,
    )


def _params(tuned: Recommendation, trial: Trial) -> dict[str, float]:
    params = dict(trial.policy.values)
    if "xi_tokens" in params:
        params["xi_ms"] = float(tuned.profile.ttft_s(int(params["xi_tokens"]), 0)) * 1e3
    return params


def _capacity(tuned: Recommendation, blocks: int) -> CapacityFacts:
    size = tuned.bytes_in(blocks)
    return CapacityFacts(
        capacity_blocks=blocks,
        capacity_tokens=blocks * tuned.trace.block_size,
        capacity_bytes=size,
        capacity_gib=None if size is None else size / _GIB,
        capacity_hbm=size / tuned.hbm_bytes if size is not None and tuned.hbm_bytes else None,
    )


def _trial(tuned: Recommendation, trial: Trial) -> TrialFigures:
    return TrialFigures.build(
        trial.outcome,
        trial,
        policy=trial.policy.name,
        params=_params(tuned, trial),
        hindsight=trial.policy.hindsight,
        target_tel_ms=trial.tel_s * 1e3,
        meets_slo=trial.meets(tuned.tuning.target),
        prefills_per_s=trial.served_per_s,
    )


def _compared(tuned: Recommendation, trial: WindowTrial) -> ComparedFigures:
    return ComparedFigures.build(
        _trial(tuned, trial),
        trial,
        keeps_share=trial.meeting_share,
        gain=trial.gains,
        interval_ms=(trial.interval_s[0] * 1e3, trial.interval_s[1] * 1e3),
    )


def _judged(tuned: Recommendation, judged: Judged) -> JudgedFigures:
    return JudgedFigures(
        validation=_compared(tuned, judged.validation),
        held_out=_compared(tuned, judged.held_out),
        later=_compared(tuned, judged.later),
    )


def _held_out(judged: Judged) -> HeldOutFigures:
    trial = judged.held_out
    return HeldOutFigures(
        attainment=trial.attainment,
        p50_ms=trial.times_ms.p50,
        p95_ms=trial.times_ms.p95,
        tel_ms=trial.tel_s * 1e3,
        prefills_per_s=trial.served_per_s,
    )


def _least(tuned: Recommendation, least: RequiredCapacity | None) -> LeastCapacity | None:
    if least is None:
        return None
    return LeastCapacity.build(
        _capacity(tuned, least.training.capacity_blocks),
        least,
        training=_trial(tuned, least.training),
        held_out=_trial(tuned, least.held_out),
    )
