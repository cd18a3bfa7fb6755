"""The plan: changes of a deployment as a table of options, all judged on the same later requests.

An option is the deployment as it is with another policy, a tier of CPU memory below each pool, more
replicas behind a router, or another machine, and combinations that can pay. Every one is a replay
of the same simulated engine, and every one is compared with the deployment as it is. The size of a
tier is chosen on the validation window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from kvscope.latency.profile import LatencyProfile
from kvscope.policies.base import GUARD, Policy
from kvscope.policies.lru import Lru
from kvscope.replay.tier_spec import Tier
from kvscope.replay.workload import Workload
from kvscope.tuning.capacity import least_for_lru
from kvscope.tuning.comparison import Window, WindowTrial
from kvscope.tuning.fewest import MOST_REPLICAS, fewest
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


class ReplicaMachine(Struct, frozen=True):
    """Another machine for a replica, `name` in words, with its pool, latency, limits and price."""

    name: str
    capacity_blocks: int
    profile: LatencyProfile
    max_num_seqs: int
    max_num_batched_tokens: int
    replica_hour: float | None

    def under(self, workload: Workload) -> Workload:
        """Return a workload on this machine."""
        return workload.on_engine(self.profile, self.max_num_seqs, self.max_num_batched_tokens)


class _Change(Struct, frozen=True):
    """What is changed of a deployment; `machine` is None for the same one."""

    policy: Policy
    replicas: int
    tier_bytes: int = 0
    machine: ReplicaMachine | None = None


class PlanOption(Struct, frozen=True):
    """One option, on the later requests; `judged` compares it with the deployment as it is.

    `machine` is None for the present one, `router` for one replica; `tier_bytes` (of each replica)
    is 0 without a tier, and `price_hour` None where prices are not known. `attainment_interval` is
    the 95 % interval of the share within the SLO. `meets_target`: the percentile is within it.
    """

    judged: Judged
    machine: str | None
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
        """The sort key of options: price, replicas, memory; the same machine and LRU first."""
        price = math.inf if self.price_hour is None else self.price_hour
        other = self.machine is not None
        return price, other, self.replicas, self.tier_bytes, self.policy.name != Lru.name


class TuningPlan(Struct, frozen=True):
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
        """The cheapest option that meets the SLO; else the one that does as estimated; or None.

        None that rejects more requests than today, which a percentile forgives, and on the present
        machine none that harms what is not the SLO.
        """
        most = self.today.trial.rejected
        sound = [
            each
            for each in self.options
            if each.trial.rejected <= most and (each.machine or not each.judged.harms)
        ]
        known = [each for each in sound if each.slo == "meets"]
        known = known or [each for each in sound if each.meets]
        return min(known, key=lambda option: option.cost, default=None)

    @property
    def promise_s(self) -> float:
        """The TTFT that the present hardware stays within: the least upper end of an interval.

        Of options that keep up and are to be changed to now, or are what is run today.
        """
        today = self.today.cost[:4]
        ends = (
            each.judged.later.interval_s[1]
            for each in self.options
            if each.cost[:4] == today
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
        machines: Sequence[ReplicaMachine] = (),
    ) -> None:
        self._tuner, self._result, self._router = tuner, result, router
        self._replica_hour, self._memory, self._machines = replica_hour, memory, machines
        self._ends = [each.end for each in result.ends if each.end.sessions is None]

    def plan(self) -> TuningPlan:
        """Return the options, each judged at both ends of what is not known exactly too."""
        with self._tuner.progress("judging the options") as advance:
            result = self._result
            today = self._option(_Change(Lru(), result.replicas), result.lru, result.lru_slo_met)
            others = []
            if result.choice is not None:
                change = _Change(result.choice.policy, result.replicas)
                others.append(self._option(change, result.choice, result.slo_met))
            for change in self._changes():
                others.append(self._judged(change))
                advance(1)
            worth, unguarded = self._worth_blocks(), self._unguarded()
        options = (today, *sorted(others, key=lambda option: option.cost))
        return TuningPlan(options, worth, unguarded)

    def _changes(self) -> Iterator[_Change]:
        """Yield changes of more than the policy."""
        result, lru = self._result, Lru()
        if size := self._tier_bytes():
            yield _Change(lru, result.replicas, size)
            if result.choice is not None:
                yield _Change(result.choice.policy, result.replicas, size)
        least = math.inf  # as many replicas with the policy are no other option
        for each in (result.fewest_lru, result.fewest_choice):
            if each is not None and result.replicas < (each.replicas or 0) < least:
                least = each.replicas or 0
                yield _Change(each.policy, least)
        for machine in self._machines:
            yield _Change(lru, self._fewest_on(machine), machine=machine)

    def _fewest_on(self, machine: ReplicaMachine) -> int:
        """Return the fewest replicas of a machine that meet the SLO with LRU; 1 where none do."""
        later = self._tuner.windows.later

        def meets(replicas: int) -> bool:
            change = _Change(Lru(), replicas, machine=machine)
            window = self._windows(change, (later,))[0]
            trial = window.measure(Lru(), machine.capacity_blocks)
            return trial.keeps_up and trial.meets(self._result.target)

        return fewest(partial(map, meets), range(1, MOST_REPLICAS + 1)) or 1

    def _windows(
        self, change: _Change, windows: Sequence[Window], end: End | None = None
    ) -> list[Window]:
        """Return windows with a change, at one end of what is not known exactly."""
        tier = self._memory.below(change.tier_bytes) if self._memory and change.tier_bytes else None

        def workload(known: Workload) -> Workload:
            known = change.machine.under(known) if change.machine else known
            return known.with_prefill(end.prefill_times) if end else known

        return [
            each.of(
                each.evaluator.over(
                    replicas=change.replicas, workload=workload(each.evaluator.workload), tier=tier
                )
            )
            for each in windows
        ]

    def _tier_bytes(self) -> int:
        """Return the least size that meets the SLO with LRU in the validation window.

        Where none does, the least of those with about the lowest percentile; 0 where no tier can be
        added or none helps.
        """
        memory, capacity = self._memory, self._result.capacity_blocks
        if memory is None:
            return 0
        window, target = self._tuner.windows.validation, self._result.target
        best, least_s = 0, self._result.lru.validation.target_s
        for size in memory.sizes(capacity, len(window.evaluator.workload.prompts.block_parent)):
            change = _Change(Lru(), self._result.replicas, size)
            trial = self._windows(change, (window,))[0].evaluator.trial(Lru(), capacity)
            if trial.target_s < least_s * (1 - _ALIKE):
                best, least_s = size, trial.target_s
            if trial.meets(target):
                break
        return best

    def _judged(self, change: _Change) -> PlanOption:
        """Return an option with its replays."""
        result, windows = self._result, self._tuner.windows
        known = windows.validation, windows.held_out, windows.later
        blocks = change.machine.capacity_blocks if change.machine else result.capacity_blocks
        changed = LaterWindows(*self._windows(change, known))
        judged = changed.judge(change.policy, blocks, result.lru)
        ends = []
        for end in self._ends:
            at_end = end.capacity_blocks if change.machine is None else None
            evaluator = self._windows(change, (windows.held_out,), end)[0].evaluator
            ends.append(evaluator.trial(change.policy, at_end or blocks))
        return self._option(change, judged, slo_answer(result.target, judged, ends))

    def _worth_blocks(self) -> int | None:
        """Return the blocks that LRU needs beyond the present ones to be as fast as the choice."""
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

    def _option(self, change: _Change, judged: Judged, slo: SloAnswer) -> PlanOption:
        machine, price = change.machine, self._replica_hour
        if machine is not None:
            price = machine.replica_hour
        if price is not None:
            tier = self._memory.price.hour(change.tier_bytes) if self._memory else 0.0
            price = change.replicas * (price + tier)
        bootstrap = self._tuner.windows.later.bootstrap
        low, high = bootstrap.interval(judged.later.resampled, "violations")
        return PlanOption(
            judged=judged,
            machine=machine.name if machine else None,
            replicas=change.replicas,
            router=self._router if change.replicas > 1 else None,
            tier_bytes=change.tier_bytes,
            price_hour=price,
            slo=slo,
            attainment_interval=(1 - high, 1 - low),
            meets_target=judged.later.meets(self._result.target),
        )
