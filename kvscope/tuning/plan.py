"""The plan: possible changes of a deployment, all judged on the same later requests.

An option is the deployment with another policy, memory below each pool, more replicas behind a
router, or another machine, or a combination that may be worth its price. Each is replayed on the
same simulated engine and compared with the present deployment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, Self

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.core.units import duration_in_words, format_size
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.fleet.disaggregated import Link, PrefillSplit, Stages
from kvscope.fleet.options import RANKS_ROUTER, Scaling, router_label
from kvscope.fleet.scaling import schedule
from kvscope.fleet.sweep import Fleet, FleetSweep
from kvscope.policies.base import GUARD, Policy
from kvscope.policies.lru import Lru, LruRetention
from kvscope.replay.curve import first_counted
from kvscope.replay.workload import Workload
from kvscope.routers.base import Router
from kvscope.tuning.comparison import Canary, Window, WindowTrial
from kvscope.tuning.least import MOST_REPLICAS, fewest, least_for_lru, most_tried
from kvscope.tuning.replicas import SESSION, fleet_sweep
from kvscope.tuning.rule import Judged, LaterWindows, SloAnswer, slo_answer
from kvscope.tuning.target import LIKELY
from kvscope.tuning.tiers import TierCandidate, TierOffer, TierRejection, TierSearch, nearest
from kvscope.tuning.trial import Advance, Trial
from kvscope.tuning.tuner import End, Tuner, TuningResult, eligible_at, lossless

SLOW_COPIES = 3.0
"""Factor on modelled copy times at which a tier must still do no harm."""
FULL_DISK = End("a disk full of other files")
_SEARCHED = 2  # routers whose parameters are searched
_ROUTER_ROWS = 4  # routers that are options, the best of those to compare
_TRIED_AT_ENDS = 3  # tiers, until one does no harm there

TierReason = Literal["overloaded", "no-gain", "too-dear", "costs-more", "met-without", "uncertain"]


class ReplicaMachine(Struct, frozen=True):
    """Another machine for a replica: its deployment, and its pool in blocks of the trace.

    With `kv_cache_bytes` it is the present machine with that much KV memory on each GPU.
    """

    where: ResolvedDeployment
    capacity_blocks: int
    kv_cache_bytes: int | None = None

    @classmethod
    def of(cls, where: ResolvedDeployment, block_size: int, kv_cache_bytes: int | None) -> Self:
        """Return the machine of a deployment, for a trace with blocks of `block_size` tokens."""
        return cls(where, where.pool.in_blocks_of(block_size).blocks, kv_cache_bytes)

    @property
    def name(self) -> str:
        """The machine in words: `2 x h100 in fp8` (if stated), or `40 GiB for KV`."""
        if self.kv_cache_bytes is not None:
            return f"{format_size(self.kv_cache_bytes)} for KV"
        gpu, dtype = self.where.gpu, self.where.stated.weight_dtype
        name = f"{self.where.tp} x {gpu.name if gpu else 'unknown GPU'}"
        return f"{name} in {dtype}" if dtype else name

    def under(self, workload: Workload) -> Workload:
        """Return a workload with the engine and latency of this machine."""
        where = self.where
        groups = where.kv_groups_for(workload.prompts.block_size)
        return workload.on_engine(
            where.latency,
            where.max_num_seqs,
            where.max_num_batched_tokens,
            engine=where.engine.simulated_as if where.engine.name == "vllm" else None,
            kv_groups="" if groups is None else groups.text,
        )


class OptionChange(Struct, frozen=True):
    """A change of a deployment; `machine` is None for the present machine.

    `tier` is memory below each pool, `seed` for random routers. With `scaling`, up to `replicas`
    replicas start and stop with the load; with a `split` some prefill and the others decode.
    """

    policy: Policy
    replicas: int
    tier: TierCandidate | None = None
    machine: ReplicaMachine | None = None
    router: Router = SESSION
    seed: int = 0
    scaling: Scaling | None = None
    split: PrefillSplit | None = None


class PlanOption(Struct, frozen=True):
    """One option on the later requests; `judged` compares it with the present deployment.

    None means: `machine`: the present one, `router`: one replica, `tier` (below each replica): no
    tier, `price_hour`: unknown prices. `attainment_interval` is the 95 % interval of the share of
    requests within the SLO. `meets_target` is `Trial.meets`; `slo` also counts the percentile's
    interval and uncertain inputs. `saves_hour` is the price of the GPU time saved, None if unknown
    or with a `machine`. `written_bytes_s` is the write rate to each replica's tier,
    `tier_hour` that tier's price per hour, `wear` its writes as a multiple of those that the memory
    is rated for. With `scaling`, replicas start and stop with the load, and `price_hour` is of
    `mean_replicas`; with a `split`, some prefill and the others decode.
    """

    judged: Judged
    machine: ReplicaMachine | None
    replicas: int
    router: Router | None
    tier: TierCandidate | None
    price_hour: float | None
    slo: SloAnswer
    attainment_interval: tuple[float, float]
    meets_target: bool
    saves_hour: float | None
    written_bytes_s: float = 0.0
    tier_hour: float = 0.0
    wear: float = 0.0
    scaling: Scaling | None = None
    mean_replicas: float | None = None
    split: PrefillSplit | None = None

    @property
    def policy(self) -> Policy:
        """The policy, with its parameters."""
        return self.judged.policy

    @property
    def trial(self) -> Trial:
        """The option's trial on the later requests."""
        return self.judged.later

    @property
    def in_words(self) -> str:
        """The option and its figures in one line."""
        trial = self.trial
        below = self.tier.in_words if self.tier else ""
        name = self.label(self.policy.name, below)
        figures = f"{trial.outcome.token_hit_rate:.1%} hits, {duration_in_words(trial.target_s)}"
        return f"{name}: {figures}, {trial.attainment:.1%} within the SLO ({self.slo})"

    def label(self, policy: str, tier: str) -> str:
        """Return `2 replicas, session, gittins + 64 GiB CPU tier` from texts of policy and tier.

        Rows are narrow: of several replicas with a tier each, the policy is left out if it is LRU.
        The router of one engine's ranks is left out, too.
        """
        parts = [f"{policy} + {tier}" if tier else policy]
        if self.router is not None:
            parts = [tier] if tier and policy == Lru.name else parts
            ranks = self.router.name == RANKS_ROUTER
            behind = "ranks" if ranks else f"replicas, {router_label(self.router)}"
            count = f"{self.replicas:,}"
            if self.scaling is not None:
                count = f"{self.scaling.low} to {count}"
            if self.split is not None:
                prefill = self.split.prefill
                count = f"{prefill} prefill + {self.replicas - prefill} decode"
            parts.insert(0, f"{count} {behind}")
        if self.machine is not None:
            parts.insert(0, self.machine.name)
        return ", ".join(parts)

    @property
    def elsewhere(self) -> bool:
        """Whether it is on another machine; other KV memory on the present one does not count."""
        return self.machine is not None and self.machine.kv_cache_bytes is None

    @property
    def meets(self) -> bool:
        """Whether the SLO is met on the later requests, without regard to extremes of inputs."""
        return self.judged.keeps_up and self.meets_target

    @property
    def cost(self) -> tuple[object, ...]:
        """The sort key: price, machine, replicas, memory, scaling or split, policy, attainment."""
        price = math.inf if self.price_hour is None else round(self.price_hour, 2)  # as shown
        sizes = self.tier.sizes if self.tier else (0, 0)
        replicas = round(self.mean_replicas or self.replicas, 1)
        here = price, self.machine is not None, replicas, sizes
        varied = self.scaling is not None or self.split is not None
        return *here, varied, self.policy.name != Lru.name, -self.trial.attainment

    @property
    def full_s(self) -> float | None:
        """Time (s) until files fill their disk if each write adds; None without, or if evicted."""
        if self.tier is None or not self.tier.keeps_files:
            return None
        writing = self.replicas if self.tier.pool else 1
        return self.tier.files_bytes / max(writing * self.written_bytes_s, 1e-9)


class TierDoubt(Struct, frozen=True):
    """Why no tier is to be added, and the option that came closest to it (None: no tier).

    - overloaded: the queue grows with every tier, and without.
    - no-gain: no tier is harmless and likely better than the free option.
    - too-dear: the tiers with a gain cost as much as another replica.
    - met-without: the SLO is met without a tier, and no GPU price is known to value one.
    - costs-more: the SLO is met without a tier, and no tier saves more GPU time than it costs.
    - uncertain: it breaks limits or saves too little at extremes of the inputs, such as `copies 3x
      as long`, whose names are in `ends`.
    """

    why: TierReason
    option: PlanOption | None = None
    ends: tuple[str, ...] = ()


class TuningPlan(Struct, frozen=True):
    """The options: the present deployment first, then by price.

    `worth_blocks` is the extra LRU capacity that would match the chosen policy's percentile; None
    without a choice, or if no LRU cache matches it. `unguarded` is that policy without its guard,
    None if its parameter `guard` is 0 or missing. `tier` is the option to add memory below the
    pools, if requested and worth its price, and `tier_canary` its canary test; else `tier_doubt`
    has the reason. `free` is the option at no cost: the policy to change to now, else LRU;
    `beyond_free` compares the tier with it. With `rejected` tiers, some requests never start.
    """

    options: tuple[PlanOption, ...]
    worth_blocks: int | None = None
    unguarded: WindowTrial | None = None
    tier: PlanOption | None = None
    free: PlanOption | None = None
    beyond_free: WindowTrial | None = None
    tier_canary: Canary | None = None
    tier_doubt: TierDoubt | None = None
    rejected: tuple[TierRejection, ...] = ()

    @property
    def today(self) -> PlanOption:
        """The present deployment, with LRU."""
        return self.options[0]

    @property
    def cheapest(self) -> PlanOption | None:
        """The cheapest option with `slo` "meets", else with `meets` true; None without either.

        Excluded: options that reject more requests than today (a percentile can hide that), and
        options on the present machine that break limits.
        """
        most = self.today.trial.rejected
        sound = [
            each
            for each in self.options
            if each.trial.rejected <= most and (each.elsewhere or not each.judged.harms)
        ]
        known = [each for each in sound if each.slo == "meets"]
        known = known or [each for each in sound if each.meets]
        return min(known, key=lambda option: option.cost, default=None)

    @property
    def promise_s(self) -> float:
        """The TTFT percentile (s) that the present hardware can promise; infinite if none.

        It is the lowest upper end of the 95 % intervals of LRU and of policies to change to now,
        without those whose queue grows.
        """
        today = self.today.cost[:5]
        ends = (
            each.judged.later.interval_s[1]
            for each in self.options
            if each.cost[:5] == today
            and each.judged.keeps_up
            and (each is self.today or each.judged.grade == "do-now")
        )
        return min(ends, default=math.inf)


class Planner:
    """Judges the options of a deployment after its policies were compared.

    `on_option` is called with each option as soon as it is judged.
    """

    def __init__(
        self,
        tuner: Tuner,
        result: TuningResult,
        replica_hour: float | None,
        *,
        tiers: TierOffer | None = None,
        routers: Sequence[Router] = (),
        machines: Sequence[ReplicaMachine] = (),
        scaling: Scaling | None = None,
        link: Link | None = None,
        on_option: Callable[[PlanOption], None] = lambda _: None,
    ) -> None:
        self._tuner, self._result = tuner, result
        self._replica_hour, self._machines = replica_hour, machines
        self._tiers, self._routers, self._on_option = tiers, routers, on_option
        self._scaling, self._link = scaling, link
        self._ends = [each.end for each in result.ends if each.end.sessions is None]
        self._rejected: dict[TierCandidate, TierRejection] = {}

    def plan(self) -> TuningPlan:
        """Return the plan; options are replayed at the extremes of uncertain inputs, too."""
        result, router = self._result, self._tuner.options.router
        as_it_is = OptionChange(Lru(), result.replicas, router=router)
        today = self._option(as_it_is, result.lru, result.lru_slo_met)
        options = [today]
        if result.choice is not None:
            change = replace(as_it_is, policy=result.choice.policy)
            options.append(self._option(change, result.choice, result.slo_met))
        for option in options:
            self._on_option(option)
        changes = list(self._changes())
        with self._tuner.progress("judging the options", len(changes)) as advance:
            options += self._judged_all(changes, advance)
            worth, unguarded = self._worth_blocks(), self._unguarded()
            tier, doubt = self._tier_to_add(options)
        canary = beyond = None
        free, later = self._free(options), self._tuner.windows.later
        if tier is not None:
            beyond = self._against(free, tier)
            canary = later.canary(free.judged.later, tier.judged.later, result.replicas)
        return TuningPlan(
            (today, *sorted(options[1:], key=lambda option: option.cost)),
            worth_blocks=worth,
            unguarded=unguarded,
            tier=tier,
            free=free,
            beyond_free=beyond,
            tier_canary=canary,
            tier_doubt=doubt,
            rejected=tuple(self._rejected.values()),
        )

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_on_option": None}  # of the process that users see

    def _judged_all(self, changes: Sequence[OptionChange], advance: Advance) -> list[PlanOption]:
        """Return the judged options, replayed on all cores; rejected tiers are left out."""
        later = self._tuner.windows.later.evaluator
        later.prepare([change.policy for change in changes])
        options = []

        def show(judged: PlanOption | TierRejection) -> None:
            if isinstance(judged, PlanOption):
                self._on_option(judged)

        me = later.executor.shared(self)
        for each in later.each(Planner._judged, changes, me, advance=advance, on_result=show):
            if isinstance(each, TierRejection):
                self._rejected[each.candidate] = each
            else:
                options.append(each)
        return options

    def _changes(self) -> Iterator[OptionChange]:
        """Yield all changes to replay, except of the policy alone, which the result has already."""
        result, lru = self._result, Lru()
        tiered = list(self._tiered())
        yield from [*tiered, *self._tiered_replicas(tiered)]
        least = math.inf  # as many replicas with the policy are no other option
        for each in (result.fewest_lru, result.fewest_choice):
            if each is not None and result.replicas < (each.replicas or 0) < least:
                least = each.replicas or 0
                yield OptionChange(each.policy, least)
        none_meets = result.fewest_lru is not None and least == math.inf
        if none_meets and result.load.replicas_at_least and not result.lru.later.rejected:
            yield OptionChange(lru, result.load.replicas_at_least)  # which ends the queue
        alone = result.fewest_lru is not None and result.fewest_lru.replicas == 1
        if self._routers and not alone:  # one replica needs no router
            yield from self._routed()
        if self._scaling is not None:
            yield OptionChange(lru, self._scaling.high, scaling=self._scaling)
        if self._link is not None:
            yield from self._apart(self._link)
        for machine in self._machines:
            change = OptionChange(lru, 1, machine=machine)
            if machine.kv_cache_bytes is not None:  # on the GPUs that are there
                router = self._tuner.options.router
                here = replace(change, replicas=result.replicas, router=router)
                yield here
                if result.choice is not None:
                    yield replace(here, policy=result.choice.policy)
                continue
            counts = range(1, MOST_REPLICAS + 1)
            yield replace(change, replicas=self._fewest(change, counts) or 1)

    def _tiered(self) -> Iterator[OptionChange]:
        """Yield tiers below the present replicas with LRU, and the best one with the chosen policy.

        For a hybrid model, whose policy is a retention interval, other intervals are searched too.
        """
        result, offer = self._result, self._tiers
        if offer is None:
            return
        search = TierSearch(offer, self._tuner)
        with self._tuner.progress("replaying tiers") as advance:
            tiered = search.worth_an_option(Lru(), result.lru.validation, advance)
        self._rejected |= search.rejected
        if result.choice is not None:
            tiered += [(tier, result.choice.policy) for tier, _ in tiered[:1]]
        for tier, policy in tiered:
            if offer.runs(tier, policy):
                yield OptionChange(policy, result.replicas, tier)

    def _routed(self) -> Iterator[OptionChange]:
        """Yield the fewest replicas behind the best routers, with LRU and the chosen policy.

        A parameter of the best two routers takes another value if that saves replicas.
        """
        result, later = self._result, self._tuner.windows.later.evaluator
        sweep = fleet_sweep(later.workload, result.capacity_blocks, result.target)
        most = most_tried(result.replicas)

        def sized(routers: Sequence[Router], policy: Policy) -> list[OptionChange]:
            label, before = f"searching routers with {policy.name}", (sweep, policy, most)
            with self._tuner.progress(label, len(routers)) as advance:
                for _ in sweep.prepare([Fleet(router, policy, 1) for router in routers]):
                    later.require_going()
                changes = later.each(_fewest_behind, list(routers), *before, advance=advance)
            known = [each for each in changes if each is not None]
            return [change for _, change in sorted(known, key=lambda each: each[0])]

        best = sized(self._routers, Lru())
        for place, usual in enumerate(best[:_SEARCHED]):  # a value has to save replicas
            for change in sized(list(_searched(usual.router)), Lru()):
                if change.replicas < best[place].replicas:
                    best[place] = change
        if result.choice is not None and best and result.setting.kv_groups == "":
            best = [*best[:_ROUTER_ROWS], *sized([best[0].router], result.choice.policy)]
        for change in best[: _ROUTER_ROWS + 1]:
            if change.router.name != SESSION.name and change.replicas > 1:
                yield change

    def _apart(self, link: Link) -> Iterator[OptionChange]:
        """Yield the fewest replicas that meet the SLO with separate prefill and decode, with LRU.

        If the SLO has no TPOT, today's TPOT is the limit.
        """
        result, later = self._result, self._tuner.windows.later.evaluator
        sweep = fleet_sweep(later.workload, result.capacity_blocks, result.target)
        tpot_s = result.target.tpot_slo_s or result.lru.later.tpot_s
        together = result.fewest_lru.replicas if result.fewest_lru else None
        most = 2 * max(together or 1, result.replicas) + 2
        with self._tuner.progress("replaying prefill and decode replicas"):
            fleet = Fleet(SESSION, Lru(), 2)
            stages = Stages(sweep, fleet, link, tpot_s, require_going=later.require_going)
            split = stages.fewest(most)
        if split is not None:
            yield OptionChange(Lru(), split.replicas, split=PrefillSplit(split.prefill, link))

    def _tiered_replicas(self, tiered: Sequence[OptionChange]) -> Iterator[OptionChange]:
        """Yield the fewest replicas for the SLO with the first tier, if cheaper than without."""
        offer, lru, hour = self._tiers, self._result.fewest_lru, self._replica_hour or 1.0
        tier = tiered[0].tier if tiered else None
        if offer is None or tier is None or lru is None or lru.replicas is None:
            return
        below = offer.price_hour(tier, self._result.replicas) if self._replica_hour else 0.0
        with_tier = hour + below
        most = math.ceil(lru.replicas * hour / with_tier)
        if replicas := self._fewest(tiered[0], range(self._result.replicas + 1, most)):
            yield replace(tiered[0], replicas=replicas)

    def _fewest(self, change: OptionChange, counts: Sequence[int]) -> int | None:
        """Return the fewest of `counts` replicas that meet the SLO with a change, or None."""
        later, blocks = self._tuner.windows.later, self._blocks(change)

        def meets(replicas: int) -> bool:
            window = self._windows(replace(change, replicas=replicas), (later,))[0]
            trial = window.measure(change.policy, blocks)
            return trial.keeps_up and trial.meets(self._result.target)

        return fewest(partial(map, meets), counts)

    def _blocks(self, change: OptionChange) -> int:
        return (change.machine or self._result).capacity_blocks

    def _windows(
        self,
        change: OptionChange,
        windows: Sequence[Window],
        end: End | None = None,
        copies: float = 1.0,
    ) -> list[Window]:
        """Return `windows` of the changed deployment; tier copies take `copies` times as long.

        Prefills take `end.prefill_times` as long; its capacity and sessions are not applied.
        """
        tier = None
        if self._tiers is not None and change.tier is not None:
            tier = self._tiers.below(change.tier, copies)

        def workload(known: Workload) -> Workload:
            known = change.machine.under(known) if change.machine else known
            return known.with_prefill(end.prefill_times) if end else known

        return [
            each.of(
                each.evaluator.over(
                    replicas=change.replicas,
                    workload=workload(each.evaluator.workload),
                    tier=tier,
                    router=change.router,
                    seed=change.seed,
                    scaling=change.scaling,
                    split=change.split,
                )
            )
            for each in windows
        ]

    def _judged(self, change: OptionChange) -> PlanOption | TierRejection:
        """Return the option of a change, judged, or the engine's rejection of its tier."""
        result, windows = self._result, self._tuner.windows
        known = windows.validation, windows.held_out, windows.later
        blocks = self._blocks(change)
        try:
            changed = LaterWindows(*self._windows(change, known))
            judged = changed.judge(change.policy, blocks, result.lru)
            ends = []
            for end in self._ends:
                at_end = end.capacity_blocks if change.machine is None else None
                evaluator = self._windows(change, (windows.held_out,), end)[0].evaluator
                ends.append(evaluator.trial_at(change.policy, at_end or blocks))
        except UsageError as error:
            if change.tier is None:
                raise
            return TierRejection(change.tier, error.what)
        return self._option(change, judged, slo_answer(result.target, judged, ends))

    def _free(self, options: Sequence[PlanOption]) -> PlanOption:
        """Return the option at no cost: the policy to change to now, if certain, else LRU."""
        return options[self._result.grade == "do-now" and not self._result.disagreeing]

    def _tier_to_add(
        self, options: Sequence[PlanOption]
    ) -> tuple[PlanOption | None, TierDoubt | None]:
        """Return the option with the tier to add, or why there is none; neither if none was wanted.

        With as many replicas as now, each tier is compared with the free option. If that option
        misses the SLO, take the cheapest tier that meets it; if none does, the cheapest of those
        near the lowest percentile, preferably of tiers that save their price; tiers as dear as
        another replica are excluded. If the free option meets the SLO, take the tier with the
        largest net saving. A tier must not break limits, nor at the extremes of uncertain inputs.
        """
        result, offer = self._result, self._tiers
        if offer is None or not offer.chooses:
            return None, None
        free = self._free(options)
        sound = {Lru.name, LruRetention.name, free.policy.name}
        tiered = [
            each
            for each in options
            if each.tier and each.replicas == result.replicas and each.policy.name in sound
        ]
        fastest = min(tiered, key=lambda option: option.trial.target_s, default=None)
        if not any(option.judged.keeps_up for option in (free, *tiered)):
            return None, TierDoubt("overloaded", fastest)
        harmless = [
            option
            for option in tiered
            if option.judged.keeps_up
            and not option.judged.harms
            and not self._against(free, option).harms
        ]
        net = partial(self._net_hour, free)
        if met := free.judged.meets(result.target) and free.judged.keeps_up:
            able = sorted((each for each in harmless if net(each) > 0), key=net, reverse=True)
            if not able:
                why: TierReason = "costs-more" if harmless else "no-gain"
                if offer.replica_hour is None:
                    why = "met-without"
                return None, TierDoubt(why, max(tiered, key=net, default=None))
        else:
            likely = [each for each in harmless if self._against(free, each).likely >= LIKELY]
            another = math.inf if self._replica_hour is None else self._replica_hour
            able = [each for each in likely if each.replicas * each.tier_hour < another]
            if not able:
                doubtful = likely or ([fastest] if fastest else [])
                least = min(doubtful, key=lambda option: option.cost, default=None)
                return None, TierDoubt("too-dear" if likely else "no-gain", least)
            able = nearest(
                able,
                lambda option: option.judged.meets(result.target),
                lambda option: net(option) > 0,
                lambda option: option.judged.validation.target_s,
            )
            able.sort(key=lambda option: option.cost)
        first: TierDoubt | None = None
        for option in able[:_TRIED_AT_ENDS]:
            ends = tuple(self._fails_at(free, option, pays=met))
            if not ends:
                return option, None
            first = first or TierDoubt("uncertain", option, ends)
        return None, first

    def _net_hour(self, free: PlanOption, option: PlanOption) -> float:
        """Return an option's net saving per hour, minus infinity without a GPU price.

        It is the price of GPU time saved less the tier's: on the validation window or on all later
        requests, whichever is lower.
        """
        if self._replica_hour is None:
            return -math.inf
        freed = min(
            its.utilization - own.utilization
            for its, own in (
                (free.judged.validation, option.judged.validation),
                (free.judged.later, option.judged.later),
            )
        )
        return option.replicas * (freed * self._replica_hour - option.tier_hour)

    def _against(self, free: PlanOption, option: PlanOption) -> WindowTrial:
        """Return a tier's trial on the later requests, compared with the free option."""
        if free.policy.name == Lru.name:
            return option.judged.later
        return self._tuner.windows.later.against(free.judged.later, option.judged.later)

    def _fails_at(self, free: PlanOption, option: PlanOption, *, pays: bool) -> Iterator[str]:
        """Yield the extremes where a tier breaks limits or, with `pays`, does not save its price.

        Extremes: of pool, latency or session starts (the result's `ends`), slow copies and, for
        files that are never evicted, a full disk: only CPU memory stores; look-ups of files miss.
        """
        result, tier = self._result, option.tier
        slow = End(f"copies {SLOW_COPIES:g}x as long")
        ends = [(each.end, 1.0, tier) for each in result.ends]
        ends.append((slow, SLOW_COPIES, tier))
        if tier is not None and tier.keeps_files:
            ends.append((FULL_DISK, 1.0, replace(tier, files_bytes=1)))
        for end, copies, there in ends:
            windows = self._tuner.at_end(end)
            blocks = end.capacity_blocks or result.capacity_blocks
            change = OptionChange(option.policy, option.replicas, there)
            every = windows.validation, windows.held_out, windows.later
            before = windows.judge(free.policy, blocks)
            try:
                changed = LaterWindows(*self._windows(change, every, copies=copies))
                judged = changed.judge(option.policy, blocks, before)
            except UsageError:
                yield end.name
                continue
            net = self._net_hour(replace(free, judged=before), replace(option, judged=judged))
            unpaid = pays and end is not FULL_DISK and not net > 0
            if unpaid or not eligible_at(end, judged, before, option.judged.grade):
                yield end.name

    def _worth_blocks(self) -> int | None:
        """Return how many more blocks LRU needs to match the choice, None if none suffice."""
        choice, capacity = self._result.choice, self._result.capacity_blocks
        if choice is None:
            return None
        later = self._tuner.windows.later.evaluator
        aim = replace(self._result.target, slo_s=choice.later.target_s, tpot_slo_s=None)
        least = least_for_lru(later.aiming(aim), capacity, lossless(later))
        return None if least is None else least.capacity_blocks - capacity

    def _unguarded(self) -> WindowTrial | None:
        choice, name = self._result.choice, GUARD.name
        if choice is None or not choice.policy.values.get(name):
            return None
        policy = choice.policy
        free = type(policy)({**policy.values, name: 0.0}, policy.evicts)
        later = self._tuner.windows.later
        return later.measure(free, self._result.capacity_blocks, self._result.lru.later)

    def _option(self, change: OptionChange, judged: Judged, slo: SloAnswer) -> PlanOption:
        machine, price, offer = change.machine, self._replica_hour, self._tiers
        if machine is not None:
            price = machine.where.price_of(machine.where.tp)
        written = tier_hour = wear = 0.0
        if offer is not None and change.tier is not None:
            workload = self._tuner.windows.later.evaluator.workload
            written = offer.written_bytes_s(judged.later, workload) / change.replicas
            tier_hour = offer.price_hour(change.tier, change.replicas, written)
            wear = offer.wear(change.tier, change.replicas, written)
        saves = None
        if machine is None and price is not None:
            used = self._result.lru.later.utilization * self._result.replicas
            saves = (used - judged.later.utilization * change.replicas) * price
        paid: float = change.replicas
        if change.scaling is not None:
            paid = self._mean_replicas(change.scaling)
        bootstrap = self._tuner.windows.later.bootstrap
        low, high = bootstrap.interval(judged.later.resampled, "violations")
        return PlanOption(
            judged=judged,
            machine=machine,
            replicas=change.replicas,
            router=change.router if change.replicas > 1 else None,
            tier=change.tier,
            price_hour=None if price is None else paid * (price + tier_hour),
            slo=slo,
            attainment_interval=(1 - high, 1 - low),
            meets_target=judged.later.meets(self._result.target),
            saves_hour=saves,
            written_bytes_s=written,
            tier_hour=tier_hour,
            wear=wear,
            scaling=change.scaling,
            mean_replicas=None if change.scaling is None else paid,
            split=change.split,
        )

    def _mean_replicas(self, scaling: Scaling) -> float:
        """Return the mean number of replicas over the time of the later requests."""
        workload = self._tuner.windows.later.evaluator.workload
        arrival_s = workload.prompts.arrival_s
        first = first_counted(workload.prompts, workload.setting.definition)
        return schedule(arrival_s, scaling).mean(float(arrival_s[first]), float(arrival_s[-1]))


def _fewest_behind(
    sweep: FleetSweep, policy: Policy, most: int, router: Router
) -> tuple[tuple[int, float], OptionChange] | None:
    """Return the fewest replicas behind a router that meet the SLO, as sort key and change.

    The key is replicas, then TTFT percentile (s). None if even `most` replicas miss the SLO. For
    random routers, the worst seed counts.
    """

    def meets(replicas: int) -> bool:
        return sweep.run(Fleet(router, policy, replicas)).meets

    replicas = fewest(partial(map, meets), range(1, most + 1))
    if replicas is None:
        return None
    times = [
        outcome.target_ttft_s for outcome in sweep.run(Fleet(router, policy, replicas)).outcomes
    ]
    worst = max(range(len(times)), key=times.__getitem__)
    change = OptionChange(policy, replicas, router=router, seed=worst)
    return (replicas, times[worst]), change


def _searched(router: Router) -> Iterator[Router]:
    """Yield the router with one parameter changed: each other value to search of each parameter."""
    for parameter in router.parameters:
        for value in parameter.search:
            if value != router.values[parameter.name]:
                yield type(router)({**router.values, parameter.name: value})
