"""A trace under one setting, ready for replays of any policy at any capacity."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property, partial
from typing import Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.characterize.distributions import Windows
from kvscope.core import memory
from kvscope.core.arrays import Bools
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Prompts
from kvscope.deployment.engines import SGLANG_NUM_SEQS, HiCache, parse_engine
from kvscope.deployment.kv_groups import KvGroups
from kvscope.latency.profile import LatencyProfile
from kvscope.learning.directives.offline import STATED, stated_tables
from kvscope.learning.offline.learners import tables_for, tables_of_served
from kvscope.policies.base import Policy
from kvscope.replay.curve import HitCurve, lru_curve
from kvscope.replay.derived_traces import isolate
from kvscope.replay.footprint import tables_bytes
from kvscope.replay.misses import Novelty, novelty
from kvscope.replay.replay import Tables, TouchHistory, replay, touch_history
from kvscope.replay.sampling import PARTS, Anchor, DrawnTrace, anchored, sampled
from kvscope.replay.settings import setting_profile, timed_by
from kvscope.replay.tier_spec import IN_PLACE, READS, Tier
from kvscope.replay.tiers import read_s
from kvscope.replay.traffic import Traffic, traffic
from kvscope.sglang_sim.replay import CHUNK_TOKENS, HostTier, TreeService, serve_tree, sglang_has

_APART_S = 1e6  # between requests of a trace without times


class ReplayRequest(Struct, frozen=True):
    """One replay to make: a policy with its parameters at a capacity.

    With `tiers`, the first is the policy's pool, and the capacity is that of all tiers together.
    """

    policy: Policy
    capacity_blocks: int
    tiers: tuple[Tier, ...] = ()

    @classmethod
    def over(cls, policy: Policy, tiers: tuple[Tier, ...]) -> Self:
        """Return the replay of a policy in the first of `tiers`, above the others."""
        return cls(policy, sum(tier.capacity_blocks for tier in tiers), tiers)


class Workload:
    """A trace under one setting; threads may replay it at the same time.

    `windows` cut the results over time. `prompts` are the replayed requests: the trace, isolated by
    tenant where the setting says so, or a sample of it, with an `anchor` to estimate the whole
    trace's rates. `traffic` is their paths and facts under the hit definition. With `in_parts`, a
    sample is also replayed in smaller samples (`parts`), and its error includes the drift with
    sample size. Raises UsageError or InputError where the trace cannot be isolated, or a sample
    cannot estimate the setting's hit rate.
    """

    def __init__(
        self,
        prompts: Prompts | DrawnTrace,
        setting: RunSetting,
        windows: Windows,
        *,
        in_parts: bool = True,
    ) -> None:
        self.setting = setting
        self.windows = windows
        self._in_parts = in_parts
        self.anchor: Anchor | None = None
        if isinstance(prompts, DrawnTrace):
            self.anchor = anchored(prompts, setting.definition)
            prompts = prompts.sample.prompts
        elif setting.isolate:
            prompts = isolate(prompts, setting.isolate)
        self.prompts = prompts
        self.profile = setting_profile(setting)
        self.traffic = traffic(self.prompts, setting.definition)
        self._tables: dict[tuple[str | None, float, int], Tables] = {}
        self._compiled: set[tuple[type[Policy], str]] = set()

    def on_engine(
        self,
        profile: LatencyProfile,
        max_num_seqs: int | None,
        max_num_batched_tokens: int | None,
        *,
        engine: str | None = None,
        kv_groups: str = "",
    ) -> Workload:
        """Return the same workload on an engine with this latency, these limits and layer groups.

        `engine` names a version (None: the present one), `kv_groups` is a `KvGroups.text` ("":
        none). Limits of None are the engine's defaults.
        """
        return self._under(
            replace(
                timed_by(self.setting, profile),
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                engine=self.setting.engine if engine is None else engine,
                kv_groups=kv_groups,
            )
        )

    def without_drafter(self, groups: KvGroups | None = None) -> Workload | None:
        """Return the workload without a speculative drafter; None if no drafter costs hits now.

        `groups` are the layer groups of a hybrid model without a drafter (default: as now).
        """
        engine = parse_engine(self.setting.engine) if self.setting.engine else None
        if engine is None or not engine.drafts_in_pool:
            return None
        setting = replace(self.setting, engine=engine.without_drafter.simulated_as)
        return self._under(setting if groups is None else replace(setting, kv_groups=groups.text))

    def _under(self, setting: RunSetting) -> Workload:
        other = copy(self)  # what is computed already is shared
        other.setting, other.profile = setting, setting_profile(setting)
        return other

    def with_prefill(self, times: float) -> Workload:
        """Return the same workload with a prefill that takes `times` as long."""
        return self._under(timed_by(self.setting, self.profile.scaled(times)))

    def with_tier(self, tier_mode: str, block_bytes: int) -> Workload:
        """Return the same workload with blocks of `block_bytes` and an offload method.

        `tier_mode` is the method as for `--offload`, or `hicache` for SGLang's. Capacities of tiers
        are those of each replay (`ReplayRequest.tiers`).
        """
        other = copy(self)
        other.setting = replace(self.setting, tier_mode=tier_mode, block_bytes=block_bytes)
        return other

    @cached_property
    def curve(self) -> HitCurve:
        """LRU's exact hit rate at every capacity, in the definition's weight."""
        return (
            self.anchor.whole if self.anchor else lru_curve(self.prompts, self.setting.definition)
        )

    @cached_property
    def request_traffic(self) -> Traffic:
        """The traffic with an entry per request.

        `traffic` has one per block access if the definition is flat: blocks hit without a prefix.
        """
        definition = self.setting.definition
        if not definition.flat:
            return self.traffic
        return traffic(self.prompts, replace(definition, flat=False))

    @cached_property
    def history(self) -> TouchHistory:
        """The last and next touches of the blocks of `traffic`."""
        return touch_history(self.traffic)

    @cached_property
    def novelty(self) -> Novelty | None:
        """New blocks of each prompt; None where the definition is flat."""
        definition = self.setting.definition
        return None if definition.flat else novelty(self.prompts, definition)

    @cached_property
    def parts(self) -> tuple[Workload, ...]:
        """The parts of a sample, each a smaller sample; none for a whole trace.

        Raises UsageError where a part has no requests.
        """
        if not self._in_parts or self.anchor is None:
            return ()
        sample, curve = self.anchor.sample, self.anchor.whole
        smaller = (sampled(sample, sample.rate / PARTS, part) for part in range(PARTS))
        return tuple(
            Workload(DrawnTrace(part, curve), self.setting, self.windows, in_parts=False)
            for part in smaller
        )

    @property
    def learned(self) -> int:
        """Number of results of `tables` so far: a version of the workload.

        While it is the same, executors need not pass the workload to other processes again.
        """
        return len(self._tables)

    def tables(self, policy: Policy, served: Bools | None = None) -> Tables:
        """Return the tables that a policy learns from `traffic`; they are made once.

        `served` (R entries; default: all) are the requests that an engine does not reject. A larger
        engine serves all that a smaller one does, so tables are stored by their number. Raises
        OutOfMemoryError, before allocating, where tables need more memory than is available.
        """
        if served is None:
            served = np.ones(len(self.traffic.leaf), dtype=np.bool_)
        key = policy.name, policy.refit_every, int(served.sum())
        if key not in self._tables:
            what = f"what {policy.name} learns from {len(self.traffic.leaf):,} requests"
            memory.require(tables_bytes(self.traffic, policy), what)
            stated = self.prompts.directives
            if policy.learner == STATED and stated is not None and not self.setting.definition.flat:
                self._tables[key] = stated_tables(self.traffic, stated)
                return self._tables[key]
            fit = partial(tables_for, policy=type(policy), every=policy.refit_every)
            self._tables[key] = tables_of_served(self.traffic, served, fit)
        return self._tables[key]

    def on_tree(self, policy: Policy) -> bool:
        """Return whether the policy is replayed on a simulated SGLang."""
        return self.setting.on_tree and sglang_has(policy)

    def host_tier(self, capacity_blocks: int) -> Tier | None:
        """Return the host tier of the setting's SGLang below a pool of this capacity, or None."""
        hicache = parse_engine(self.setting.engine).hicache
        if hicache is None:
            return None
        read = IN_PLACE if self.setting.block_bytes is None else READS["dram"]
        return Tier("dram", hicache.blocks(capacity_blocks, self.prompts.block_size), read)

    def serve_tree(
        self, traffic: Traffic, policy: Policy, capacity_blocks: int, tier: Tier | None = None
    ) -> TreeService:
        """Return how a simulated SGLang with this setting serves the traffic, or a part of it.

        Requests come one by one if the trace has no times. `tier` defaults to `host_tier`.
        """
        arrival_s, setting = self.traffic.arrival_s, self.setting
        engine, tier = parse_engine(setting.engine), tier or self.host_tier(capacity_blocks)
        host = None
        if tier is not None:
            write_policy = (engine.hicache or HiCache()).write_policy
            copy_s = read_s(tier, 1, setting.block_bytes)
            host = HostTier(tier.capacity_blocks, write_policy, copy_s)
        if len(arrival_s) > 1 and arrival_s[-1] == arrival_s[0]:
            traffic = traffic._replace(
                arrival_s=_APART_S * np.arange(len(traffic.leaf), dtype=np.float64)
            )
        return serve_tree(
            traffic,
            policy,
            capacity_blocks,
            self.profile,
            chunk_tokens=setting.max_num_batched_tokens or CHUNK_TOKENS,
            most_running=setting.max_num_seqs or SGLANG_NUM_SEQS,
            order=engine.order,
            host=host,
        )

    def prepare(self, policies: Sequence[Policy]) -> None:
        """Compute and compile all that replays of `policies` share, before threads start."""
        _ = self.history, self.novelty
        for part in self.parts:
            part.prepare(policies)
        no_requests = self.traffic.of_requests(slice(0))
        for policy in policies:
            kernel = (type(policy), policy.evicts)
            tables = self.tables(policy)
            if kernel not in self._compiled and self.setting.capacity_model == "cache":
                if self.on_tree(policy):
                    self.serve_tree(no_requests, policy, 0)
                else:
                    replay(no_requests, policy, 0, tables=tables)
                self._compiled.add(kernel)
