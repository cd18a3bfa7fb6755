"""The recommendation of `tune`: the record whose fields are the document of `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from kvscope.app.run_figures import SettingFacts
from kvscope.core import units
from kvscope.core.percentiles import at_rank
from kvscope.core.runs import Outcome
from kvscope.core.trace import Prompts, Trace
from kvscope.core.units import GIB
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.models import Model
from kvscope.fleet.options import router_label
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.base import GUARD, Policy
from kvscope.replay.policy_options import FORESEEING, SGLANG, VLLM, format_value
from kvscope.tuning.bootstrap import Gain
from kvscope.tuning.comparison import Canary, WindowTrial
from kvscope.tuning.flags import EngineLaunch, Flags, flags
from kvscope.tuning.least import FewestReplicas
from kvscope.tuning.plan import PlanOption, TierReason, TuningPlan
from kvscope.tuning.rule import Grade, Judged, Verdict
from kvscope.tuning.search import XI
from kvscope.tuning.split import FEWEST, Split
from kvscope.tuning.target import CERTAIN, Target
from kvscope.tuning.tiers import TierCandidate, TierOffer
from kvscope.tuning.trial import Trial
from kvscope.tuning.tuner import RequiredCapacity, TuningResult

if TYPE_CHECKING:
    from kvscope.deployment.deployment import ResolvedDeployment

Interval: TypeAlias = Mapping[Literal["value", "low", "high"], float]
"""A figure with its 95 % interval."""

_CALLED = {XI: ", ξ ", "threshold_tokens": " "}  # what stands before a parameter's value


class Assumption(Struct, frozen=True):
    """An assumed value, and the reason for it."""

    name: str
    value: str
    why: str


class RecordedLater(Struct, frozen=True):
    """The trace's own record of the later requests: TTFT at the target's percentile, and hits.

    `requests` counts those with a TTFT. `hit_rate` is the cached share of the input tokens of
    requests that report it; None if none does.
    """

    requests: int
    target_s: float
    hit_rate: float | None

    @classmethod
    def of(cls, prompts: Prompts, split: Split, target: Target) -> RecordedLater | None:
        """Return the recorded figures; None if fewer than 100 later requests have a TTFT."""
        measured = prompts.measurements
        if measured is None:
            return None
        counted = slice(split.warmup_requests + split.training_requests, None)
        ttft_s, cached = measured.ttft_s[counted], measured.cached_tokens[counted]
        timed_s = ttft_s[np.isfinite(ttft_s)]
        if len(timed_s) < FEWEST:
            return None
        known = cached >= 0
        tokens = int(prompts.input_tokens[counted][known].sum())
        hit_rate = int(cached[known].sum()) / tokens if tokens else None
        return cls(len(timed_s), at_rank(timed_s, target.percentile), hit_rate)


class CategoryGain(Struct, frozen=True):
    """A category, and its share (0-1) of the tail excess latency saved on the later requests."""

    category: str
    category_share: float


class RowTier(Struct, frozen=True):
    """Memory below the pool of each replica, by the method `offload`: `vllm@0.33` or `hicache`.

    `files_gib` is the size of an SSD below CPU memory, or of a pool that all replicas share
    (`shared`); 0: none. Files fill it in `full_s` seconds at the earliest; null without files, and
    if they are evicted. `price_hour` is a replica's price per hour, `wear` the writes as a multiple
    of those that the memory is rated for.
    """

    DOCUMENT: ClassVar[str] = (
        "offload=option.tier.offload gib=option.tier.gib files_gib=option.tier.files_gib"
        " shared=option.tier.shares_files"
        " full_s=option.full_s written_bytes_s=option.written_bytes_s wear=option.wear"
        " price_hour=option.tier_hour"
    )
    option: PlanOption


class RowChange(Struct, frozen=True):
    """A row's change: `tp` GPUs a replica; `router` is null for one replica, `tier` for none.

    `prefill` of the `replicas` prefill and the others decode; null if all do both. With
    autoscaling, `replicas` is the largest number and `mean_replicas` the mean; null without. `gpu`,
    `tp` and `weight_dtype` are null in a cache study; `params` has `xi_ms` next to `xi_tokens`.
    `kv_cache_bytes` is for vLLM's `--kv-cache-memory`, null if vLLM decides.
    """

    DOCUMENT: ClassVar[str] = (
        "policy=option.policy.name params tier router replicas=option.replicas"
        " prefill=option.split.prefill mean_replicas=option.mean_replicas gpu=where.gpu.name"
        " tp=where.tp weight_dtype kv_cache_bytes=option.machine.kv_cache_bytes"
    )
    option: PlanOption
    where: ResolvedDeployment | None
    params: Mapping[str, float]
    tier: RowTier | None
    router: str | None
    weight_dtype: str | None


class PolicyWorth(Struct, frozen=True):
    """The value of the recommended policy change.

    LRU needs `lru_gib` (`lru_blocks`) more capacity to be as fast; null if LRU is slower at any
    capacity, and `lru_gib` also without a model. LRU needs `lru_replicas` more to meet the SLO;
    null if unknown. `unguarded_ms` is the TTFT at the target's percentile without the policy's
    guard; null unless the policy's parameter `guard` has switched one on. The `category` with the
    largest gain has `category_share` (0-1) of the tail excess latency saved; null without a gain,
    and if there is only one category.
    """

    DOCUMENT: ClassVar[str] = (
        "lru_gib lru_blocks=tuned.plan.worth_blocks lru_replicas"
        " unguarded_ms=tuned.plan.unguarded.target_s *deciding=tuned.deciding"
    )
    tuned: Recommendation
    lru_gib: float | None
    lru_replicas: int | None


class PlanRow(Struct, frozen=True):
    """One option on the later requests, compared with the first row, the present deployment.

    `ttft_ms` has p50 and, with its 95 % interval, the target's percentile. `gain` has the relative
    reductions of figures, the difference of `attainment`, and the relative increase of
    `throughput`. `price_per_hour` is null if prices are unknown, `saves_per_hour` the price of the
    GPU time saved on the present machine. `worth` belongs to the policy to change to, null in other
    rows. `slo` is meets, misses, undecided or overloaded.
    """

    DOCUMENT: ClassVar[str] = (
        "id change hit_rate=later.outcome.token_hit_rate ttft_ms within_slo"
        " rejected_requests=later.rejected capacity_blocks=later.capacity_blocks"
        " utilization=later.utilization price_per_hour=option.price_hour"
        " saves_per_hour=option.saves_hour slo=option.slo grade likely=later.likely gain"
        " harms=option.judged.harms worth"
    )
    id: int
    option: PlanOption
    change: RowChange
    ttft_ms: Mapping[str, float | Interval]
    within_slo: Interval
    grade: Grade | Literal["today"]
    gain: Mapping[str, Gain | float]
    worth: PolicyWorth | None

    @property
    def later(self) -> WindowTrial:
        """The option's figures on the later requests."""
        return self.option.judged.later


class PricedReplicas(Struct, frozen=True):
    """The fewest replicas that meet the SLO, their price, and the extra price over the present."""

    DOCUMENT: ClassVar[str] = "*fewest price_hour extra_price_hour"
    fewest: FewestReplicas
    price_hour: float | None
    extra_price_hour: float | None


class ToRun(Struct, frozen=True):
    """What to run, its results on the held-out window, and why.

    The names are those of the document; fields not declared here are from `tuned`. `leaves` says
    which blocks the policy evicts: "leaf" those without cached children, "any" all. `lru` and
    `choice`, the policy chosen on the validation window, have all figures of both windows; `choice`
    is null if no policy may be recommended. `grade` says whether to change the policy now (do-now),
    on a canary first, or not (no), whatever the SLO; `slo_met` whether the choice, else LRU, meets
    the SLO now, `lru_slo_met` whether LRU does, `certain` whether the choice (without one, the
    verdict) also holds at the ends of uncertain inputs: latency, pool, starts of sessions. Without
    a change, `requests_needed` would probably show a gain; null if more than the present `requests`
    would not help. `enough` is a trial at a larger capacity, which met the SLO in validation.
    `why_no_flags` is empty if there are flags. `capacity_hbm` is a multiple of the GPU memory.
    `replicas_at_least`, more than now, meet the SLO with LRU, or else keep up with a load that is
    too much now; null if none were needed or enough. They cost `replicas_price_hour`:
    `extra_price_hour` more than now, which a switch saves. Up to `replicas_tried` were tried.
    `fewest` has the fewest replicas that meet the SLO, with LRU and with the choice.
    """

    DOCUMENT: ClassVar[str] = (
        "verdict=tuned.verdict grade=tuned.grade slo_met=tuned.tuning.slo_met"
        " lru_slo_met=tuned.tuning.lru_slo_met requests=tuned.tuning.split.requests"
        " requests_needed=tuned.requests_needed certain=tuned.tuning.certain"
        " policy=expected.policy.name leaves params"
        " capacity_blocks=expected.capacity_blocks capacity_tokens capacity_bytes capacity_gib"
        " capacity_hbm baseline=tuned.tuning.baseline expected enough=tuned.tuning.enough gain"
        " lru=tuned.tuning.lru choice=tuned.tuning.choice flags=tuned.flags"
        " why_no_flags=tuned.why_no_flags canary=tuned.canary replicas_at_least"
        " replicas_price_hour extra_price_hour replicas_tried=tuned.tuning.replicas_tried fewest"
    )
    tuned: Recommendation
    expected: WindowTrial
    leaves: str
    params: Mapping[str, float]
    capacity_tokens: int
    capacity_bytes: int | None
    capacity_gib: float | None
    capacity_hbm: float | None
    gain: Mapping[str, Gain]
    replicas_at_least: int | None
    replicas_price_hour: float | None
    extra_price_hour: float | None
    fewest: tuple[PricedReplicas, ...]


class RowDoubt(Struct, frozen=True):
    """Why to add no tier; the nearest option's row, and `ends` where it harms or does not pay."""

    why: TierReason
    row: int | None
    ends: tuple[str, ...]


class Recommendation(Struct, frozen=True):
    """The recommendation of `kvscope tune`, its evidence, and every option tried.

    `rows` are the options: the present deployment first, then by price. Row numbers, or null:
    `do_now` or `canary` (policy to switch to), `to_meet` (meets the SLO), `add_tier` (memory to
    add, with `--compare-tiers`; `tier_doubt` says why there is none). `recorded` is null if the
    trace has no TTFTs. `reachable_ms` is the tightest SLO that the present hardware meets;
    `unreachable` means that no cache meets the SLO. `changes` are the contenders, preferred first.
    `explored` are the trials on the training window, `infinite` is an infinite cache on the
    validation window, `limit` the same on validation and held-out window, as are the `oracles`
    (offline optimum, no bound on TTFT). `without_drafter` is LRU's hit rate on later requests
    without speculative decoding, null where there is none. Without a deployment, the study covers
    one idle cache and has no engine flags. `path` is the output file.
    """

    DOCUMENT: ClassVar[str] = (
        "*counted target=tuning.target model deployment capacity_blocks=tuning.capacity_blocks"
        " capacity_origin=tuning.capacity_origin replicas=tuning.replicas warnings words"
        " recommendation=to_run rows do_now=do_now_row canary=canary_row to_meet=to_meet_row"
        " add_tier=add_tier_row tier_doubt rejected_tiers=plan.rejected"
        " reachable_ms=plan.promise_s unreachable flags enough_requests recorded load=tuning.load"
        " changes=tuning.contenders infinite=tuning.infinite limit=tuning.limit"
        " oracles=tuning.oracles without_drafter least_capacity explored=tuning.explored"
        " split=tuning.split ends=tuning.ends assumptions trace"
    )
    trace: Trace
    model: Model | None
    hbm_bytes: int | None
    profile: LatencyProfile
    tuning: TuningResult
    plan: TuningPlan
    deployment: ResolvedDeployment | None = None
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()
    path: str = "recommendation.toml"
    tiers: TierOffer | None = None
    recorded: RecordedLater | None = None
    prompts: Prompts | None = None
    without_drafter: float | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on the policy, or "switch" where a tier is to be added."""
        return "switch" if self._tier else self.tuning.verdict

    @property
    def grade(self) -> Grade:
        """Certainty of the recommendation; an added tier is "canary" unless a gain is certain."""
        if self._tier is None:
            return self.tuning.grade
        return "do-now" if self._tier.later.likely >= CERTAIN else "canary"

    @property
    def uncertain(self) -> bool:
        """Whether the policy to change to fails (not `eligible`) at an extreme in `tuning.ends`.

        False without such a policy, extremes of uncertain inputs, or a deployment.
        """
        tuning = self.tuning
        judged = self.deployment is not None and tuning.choice is not None
        return judged and bool(tuning.disagreeing)

    @property
    def recommended(self) -> WindowTrial:
        """The held-out trial of the recommendation."""
        return self._tier.held_out if self._tier else self.tuning.recommended

    @property
    def canary(self) -> Canary | None:
        """The canary test of the gain; None without a change."""
        return self.plan.tier_canary if self._tier else self.tuning.canary

    @property
    def _tier(self) -> Judged | None:
        return self.plan.tier.judged if self.plan.tier else None

    @property
    def tier(self) -> TierCandidate | None:
        """The memory to add below the pool, None for none."""
        return self.plan.tier.tier if self.plan.tier else None

    def size(self, blocks: int) -> str:
        """Return a capacity in words: blocks, tokens, and bytes if the model is known."""
        return units.blocks_tokens_bytes(
            blocks,
            block_size=self.trace.block_size,
            bytes_per_token=self.model.bytes_per_token if self.model else None,
        )

    def bytes_in(self, blocks: int) -> int | None:
        """Return the bytes of `blocks` blocks, None without a model."""
        return self.model.bytes_for(blocks * self.trace.block_size) if self.model else None

    @property
    def engine(self) -> str:
        """Name of the engine: vllm, unless the deployment has another."""
        return self.deployment.engine.name if self.deployment else VLLM

    @property
    def flags(self) -> Flags:
        """Flags for the deployment's engine; none if a switch is not safe to recommend."""
        where = self.deployment
        if where is None or self.why_no_flags:
            return Flags(None, None)
        written = self.tuning.setting.kv_groups
        groups = KvGroups.parse(written) if written else None
        chosen = flags(self.recommended.policy, EngineLaunch.of(where, groups))
        if self.engine == SGLANG:
            return Flags(chosen.sglang, None)
        below = self.tier.spec.arguments(self.tier.size_bytes) if self.tier else ""
        return Flags(None, None if chosen.vllm is None else f"{chosen.vllm} {below}".rstrip())

    @property
    def why_no_flags(self) -> str:
        """Why there are no flags; empty if there are."""
        where, choice, why = self.deployment, self.tuning.choice, ""
        if where is None:
            why = "A cache study: name the deployment (--gpu, --model) for an engine's flags."
        elif self.tier is not None:  # which did no harm at any end
            pass
        elif choice is None and self.tuning.verdict != "keep-lru":
            why = "No flags: no engine setting fixes this."
        elif choice is not None and not where.switchable:
            why = f"No flags: {where.not_switchable}."
        elif any(each.end.sessions for each in self.tuning.disagreeing):
            why = (
                "No flags: the answer changes with when the sessions begin."
                " State it: --session-arrivals poisson:RATE."
            )
        elif choice is not None and self.tuning.disagreeing:
            why = (
                "No flags: the comparison does not hold within the uncertainty of pool and latency."
                " Measure them: kvscope calibrate, and --engine-log for the pool."
            )
        return why

    def price_hour(self, replicas: int | None, besides: int = 0) -> float | None:
        """Return the price per hour of `replicas` less `besides` replicas; None if unknown."""
        where = self.deployment
        if where is None or replicas is None:
            return None
        return where.price_of(where.tp * (replicas - besides))

    @property
    def deciding(self) -> CategoryGain | None:
        """The category whose requests gain most by the change, and its share of the gain.

        None without a change or a gain, and if all requests have one category.
        """
        choice = self.tuning.choice
        if choice is None or len(choice.later.categories) < 2:
            return None

        def tel_ms(outcome: Outcome) -> float:
            queued = self.tuning.target.view == "queued"
            return (outcome.queued_tel_ms if queued else outcome.tel_ms) or 0.0

        before = {each.category: each.outcome for each in self.tuning.lru.later.categories}
        gains = {
            each.category: tel_ms(before[each.category]) - tel_ms(each.outcome)
            for each in choice.later.categories
        }
        total, most = sum(gains.values()), max(gains, key=gains.__getitem__)
        return CategoryGain(most or "", gains[most] / total) if total > 0 else None

    @property
    def ttft(self) -> str:
        """The name of the target's TTFT: "TTFT", or "queued TTFT" in a queued cache study."""
        idle = self.tuning.target.view == "unloaded"
        return "TTFT" if idle or self.deployment else "queued TTFT"

    @property
    def target_name(self) -> str:
        """The name of the target's latency: p95 TTFT."""
        return f"{units.format_percentile(self.tuning.target.percentile)} {self.ttft}"

    def called(self, policy: Policy) -> str:
        """Return `gittins, ξ 1,585`: a policy, its xi, and values neither default nor estimated.

        A guard is not mentioned.
        """
        usual = {(parameter.name, parameter.default) for parameter in policy.parameters}
        estimates = self.tuning.estimates.items()
        usual |= {(name, estimate.value) for name, estimate in estimates if name != XI}
        chosen = [
            f"{_CALLED.get(name, f' {name}=')}{format_value(name, value)}"
            for name, value in policy.values.items()
            if name == XI or (name != GUARD.name and (name, value) not in usual)
        ]
        star = FORESEEING if policy.hindsight else ""
        return "".join([policy.name + star, *chosen])

    @property
    def counted(self) -> SettingFacts:
        """The definitions and assumptions behind the numbers."""
        return SettingFacts(self.tuning.setting)

    @property
    def words(self) -> tuple[str, ...]:
        """The verdict in sentences."""
        from kvscope.report.recommendation import verdict_in_words

        return tuple(verdict_in_words(self))

    @property
    def to_run(self) -> ToRun:
        """The recommendation of what to run."""
        tuning, trial = self.tuning, self.recommended
        size = self.bytes_in(trial.capacity_blocks)
        needed = tuning.replicas_needed or tuning.load.replicas_at_least
        return ToRun(
            tuned=self,
            expected=trial,
            leaves=trial.policy.evicts,
            params=self._params(trial),
            capacity_tokens=trial.capacity_blocks * self.trace.block_size,
            capacity_bytes=size,
            capacity_gib=None if size is None else size / GIB,
            capacity_hbm=size / self.hbm_bytes if size is not None and self.hbm_bytes else None,
            gain=trial.gains or dict.fromkeys(tuning.infinite.gains, Gain(0.0, 0.0, 0.0)),
            replicas_at_least=needed,
            replicas_price_hour=self.price_hour(needed),
            extra_price_hour=self.price_hour(needed, tuning.replicas),
            fewest=tuple(
                PricedReplicas(
                    each,
                    self.price_hour(each.replicas),
                    self.price_hour(each.replicas, tuning.replicas),
                )
                for each in (tuning.fewest_lru, tuning.fewest_choice)
                if each
            ),
        )

    @property
    def rows(self) -> tuple[PlanRow, ...]:
        """The options, the present deployment first."""
        return tuple(self._row(*numbered) for numbered in enumerate(self.plan.options))

    def _row(self, number: int, option: PlanOption) -> PlanRow:
        later, first = option.judged.later, self.plan.today.judged.later
        gain: dict[str, Gain | float] = dict(later.gains)
        if number:
            gain["attainment"] = later.attainment_gain
            gain["throughput"] = later.served_per_s / first.served_per_s - 1
        where = option.machine.where if option.machine else self.deployment
        target_ms = _interval(later.target_s * 1e3, later.interval_ms)
        return PlanRow(
            id=number,
            option=option,
            change=RowChange(
                option,
                where,
                self._params(later),
                RowTier(option) if option.tier else None,
                router_label(option.router) if option.router else None,
                where.model.weight_dtype if where and where.model else None,
            ),
            ttft_ms={"p50": later.times_ms.p50, self.tuning.target.rank_name: target_ms},
            within_slo=_interval(later.attainment, option.attainment_interval),
            grade=option.judged.grade if number else "today",
            gain=gain,
            worth=self._worth if option.judged is self.tuning.choice else None,
        )

    @property
    def _worth(self) -> PolicyWorth:
        blocks, tuning = self.plan.worth_blocks, self.tuning
        size = None if blocks is None else self.bytes_in(blocks)
        lru, choice = (
            each.replicas if each else None for each in (tuning.fewest_lru, tuning.fewest_choice)
        )
        more = lru - choice if lru and choice else None
        return PolicyWorth(self, None if size is None else size / GIB, more)

    def _params(self, trial: Trial) -> dict[str, float]:
        """Return a policy's parameters, and `xi_ms`, the prefill time of ξ tokens."""
        params = dict(trial.policy.values)
        if XI in params:
            params["xi_ms"] = float(self.profile.ttft_s(int(params[XI]), 0)) * 1e3
        return params

    @property
    def do_now_row(self) -> int | None:
        """The row of the policy to change to now; None for no such change."""
        return self._chosen_row("do-now")

    @property
    def canary_row(self) -> int | None:
        """The row of the policy to try on a canary first; None for no such change."""
        return self._chosen_row("canary")

    def _chosen_row(self, grade: Grade) -> int | None:
        if self.tuning.grade != grade or self.uncertain:
            return None
        options, choice = enumerate(self.plan.options), self.tuning.choice
        return next(at for at, option in options if option.judged is choice)

    @property
    def to_meet_row(self) -> int | None:
        """The cheapest row that meets the SLO; None if none does."""
        return self._place(self.plan.cheapest)

    @property
    def add_tier_row(self) -> int | None:
        """The row with the memory to add; None for none."""
        return self._place(self.plan.tier)

    def _place(self, option: PlanOption | None) -> int | None:
        return None if option is None else self.plan.options.index(option)

    @property
    def tier_doubt(self) -> RowDoubt | None:
        """Why no tier is to be added; None if one is, or none was requested."""
        doubt = self.plan.tier_doubt
        if doubt is None:
            return None
        return RowDoubt(doubt.why, self._place(doubt.option), doubt.ends)

    @property
    def unreachable(self) -> bool:
        """Whether no cache meets the SLO."""
        return self.tuning.verdict == "unreachable"

    @property
    def requests_needed(self) -> int | None:
        """The requests that would probably show a gain; None with a change, or if unknown."""
        return self.tuning.promising[1] if self.tuning.promising else None

    @property
    def enough_requests(self) -> Mapping[Literal["have", "need"], int | None]:
        """The requests of the trace, and the number that would probably show a gain."""
        return {"have": self.tuning.split.requests, "need": self.requests_needed}

    @property
    def least_capacity(self) -> Mapping[Literal["lru", "best"], RequiredCapacity | None]:
        """The least capacity that meets the SLO with LRU ("lru"), and with any policy ("best").

        None if no tried capacity does, or if none was tried, as for a deployment.
        """
        return {"lru": self.tuning.least_lru, "best": self.tuning.least_any}


def _interval(value: float, ends: tuple[float, float]) -> Interval:
    return {"value": value, "low": ends[0], "high": ends[1]}
