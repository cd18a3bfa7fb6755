"""The plan: changes of a deployment as a table of options, all judged on the same later requests.

An option is the deployment as it is with another policy, a tier of CPU memory below each pool, or
more replicas behind a router, and combinations that can pay. Every one is a replay of the same
simulated engine, and every one is compared with the deployment as it is. The size of a tier is
chosen on the validation window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from kvscope.policies.base import GUARD, Policy
from kvscope.policies.lru import Lru
from kvscope.replay.tier_spec import Tier
from kvscope.tuning.capacity import least_for_lru
from kvscope.tuning.comparison import WindowTrial
from kvscope.tuning.rule import Judged, LaterWindows
from kvscope.tuning.tier_prices import TierPrice
from kvscope.tuning.tier_trial import tier_of
from kvscope.tuning.trial import EngineTier, Trial
from kvscope.tuning.tuner import End, Tuner, TuningResult, lossless
from kvscope.tuning.verdict import SloAnswer, slo_answer

_POOLS = (0.5, 1.0, 2.0, 4.0)
_GIB = 1 << 30
_ALIKE = 0.02  # a difference of the percentile that does not matter


class TierMemory(Struct, frozen=True):
    """CPU memory that may be added below the pool of every replica.

    `offload` is how the engine stores there, as `--offload` takes it. `block_bytes` are those of a
    block over all `gpus` of a replica, each of which has a link of its own.
    """

    offload: str
    block_bytes: int
    gpus: int
    price: TierPrice

    def below(self, size_bytes: int) -> EngineTier:
        """Return a tier of so many bytes, for each replica."""
        tier: Tier = tier_of("dram", size_bytes, self.block_bytes, self.gpus)
        return EngineTier(self.offload, self.block_bytes, (tier,))

    def sizes(self, pool_blocks: int, trace_blocks: int) -> Iterator[int]:
        """Yield sizes to compare, whole GiB where a pool has some, up to what the trace fills."""
        for times in _POOLS:
            size = int(pool_blocks * self.block_bytes * times)
            yield -(-size // _GIB) * _GIB if size >= _GIB else size
            if size >= trace_blocks * self.block_bytes:
                return


class PlanOption(Struct, frozen=True):
    """One option, on the later requests; `judged` compares it with the deployment as it is.

    `router` is None for one replica, `tier_bytes` (of each replica) 0 without a tier, and
    `price_hour` None where prices are not known. `attainment` has the 95 % interval
    `attainment_interval`. `meets_target`: the percentile is within the SLO, whatever its interval.
    """

    judged: Judged
    replicas: int
    router: str | None
    tier_bytes: int
    price_hour: float | None
    slo: SloAnswer
    attainment_interval: tuple[float, float]
    meets_target: bool

    @property
    def policy(self) -> Policy:
        """The policy, with its parameters."""
        return self.judged.policy

    @property
    def trial(self) -> Trial:
        """Its figures on the later requests."""
        return self.judged.later

    @property
    def meets(self) -> bool:
        """Whether the SLO is met on the later requests, as pool and latency are estimated."""
        return self.judged.keeps_up and self.meets_target

    @property
    def cost(self) -> tuple[float, ...]:
        """The sort key of options: price, GPUs, memory; LRU before other policies."""
        price = self.replicas if self.price_hour is None else self.price_hour
        return price, self.replicas, self.tier_bytes, self.policy.name != Lru.name


class Plan(Struct, frozen=True):
    """The options, the deployment as it is first, then by price.

    `worth_blocks` are those of an LRU cache beyond the present one with which LRU has the chosen
    policy's percentile; None without a choice, and where no LRU cache has it. `unguarded` is that
    policy without its guard, None where it has none that can be left out.
    """

    options: tuple[PlanOption, ...]
    worth_blocks: int | None = None
    unguarded: WindowTrial | None = None

    @property
    def today(self) -> PlanOption:
        """The deployment as it is, with LRU."""
        return self.options[0]

    @property
    def cheapest(self) -> PlanOption | None:
        """The cheapest option that meets the SLO; else the one that does as estimated; or None."""
        known = [option for option in self.options if option.slo == "meets"]
        return next(iter(known or [each for each in self.options if each.meets]), None)

    @property
    def promise_s(self) -> float:
        """The TTFT that the present hardware stays within: the least upper end of an interval.

        Of options that keep up and are to be changed to now, or are what is run today.
        """
        price = self.today.cost[:3]
        ends = (
            each.judged.later.interval_s[1]
            for each in self.options
            if each.cost[:3] == price
            and each.judged.keeps_up
            and (each is self.today or each.judged.grade == "do-now")
        )
        return min(ends, default=math.inf)


class Planner:
    """Judges the options of a deployment after its policies were compared."""

    def __init__(
        self,
        tuner: Tuner,
        result: TuningResult,
        router: str,
        replica_hour: float | None,
        memory: TierMemory | None,
    ) -> None:
        self._tuner, self._result, self._router = tuner, result, router
        self._replica_hour, self._memory = replica_hour, memory
        self._ends = [each.end for each in result.ends if each.end.sessions is None]

    def plan(self) -> Plan:
        """Return the options, each judged at both ends of what is not known exactly too."""
        with self._tuner.progress("judging the options"):
            today, *others = self._options()
            worth, unguarded = self._worth_blocks(), self._unguarded()
        options = (today, *sorted(others, key=lambda option: option.cost))
        return Plan(options, worth, unguarded)

    def _unguarded(self) -> WindowTrial | None:
        choice, name = self._result.choice, GUARD.name
        if choice is None or not choice.policy.values.get(name):
            return None
        policy = choice.policy
        free = type(policy)({**policy.values, name: 0.0}, policy.evicts)
        later = self._tuner.windows.later
        return later.measure(free, self._result.capacity_blocks, self._result.lru.later)

    def _worth_blocks(self) -> int | None:
        """Return the blocks that LRU needs beyond the present ones to be as fast as the choice."""
        choice, capacity = self._result.choice, self._result.capacity_blocks
        if choice is None:
            return None
        later = self._tuner.windows.later.evaluator
        aim = replace(self._result.target, slo_s=choice.later.target_s, tpot_slo_s=None)
        least = least_for_lru(later.aiming(aim), capacity, lossless(later))
        return None if least is None else least.capacity_blocks - capacity

    def _options(self) -> Iterator[PlanOption]:
        result = self._result
        here, lru = result.replicas, Lru()
        yield self._option(lru, here, 0, result.lru, result.lru_slo_met)
        policy: Policy | None = None
        if result.choice is not None:
            policy = result.choice.policy
            yield self._option(policy, here, 0, result.choice, result.slo_met)
        policies: list[Policy] = [lru] if policy is None else [lru, policy]
        if size := self._tier_bytes():
            for each in policies:
                yield self._judged(each, here, size)
        if result.replicas_needed is not None:
            yield self._judged(lru, result.replicas_needed, 0)

    def _tier_bytes(self) -> int:
        """Return the least size that meets the SLO with LRU in the validation window.

        Where none does, the least of those with about the lowest percentile; 0 where no tier can be
        added or none helps.
        """
        memory, capacity = self._memory, self._result.capacity_blocks
        if memory is None:
            return 0
        evaluator, target = self._tuner.windows.validation.evaluator, self._result.target
        best, least_s = 0, self._result.lru.validation.target_s
        for size in memory.sizes(capacity, len(evaluator.workload.prompts.block_parent)):
            over = evaluator.over(replicas=self._result.replicas, tier=memory.below(size))
            trial = over.trial(Lru(), capacity)
            if trial.target_s < least_s * (1 - _ALIKE):
                best, least_s = size, trial.target_s
            if trial.meets(target):
                break
        return best

    def _judged(self, policy: Policy, replicas: int, tier_bytes: int) -> PlanOption:
        """Return an option with its replays."""
        result, windows = self._result, self._changed(self._tuner.windows, replicas, tier_bytes)
        judged = windows.judge(policy, result.capacity_blocks, result.lru)
        ends = [self._at(end, policy, replicas, tier_bytes) for end in self._ends]
        answer = slo_answer(result.target, judged, ends)
        return self._option(policy, replicas, tier_bytes, judged, answer)

    def _changed(self, windows: LaterWindows, replicas: int, tier_bytes: int) -> LaterWindows:
        tier = self._memory.below(tier_bytes) if self._memory and tier_bytes else None
        return windows.over(replicas=replicas, tier=tier)

    def _at(self, end: End, policy: Policy, replicas: int, tier_bytes: int) -> Trial:
        """Return the held-out trial at one end of what is not known exactly."""
        evaluator = self._tuner.held_out.evaluator
        tier = self._memory.below(tier_bytes) if self._memory and tier_bytes else None
        slower = evaluator.workload.with_prefill(end.prefill_times)
        over = evaluator.over(replicas=replicas, workload=slower, tier=tier)
        return over.trial(policy, end.capacity_blocks or self._result.capacity_blocks)

    def _option(
        self, policy: Policy, replicas: int, tier_bytes: int, judged: Judged, slo: SloAnswer
    ) -> PlanOption:
        price = None
        if self._replica_hour is not None:
            tier = self._memory.price.hour(tier_bytes) if self._memory else 0.0
            price = replicas * (self._replica_hour + tier)
        later = self._tuner.windows.later
        low, high = later.bootstrap.interval(judged.later.resampled, "violations")
        return PlanOption(
            judged=judged,
            replicas=replicas,
            router=self._router if replicas > 1 else None,
            tier_bytes=tier_bytes,
            price_hour=price,
            slo=slo,
            attainment_interval=(1 - high, 1 - low),
            meets_target=judged.later.meets(self._result.target),
        )
