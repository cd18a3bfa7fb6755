"""Replays over tiers: hits by tier, the wait for their reads, and their outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s
from kvscope.core.errors import UsageError
from kvscope.core.runs import TierMode, TierOutcome
from kvscope.policies.base import LanePolicy, PathPolicy, Policy
from kvscope.policies.lru import Lru
from kvscope.policies.registry import POLICIES
from kvscope.replay.kernels.tiers import exclusive_kernel, places_kernel
from kvscope.replay.metrics import ServedRequests
from kvscope.replay.replay import TouchHistory, replay, touch_history
from kvscope.replay.structures.runs import cached_blocks
from kvscope.replay.structures.tier_runs import empty_tiers
from kvscope.replay.tier_spec import Tier
from kvscope.replay.traffic import Traffic

_IDLE_S = (0.0, 1.0, 3600.0)
_NO_TABLE: Float64s = np.zeros((1, 1))


class TieredReplay(Struct, frozen=True):
    """What T tiers did with R requests over a trie of N blocks.

    `tier_hits` (R x T) are the leading blocks that each request took from each tier, together
    capped by the last-token rule. `evictions` are the blocks that left each tier, `demotions` those
    of them that moved down instead of being dropped. `cached` (T x (N + 1), the root first) is what
    each tier held at the end. `tier_reads` are the blocks copied for the hits, where those are not
    as many: of a hybrid model, each of one group of layers.
    """

    tiers: tuple[Tier, ...]
    tier_hits: Int32s
    evictions: tuple[int, ...]
    demotions: tuple[int, ...]
    cached: Bools
    tier_reads: Int32s | None = None

    @property
    def read_blocks(self) -> Int32s:
        """The blocks that each request has copied from each tier."""
        return self.tier_hits if self.tier_reads is None else self.tier_reads

    @property
    def hit_blocks(self) -> Int32s:
        """The leading blocks that each request hits in any tier."""
        blocks: Int32s = self.tier_hits.sum(axis=1, dtype=np.int32)
        return blocks


def replay_tiers(
    traffic: Traffic, tiers: Sequence[Tier], mode: TierMode, *, history: TouchHistory | None = None
) -> TieredReplay:
    """Replay `traffic` over at least one tier, first one first: exact, request by request.

    Each request is looked up, its hits move to the first tier, then every tier from the first on
    evicts down to its capacity. `history` saves work where one trace is replayed many times.

    `exclusive` takes policies of queues whose order does not change with time (lru, ttl, tlru and
    its variants). Where one evicts leaves only, a block leaves a tier only if no child of it is in
    that tier or a higher one; so the tiers from the first to any other together hold no orphan, and
    no block is lost before those that need it. LRU keeps to that by itself, others must all evict
    leaves then. `write-through` takes policies that never keep a block without its head: then the
    leading blocks in some of the first t tiers are as many as in the best of them.
    Raises UsageError, naming the tier, for policies for which it is not exact.
    """
    require_exact(tiers, mode)
    history = history or touch_history(traffic)
    tiers = tuple(tiers)
    run = _exclusive if mode == "exclusive" else _write_through
    return run(traffic, tiers, history)


def _exclusive(traffic: Traffic, tiers: tuple[Tier, ...], history: TouchHistory) -> TieredReplay:
    policies = [cast(LanePolicy, tier.policy) for tier in tiers]
    leaf = _evict_leaves(tiers)
    worth = [_worth(policy) for policy in policies]
    first_lane = np.zeros(len(tiers) + 1, dtype=np.int64)
    np.cumsum([len(lanes) for lanes in worth], out=first_lane[1:])
    places = _places(traffic, policies, first_lane)
    state = empty_tiers(traffic, places, first_lane, np.concatenate(worth), leaf)
    hits = np.zeros((len(traffic.leaf), len(tiers)), dtype=np.int32)
    exclusive_kernel(
        traffic,
        history.segments,
        np.array([tier.capacity_blocks for tier in tiers], dtype=np.int64),
        np.array([tier.ttl_s for tier in tiers], dtype=np.float64),
        state,
        leaf,
        hits,
    )
    down_to = np.array(
        [
            cached_blocks(traffic.block_parent, history.segments.owner, np.ascontiguousarray(end))
            for end in state.ends.T[1:]
        ]
    )
    cached = down_to.copy()
    cached[1:] &= ~down_to[:-1]
    return TieredReplay(
        tiers=tiers,
        tier_hits=hits,
        evictions=tuple(state.evicted.tolist()),
        demotions=tuple(state.demoted.tolist()),
        cached=cached,
    )


def _write_through(
    traffic: Traffic, tiers: tuple[Tier, ...], history: TouchHistory
) -> TieredReplay:
    alone = [replay(traffic, tier.policy, tier.capacity_blocks, history=history) for tier in tiers]
    together = np.maximum.accumulate(np.array([done.hit_blocks for done in alone]), axis=0)
    return TieredReplay(
        tiers=tiers,
        tier_hits=np.ascontiguousarray(np.diff(together, axis=0, prepend=0).T.astype(np.int32)),
        evictions=tuple(done.evictions for done in alone),
        demotions=(0,) * len(tiers),
        cached=np.array([done.cached for done in alone]),
    )


def require_exact(tiers: Sequence[Tier], mode: TierMode) -> None:
    """Raise UsageError, naming the tier, for policies with which a replay would not be exact."""
    for tier in tiers:
        if not fits(tier.policy, mode):
            raise _refused(tier, mode)
    leaf = mode == "exclusive" and _evict_leaves(tiers)
    for tier in tiers:
        if leaf and not closed(tier.policy):
            raise UsageError(
                f"{tier.policy.name} evicts any block where another tier evicts leaves only",
                where=f"tier {tier.name}",
                remedy="evict leaves, or any, in all tiers (POLICY.leaves)",
            )


def _evict_leaves(tiers: Sequence[Tier]) -> bool:
    """Return whether a tier evicts leaves only, to which the others then have to keep."""
    return any(tier.policy.evicts == "leaf" for tier in tiers)


def fits(policy: Policy, mode: TierMode) -> bool:
    """Return whether tiers that work by `mode` can each have this policy."""
    if mode == "exclusive":
        return _moves(policy)
    return closed(policy) and not policy.reads_table


def closed(policy: Policy) -> bool:
    """Return whether a policy never keeps a block whose parent is gone."""
    return policy.evicts == "leaf" or isinstance(policy, Lru)


def _moves(policy: Policy) -> bool:
    """Return whether `exclusive` can move a policy's blocks: lanes whose order does not change."""
    return (
        isinstance(policy, LanePolicy)
        and not (policy.by_category or policy.reads_table)
        and not (policy.adaptive and policy.values.get("xi_percentile"))
        and type(policy).admits is PathPolicy.admits
        and all(
            policy.score(lane, idle_s, policy.settings(), _NO_TABLE)
            == policy.score(lane, _IDLE_S[0], policy.settings(), _NO_TABLE)
            for lane in range(policy.lanes)
            for idle_s in _IDLE_S[1:]
        )
    )


def _refused(tier: Tier, mode: TierMode) -> UsageError:
    policy = tier.policy
    what = "moved down tier by tier" if mode == "exclusive" else "kept in step by write-through"
    adaptive = " with an adaptive xi" if policy.values.get("xi_percentile") else ""
    leaves = " that evicts any" if policy.evicts != type(policy).leaves else ""
    return UsageError(
        f"blocks of {policy.name}{adaptive}{leaves} cannot be {what}",
        where=f"tier {tier.name}",
        remedy="take " + " or ".join(known.name for known in POLICIES if fits(known(), mode)),
    )


def _worth(policy: LanePolicy) -> Float64s:
    p = policy.settings()
    return np.array([policy.score(lane, 0.0, p, _NO_TABLE) for lane in range(policy.lanes)])


def _places(traffic: Traffic, policies: Sequence[LanePolicy], first_lane: Int64s) -> Int32s:
    places = np.empty((len(policies), len(traffic.leaf), 3), dtype=np.int32)
    for policy, rows in zip(policies, places, strict=True):
        kind: type[LanePolicy] = type(policy)
        places_kernel(kind)(traffic, policy.settings(), rows)
    places[:, :, 1:] += first_lane[:-1, None, None].astype(np.int32)
    return places


def transfer_s(done: TieredReplay, block_bytes: int | None) -> Float64s:
    """Return the seconds that each request waits for blocks from slower tiers (R entries).

    A tier with hits takes its latency once a request, then its bandwidth; reads of one
    request follow each other and its prefill follows them. Requests do not slow each other down.
    Raises UsageError if a tier's bandwidth matters and `block_bytes` is None.
    """
    waits = np.zeros(len(done.tier_hits), dtype=np.float64)
    for tier, hits in zip(done.tiers, done.read_blocks.T, strict=True):
        waits += _waits_s(tier, hits, block_bytes)
    return waits


def _waits_s(tier: Tier, hits: Int32s, block_bytes: int | None) -> Float64s:
    """Return the seconds that each request waits for its hits in one tier."""
    waits: Float64s = np.where(hits > 0, tier.read.latency_s, 0.0)
    if not math.isinf(tier.read.bytes_per_s):
        waits += hits * read_s(tier, 1, block_bytes)
    return waits


def read_s(tier: Tier, blocks: int, block_bytes: int | None) -> float:
    """Return the seconds that the bytes of so many blocks take to read, after the latency.

    Raises UsageError if the tier's bandwidth matters and `block_bytes` is None.
    """
    return _copy_s(tier, tier.read.bytes_per_s, blocks, block_bytes)


def write_s(tier: Tier, blocks: int, block_bytes: int | None) -> float:
    """Return the seconds that the bytes of so many blocks take to write; raise as `read_s`."""
    return _copy_s(tier, tier.write_bytes_per_s, blocks, block_bytes)


def _copy_s(tier: Tier, bytes_per_s: float, blocks: int, block_bytes: int | None) -> float:
    if math.isinf(bytes_per_s):
        return 0.0
    if block_bytes is None:
        raise UsageError(
            "what a copy takes depends on the size of a block",
            where=f"tier {tier.name}",
            remedy="name a model with --model",
        )
    return blocks * block_bytes / bytes_per_s


def tier_outcomes(
    done: TieredReplay, served: ServedRequests, block_bytes: int | None
) -> tuple[TierOutcome, ...]:
    """Return what each tier gave to the counted requests of `served`, the requests of `done`."""
    prompts, counted = served.prompts, slice(served.first, None)
    inputs = prompts.input_tokens.astype(np.int64)
    total_tokens = int(inputs[counted].sum())
    above = np.zeros_like(inputs)
    blocks = np.zeros_like(inputs)
    outcomes = []
    for at, tier in enumerate(done.tiers):
        hits, reads = done.tier_hits[:, at], done.read_blocks[:, at]
        blocks += hits
        down_to = np.minimum(blocks * prompts.block_size, inputs)
        hit_blocks = int(hits[counted].sum(dtype=np.int64))
        hit_tokens = int((down_to - above)[counted].sum())
        above = down_to
        outcomes.append(
            TierOutcome(
                name=tier.name,
                policy=tier.policy.name,
                capacity_blocks=tier.capacity_blocks,
                ttl_s=_finite(tier.ttl_s),
                read_latency_ms=tier.read.latency_s * 1e3,
                read_bytes_per_s=_finite(tier.read.bytes_per_s),
                hit_blocks=hit_blocks,
                hit_tokens=hit_tokens,
                token_hit_rate=hit_tokens / total_tokens if total_tokens else 0.0,
                transfer_ms=float(_waits_s(tier, reads[counted], block_bytes).sum()) * 1e3,
                read_bytes=(
                    None
                    if block_bytes is None
                    else int(reads[counted].sum(dtype=np.int64)) * block_bytes
                ),
                evictions=done.evictions[at],
                demotions=done.demotions[at],
            )
        )
    return tuple(outcomes)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
