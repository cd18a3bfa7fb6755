"""Many replays over one trace, on all cores, each handed over as soon as it is finished."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from threading import Event

import numpy as np
from numpy.typing import NDArray

from kvscope.characterize.windows import Windows
from kvscope.core.runs import Misses, Outcome, PartOutcome, Run, RunSetting
from kvscope.core.trace import Prompts
from kvscope.learning.offline.learners import tables_for
from kvscope.policies.base import REFIT_S, Policy
from kvscope.replay.capacity_models import replayed
from kvscope.replay.curve import HitCurve, lru_curve
from kvscope.replay.derived_traces import isolate
from kvscope.replay.misses import Novelty, novelty, reasons
from kvscope.replay.replay import History, Tables, history, replay
from kvscope.replay.sampling import Anchor, anchored, sampled
from kvscope.replay.setting import profile_of
from kvscope.replay.summary import Served, by_category, over_time, summarize
from kvscope.replay.tier_spec import Tier
from kvscope.replay.traffic import Traffic, traffic

WINDOWS = 24  # that results over time are cut into, at most


@dataclass(frozen=True, slots=True)
class Asked:
    """One run that is wanted: a policy with its parameters at a capacity, or over tiers.

    Of tiers, the capacity is that of all together, and `policy` that of those that name none.
    """

    policy: Policy
    capacity_blocks: int
    tiers: tuple[Tier, ...] = ()


class Workload:
    """A trace under one setting, ready for replays of any policy at any capacity.

    `windows` are what results over time are cut by. Raises UsageError or InputError where the trace
    cannot be isolated or sampled as the setting says. `run` may be called from many threads.
    """

    def __init__(self, prompts: Prompts, setting: RunSetting, windows: Windows) -> None:
        self.setting = setting
        self.windows = windows
        self.whole = isolate(prompts, setting.isolate) if setting.isolate else prompts
        self.anchor = _anchor(self.whole, setting)
        self.prompts = self.anchor.sample.prompts if self.anchor else self.whole
        self.profile = profile_of(setting)
        self.traffic = traffic(self.prompts, setting.definition)
        self._tables: dict[tuple[str | None, float], Tables] = {}
        self._compiled: set[tuple[type[Policy], str]] = set()

    def with_prefill(self, times: float) -> Workload:
        """The same with a prefill that takes `times` as long; what is computed already is kept."""
        setting = self.setting
        scaled = replace(
            setting,
            latency=f"{setting.latency} x {times:g}",
            base_s=setting.base_s * times,
            per_token_s=setting.per_token_s * times,
            per_token_pair_s=setting.per_token_pair_s * times,
        )
        other = copy(self)
        other.setting, other.profile = scaled, profile_of(scaled)
        return other

    @cached_property
    def curve(self) -> HitCurve:
        """LRU's exact hit rate at every capacity, in the definition's weight."""
        return self.anchor.whole if self.anchor else lru_curve(self.whole, self.setting.definition)

    @cached_property
    def turns(self) -> Traffic:
        """The traffic by whole requests, also where the definition takes blocks one by one."""
        definition = self.setting.definition
        return traffic(self.prompts, replace(definition, flat=False))

    @cached_property
    def history(self) -> History:
        """Who touches what after whom in `traffic`."""
        return history(self.traffic)

    @cached_property
    def _novelty(self) -> Novelty | None:
        definition = self.setting.definition
        return None if definition.flat else novelty(self.prompts, definition)

    def tables(self, policy: Policy) -> Tables:
        """What a policy is told of the categories of `traffic`."""
        key = policy.learner, policy.values.get("refit_s", REFIT_S)
        if key not in self._tables:
            self._tables[key] = tables_for(self.traffic, type(policy), key[1])
        return self._tables[key]

    def prepare(self, policies: Sequence[Policy]) -> None:
        """Compute and compile what runs of `policies` share, before threads ask for it."""
        nothing = _no_requests(self.traffic)
        _ = self.history, self._novelty
        for policy in policies:
            kernel = (type(policy), policy.evicts)
            tables = self.tables(policy)
            if kernel not in self._compiled and self.setting.capacity_model == "cache":
                replay(nothing, policy, 0, past=history(nothing), tables=tables)
                self._compiled.add(kernel)

    def run(self, asked: Asked) -> Run:
        """Replay and measure one policy at one capacity.

        Raises UsageError where the capacity model cannot run the policy.
        """
        policy, capacity = asked.policy, asked.capacity_blocks
        self.prepare([policy])
        done = replayed(self, asked)
        served, hit_blocks = done.served, done.served.hit_blocks
        outcome = summarize(served, self.setting.slo_s)
        outcome, error = self._estimated(outcome, hit_blocks, capacity)
        return Run(
            policy=policy.name,
            leaves=policy.evicts,
            params={name: float(value) for name, value in policy.values.items()},
            hindsight=policy.hindsight,
            capacity_blocks=capacity,
            setting=self.setting,
            outcome=outcome,
            evictions=done.evictions,
            misses=self._misses(hit_blocks, served.first),
            parts=self._parts(served),
            hit_rate_error=error,
            tiers=done.tiers,
            preemptions=done.preemptions,
            turned_away=done.turned_away,
        )

    def _estimated(
        self, outcome: Outcome, hit_blocks: NDArray[np.int32], capacity: int
    ) -> tuple[Outcome, float | None]:
        """The outcome with the hit rate of the whole trace, and the error of that."""
        if self.anchor is None:
            return outcome, None
        found = self.anchor.estimate(hit_blocks, capacity)
        weight = self.setting.definition.weight
        if weight == "block":
            return replace(outcome, block_hit_rate=found.rate), found.error
        if weight == "request":
            return replace(outcome, request_hit_rate=found.rate), found.error
        return replace(outcome, token_hit_rate=found.rate), found.error

    def _misses(self, hit_blocks: NDArray[np.int32], first: int) -> Misses | None:
        new = self._novelty
        if new is None:
            return None
        found = reasons(self.prompts, new, hit_blocks, 0, first)
        return Misses(
            evicted_tokens=found.evicted_tokens,
            diverged_tokens=found.diverged_tokens,
            cold_tokens=found.cold_tokens,
            tail_tokens=found.tail_tokens,
        )

    def _parts(self, served: Served) -> tuple[PartOutcome, ...]:
        slo_s = self.setting.slo_s
        categories = by_category(served, slo_s)
        stretches = over_time(served, self.windows, slo_s)
        return (
            *(PartOutcome(one.category, None, None, one.outcome) for one in categories),
            *(PartOutcome(None, one.start_s, one.length_s, one.outcome) for one in stretches),
        )


def _no_requests(whole: Traffic) -> Traffic:
    """The same trie without requests: as quick as it gets, and of the same types."""
    trie = ("block_size", "block_parent")
    columns = {name: column for name, column in whole._asdict().items() if name not in trie}
    return whole._replace(**{name: column[:0] for name, column in columns.items()})


def _anchor(prompts: Prompts, setting: RunSetting) -> Anchor | None:
    if setting.exact:
        return None
    sample = sampled(prompts, setting.sample_rate, coarsen=setting.coarsen)
    return anchored(prompts, sample, setting.definition)


_PACKAGE = Path(__file__).resolve().parents[1]
_SOURCES = (
    "core/prefix.py",
    "core/trace.py",
    "learning/**/*.py",
    "policies/**/*.py",
    "replay/**/*.py",
    "vllm_sim/**/*.py",
)


def sweep(
    workload: Workload,
    asked: Sequence[Asked],
    *,
    workers: int | None = None,
    stop: Event | None = None,
) -> Iterator[Run]:
    """Every run asked for, in the order in which they finish (of those found finished, as asked).

    `workers` threads replay at once (default: one a core; kernels run without the interpreter
    lock). Once `stop` is set no further run starts, and the sweep ends with those under way.
    """
    workload.prepare([one.policy for one in asked])
    pool = ThreadPoolExecutor(workers or cores(), thread_name_prefix="replay")
    futures = [pool.submit(_unless, stop or Event(), workload, one) for one in asked]
    place = {future: number for number, future in enumerate(futures)}
    waiting = set(futures)
    try:
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in sorted(finished, key=place.__getitem__):
                if (run := future.result()) is not None:
                    yield run
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # whoever leaves early need not wait


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def sources_digest() -> str:
    """Digest of the sources that make a run's numbers (16 hex digits)."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(path for pattern in _SOURCES for path in _PACKAGE.glob(pattern)):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _unless(stop: Event, workload: Workload, asked: Asked) -> Run | None:
    return None if stop.is_set() else workload.run(asked)
