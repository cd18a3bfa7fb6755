"""The document of `kvscope tune`: the plan, what it rests on, and all that was tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

from kvscope.app.run_figures import SettingFacts
from kvscope.app.tune import Recommendation
from kvscope.core.units import GIB
from kvscope.fleet.options import router_label
from kvscope.tuning.bootstrap import Gain
from kvscope.tuning.comparison import WindowTrial
from kvscope.tuning.fewest import FewestReplicas
from kvscope.tuning.plan import PlanOption, TierReason
from kvscope.tuning.rule import Grade
from kvscope.tuning.tiers import TierOffer
from kvscope.tuning.trial import Trial
from kvscope.tuning.tuner import RequiredCapacity

Interval: TypeAlias = Mapping[Literal["value", "low", "high"], float]
"""A figure with its 95 % interval."""


def _params(tuned: Recommendation, trial: Trial) -> dict[str, float]:
    """Return a policy's parameters, and the prefill time that ξ stands for."""
    params = dict(trial.policy.values)
    if "xi_tokens" in params:
        params["xi_ms"] = float(tuned.profile.ttft_s(int(params["xi_tokens"]), 0)) * 1e3
    return params


class RowTier(Struct, frozen=True):
    """Memory below the pool of each replica; `offload` is how it works, as `--offload` has it.

    `files_gib` are those of an SSD below CPU memory (0: none), which files fill in `full_s`. Its
    price for an hour is `price_hour`, and `wear` times what its memory is rated for is written.
    """

    DOCUMENT: ClassVar[str] = (
        "offload=option.tier.offload gib=option.tier.gib files_gib=option.tier.files_gib"
        " full_s=option.full_s written_bytes_s=option.written_bytes_s wear price_hour"
    )
    option: PlanOption
    offer: TierOffer

    @property
    def wear(self) -> float:
        """What is written, as a multiple of what its memory is rated for."""
        assert self.option.tier is not None  # noqa: S101  (rows without have no RowTier)
        return self.offer.wear(self.option.tier, self.option.written_bytes_s)

    @property
    def price_hour(self) -> float:
        """Its price for an hour."""
        assert self.option.tier is not None  # noqa: S101  (as above)
        return self.offer.price_hour(self.option.tier, self.option.written_bytes_s)


class RowChange(Struct, frozen=True):
    """What a row changes: `tp` GPUs a replica; `router` is null for one replica, `tier` for none.

    `gpu` and `tp` are null in a cache study.
    """

    DOCUMENT: ClassVar[str] = (
        "policy=option.policy.name params tier router replicas=option.replicas gpu tp"
    )
    option: PlanOption
    tuned: Recommendation

    @property
    def params(self) -> Mapping[str, float]:
        """The policy's parameters, `xi_ms` beside `xi_tokens`."""
        return _params(self.tuned, self.option.judged.later)

    @property
    def tier(self) -> RowTier | None:
        """The memory below the pool."""
        offer = self.tuned.tiers
        return RowTier(self.option, offer) if self.option.tier and offer else None

    @property
    def router(self) -> str | None:
        """The router, with what is not its default."""
        return router_label(self.option.router) if self.option.router else None

    @property
    def gpu(self) -> str | None:
        """The GPU's name."""
        if self.option.machine is not None:
            return self.option.machine.gpu
        where = self.tuned.deployment
        return where.gpu.name if where and where.gpu else None

    @property
    def tp(self) -> int | None:
        """GPUs of a replica."""
        if self.option.machine is not None:
            return self.option.machine.tp
        return self.tuned.deployment.tp if self.tuned.deployment else None


class PolicyWorth(Struct, frozen=True):
    """What the policy to change to is worth.

    LRU needs `lru_gib` (`lru_blocks`) more to be as fast: null where no LRU cache is. It needs
    `lru_replicas` more to meet the SLO, null where that is not known. `unguarded_ms` is the
    policy's percentile without its guard, null where it has none that can be left out.
    `category_share` (0-1) of the tail excess latency saved is of one `category`, null where there
    is one alone.
    """

    DOCUMENT: ClassVar[str] = (
        "lru_gib lru_blocks=tuned.plan.worth_blocks lru_replicas"
        " unguarded_ms=tuned.plan.unguarded.target_s category category_share"
    )
    tuned: Recommendation

    @property
    def lru_gib(self) -> float | None:
        """The memory that LRU needs more, None without a model."""
        blocks = self.tuned.plan.worth_blocks
        size = None if blocks is None else self.tuned.bytes_in(blocks)
        return None if size is None else size / GIB

    @property
    def lru_replicas(self) -> int | None:
        """The replicas that LRU needs more."""
        searches = self.tuned.tuning.fewest_lru, self.tuned.tuning.fewest_choice
        lru, choice = (each.replicas if each else None for each in searches)
        return lru - choice if lru and choice else None

    @property
    def category(self) -> str | None:
        """The category that gains most."""
        return self.tuned.deciding_category[0] if self.tuned.deciding_category else None

    @property
    def category_share(self) -> float | None:
        """Its share of the gain."""
        return self.tuned.deciding_category[1] if self.tuned.deciding_category else None


class PlanRow(Struct, frozen=True):
    """One option on the later requests, compared with the first row: the deployment as it is.

    `ttft_ms` has p50 and, with its 95 % interval, the target's percentile. `gain` has shares by
    which a figure is below the first row's, the difference of `attainment`, and by which share
    `throughput` is above. `price_per_hour` is null where prices are not known, `saves_per_hour` the
    price of the GPU time that the present machine computes less. `worth` is of the policy to change
    to, null in other rows. `slo` is meets, misses, undecided or overloaded.
    """

    DOCUMENT: ClassVar[str] = (
        "id change hit_rate=later.outcome.token_hit_rate ttft_ms within_slo"
        " rejected_requests=later.rejected utilization=later.utilization"
        " price_per_hour=option.price_hour saves_per_hour=option.saves_hour slo=option.slo grade"
        " likely=later.likely gain harms=option.judged.harms worth"
    )
    id: int
    option: PlanOption
    tuned: Recommendation

    @property
    def later(self) -> WindowTrial:
        """Its figures on the later requests."""
        return self.option.judged.later

    @property
    def change(self) -> RowChange:
        """What it changes."""
        return RowChange(self.option, self.tuned)

    @property
    def ttft_ms(self) -> Mapping[str, float | Interval]:
        """The median, and the target's percentile with its interval."""
        low, high = self.later.interval_ms
        rank, value = self.tuned.tuning.target.rank_name, self.later.target_s * 1e3
        return {"p50": self.later.times_ms.p50, rank: {"value": value, "low": low, "high": high}}

    @property
    def within_slo(self) -> Interval:
        """The share of the requests within the SLO."""
        low, high = self.option.attainment_interval
        return {"value": self.later.attainment, "low": low, "high": high}

    @property
    def grade(self) -> Grade | Literal["today"]:
        """Whether to change to it."""
        return self.option.judged.grade if self.id else "today"

    @property
    def gain(self) -> Mapping[str, Gain | float]:
        """What it gains."""
        gain: dict[str, Gain | float] = dict(self.later.gains)
        if self.id:
            first = self.tuned.plan.today.judged.later
            gain["attainment"] = self.later.attainment_gain
            gain["throughput"] = self.later.served_per_s / first.served_per_s - 1
        return gain

    @property
    def worth(self) -> PolicyWorth | None:
        """What the policy is worth."""
        of_choice = self.option.judged is self.tuned.tuning.choice
        return PolicyWorth(self.tuned) if of_choice else None


class PricedReplicas(Struct, frozen=True):
    """The fewest replicas that meet the SLO, and their price: `extra_price_hour` above now's."""

    DOCUMENT: ClassVar[str] = "*fewest price_hour extra_price_hour"
    fewest: FewestReplicas
    tuned: Recommendation

    @property
    def price_hour(self) -> float | None:
        """The price of the replicas for an hour."""
        replicas = self.fewest.replicas
        return None if replicas is None else self.tuned.price_hour(replicas)

    @property
    def extra_price_hour(self) -> float | None:
        """How much it is above the price of the present ones, below it where negative."""
        replicas, now = self.fewest.replicas, self.tuned.tuning.replicas
        return None if replicas is None else self.tuned.price_hour(replicas - now)


class Change(Struct, frozen=True):
    """What to run, what it gives on the held-out window, and why.

    `lru` and `choice`, the policy chosen on the validation window, have all figures of both
    windows; `choice` is null if no policy may be recommended. `grade` says whether to change the
    policy now (do-now), on a canary first, or not (no), wherever the SLO lies; `slo_met` whether
    what is to be run meets it, `lru_slo_met` whether LRU does, `certain` whether the verdict is the
    same at all ends. Without a change, `requests_needed` would probably show that one pays, null
    where more requests than the `requests` of the trace would not. `enough` meets the SLO at a
    larger capacity. `why_no_flags` is empty where there are flags. `capacity_hbm` is a multiple of
    the GPU memory. `replicas_at_least` meet the SLO with LRU, or at least keep up, at
    `replicas_price_hour`: `extra_price_hour` more than now, which a switch saves. Up to
    `replicas_tried` were tried. `fewest` are those of a deployment that meet the SLO, with LRU and
    with the choice.
    """

    DOCUMENT: ClassVar[str] = (
        "verdict=tuned.verdict grade=tuned.grade slo_met=tuned.tuning.slo_met"
        " lru_slo_met=tuned.tuning.lru_slo_met requests=tuned.tuning.split.requests"
        " requests_needed certain=tuned.tuning.certain policy=expected.policy.name"
        " leaves params capacity_blocks=expected.capacity_blocks"
        " capacity_tokens capacity_bytes capacity_gib capacity_hbm baseline=tuned.tuning.baseline"
        " expected enough=tuned.tuning.enough gain lru=tuned.tuning.lru choice=tuned.tuning.choice"
        " flags=tuned.flags why_no_flags canary=tuned.canary replicas_at_least"
        " replicas_price_hour extra_price_hour replicas_tried=tuned.tuning.replicas_tried fewest"
    )
    tuned: Recommendation

    @property
    def expected(self) -> WindowTrial:
        """What to run."""
        return self.tuned.recommended

    @property
    def requests_needed(self) -> int | None:
        """How many requests would probably show that a change pays."""
        promising = self.tuned.tuning.promising
        return promising[1] if promising else None

    @property
    def params(self) -> Mapping[str, float]:
        """The policy's parameters, `xi_ms` beside `xi_tokens`."""
        return _params(self.tuned, self.expected)

    @property
    def leaves(self) -> str:
        """Whether only blocks without cached children are evicted."""
        return self.expected.policy.evicts

    @property
    def capacity_tokens(self) -> int:
        """The capacity in tokens."""
        return self.expected.capacity_blocks * self.tuned.trace.block_size

    @property
    def capacity_bytes(self) -> int | None:
        """The capacity in bytes, None without a model."""
        return self.tuned.bytes_in(self.expected.capacity_blocks)

    @property
    def capacity_gib(self) -> float | None:
        """The capacity in GiB, None without a model."""
        return None if self.capacity_bytes is None else self.capacity_bytes / GIB

    @property
    def capacity_hbm(self) -> float | None:
        """The capacity as a multiple of the GPU memory."""
        hbm = self.tuned.hbm_bytes
        return self.capacity_bytes / hbm if self.capacity_bytes is not None and hbm else None

    @property
    def gain(self) -> Mapping[str, Gain]:
        """Shares by which figures are below LRU's."""
        none = dict.fromkeys(self.tuned.tuning.infinite.gains, Gain(0.0, 0.0, 0.0))
        return self.expected.gains or none

    @property
    def why_no_flags(self) -> str:
        """Why there are no flags."""
        return self.tuned.why_no_flags()

    @property
    def replicas_at_least(self) -> int | None:
        """The replicas that LRU needs."""
        tuning = self.tuned.tuning
        return tuning.replicas_needed or tuning.load.replicas_at_least

    @property
    def replicas_price_hour(self) -> float | None:
        """Their price for an hour."""
        needed = self.replicas_at_least
        return self.tuned.price_hour(needed) if needed else None

    @property
    def extra_price_hour(self) -> float | None:
        """How much that is above the price of the present ones."""
        needed = self.replicas_at_least
        return self.tuned.price_hour(needed - self.tuned.tuning.replicas) if needed else None

    @property
    def fewest(self) -> tuple[PricedReplicas, ...]:
        """The fewest replicas that meet the SLO."""
        searches = self.tuned.tuning.fewest_lru, self.tuned.tuning.fewest_choice
        return tuple(PricedReplicas(each, self.tuned) for each in searches if each)


class RowDoubt(Struct, frozen=True):
    """Why no tier is to be added, and the row that comes nearest; `ends` are where it harms."""

    why: TierReason
    row: int | None
    ends: tuple[str, ...]


class Tuned(Struct, frozen=True):
    """What `kvscope tune` recommends, what that rests on, and all that was tried.

    `rows` are the options, the deployment as it is first, then by price. `do_now` and `canary` are
    the row of the policy to change to, `to_meet` that to meet the SLO with, `add_tier` that with
    the memory to add, where `--tiers` asks for it: null for none, `tier_doubt` says why. `recorded`
    is null where the trace has no TTFTs. The present hardware stays within `reachable_ms`;
    `unreachable`: no cache meets the SLO. `changes` are the contenders, the preferred one first.
    `infinite` is an infinite cache on the validation window, `limit` one on both later windows, as
    `oracles` are, which know the future and bound no TTFT; `explored` is on the training window.
    """

    DOCUMENT: ClassVar[str] = (
        "*setting target=tuned.tuning.target model=tuned.model deployment=tuned.deployment"
        " capacity_blocks=tuned.tuning.capacity_blocks"
        " capacity_origin=tuned.tuning.capacity_origin replicas=tuned.tuning.replicas"
        " warnings=tuned.warnings words recommendation rows do_now canary to_meet add_tier"
        " tier_doubt rejected_tiers=tuned.plan.rejected reachable_ms=tuned.plan.promise_s"
        " unreachable flags=tuned.flags enough_requests recorded=tuned.recorded"
        " load=tuned.tuning.load changes=tuned.tuning.contenders infinite=tuned.tuning.infinite"
        " limit=tuned.tuning.limit oracles=tuned.tuning.oracles least_capacity"
        " explored=tuned.tuning.explored split=tuned.tuning.split ends=tuned.tuning.ends"
        " assumptions=tuned.assumptions trace=tuned.trace"
    )
    tuned: Recommendation

    @property
    def setting(self) -> SettingFacts:
        """What the numbers count and assume."""
        return SettingFacts(self.tuned.tuning.setting)

    @property
    def words(self) -> tuple[str, ...]:
        """The verdict in sentences."""
        from kvscope.report.recommendation import verdict_in_words

        return tuple(verdict_in_words(self.tuned))

    @property
    def recommendation(self) -> Change:
        """What to run."""
        return Change(self.tuned)

    @property
    def rows(self) -> tuple[PlanRow, ...]:
        """The options."""
        options = enumerate(self.tuned.plan.options)
        return tuple(PlanRow(number, option, self.tuned) for number, option in options)

    @property
    def do_now(self) -> int | None:
        """The row of the policy to change to now."""
        return self._choice("do-now")

    @property
    def canary(self) -> int | None:
        """The row of the policy to try on a canary first."""
        return self._choice("canary")

    def _choice(self, grade: Grade) -> int | None:
        tuning = self.tuned.tuning
        if tuning.grade != grade:
            return None
        options = self.tuned.plan.options
        return next(at for at, option in enumerate(options) if option.judged is tuning.choice)

    @property
    def to_meet(self) -> int | None:
        """The cheapest row that meets the SLO."""
        return self._place(self.tuned.plan.cheapest)

    @property
    def add_tier(self) -> int | None:
        """The row with the memory to add."""
        return self._place(self.tuned.plan.tier)

    @property
    def tier_doubt(self) -> RowDoubt | None:
        """Why no tier is to be added."""
        doubt = self.tuned.plan.tier_doubt
        if doubt is None:
            return None
        return RowDoubt(doubt.why, self._place(doubt.option), doubt.ends)

    def _place(self, option: PlanOption | None) -> int | None:
        return None if option is None else self.tuned.plan.options.index(option)

    @property
    def unreachable(self) -> bool:
        """Whether no cache meets the SLO."""
        return self.tuned.tuning.verdict == "unreachable"

    @property
    def enough_requests(self) -> Mapping[Literal["have", "need"], int | None]:
        """The requests of the trace, and how many would probably show that a change pays."""
        needed = self.recommendation.requests_needed
        return {"have": self.tuned.tuning.split.requests, "need": needed}

    @property
    def least_capacity(self) -> Mapping[Literal["lru", "best"], RequiredCapacity | None]:
        """The least capacity of a cache study that meets the SLO: with LRU, and any policy."""
        return {"lru": self.tuned.tuning.least_lru, "best": self.tuned.tuning.least_any}
