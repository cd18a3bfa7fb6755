"""Recommendations and policies as files: `recommendation.toml` and `policy.toml`.

The engine's plugin reads `[policy]` and the policy's fitted table (kvscope.learning). The rest is
for `kvscope simulate` and `kvscope validate`, and for people.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from kvscope.core import units
from kvscope.core.errors import KvscopeError, UsageError
from kvscope.core.files import content_of
from kvscope.core.runs import RunSetting
from kvscope.core.toml_files import (
    MAX_BYTES,
    SCHEMA,
    Count,
    Number,
    Seconds,
    document_in,
    table_as,
    write_toml,
)
from kvscope.deployment.engines import parse_engine
from kvscope.latency.file import LatencyTable
from kvscope.latency.profile import LatencyProfile
from kvscope.learning.learners import FittedTable, read_fit
from kvscope.learning.policy_file import REMEDY, PolicyTable, policy_in
from kvscope.policies.base import Policy
from kvscope.replay.tier_spec import Tier
from kvscope.tuning.comparison import Canary, WindowTrial
from kvscope.tuning.flags import Flags
from kvscope.tuning.rule import Grade, Verdict
from kvscope.tuning.target import Measure, Target, View
from kvscope.tuning.tiers import TierCandidate, TierKind, TierOffer
from kvscope.tuning.trial import Trial
from kvscope.tuning.tuner import TuningResult
from kvscope.vllm_sim.offload_spec import OffloadSpec

if TYPE_CHECKING:
    from kvscope.deployment.deployment import ResolvedDeployment

_COMMENTS = (
    "verdict: switch, keep-lru, add-capacity, unreachable or overloaded.",
    "grade: do-now, canary (confirm the policy on a part of the replicas first) or no (LRU).",
    "[target]: at least a share `percentile` of the requests within slo_ms.",
    "[capacity]: with [deployment], the pool of one replica, running requests included;",
    "without, a cache study: idle cached blocks alone.",
    "[latency]: the profile that the figures were computed with.",
    "[gain]: share by which a figure is below LRU's: value, low and high of its 95 % CI.",
    "[flags]: for the deployment's engine; none where the verdict is not certain enough.",
    "[canary]: these replicas, for these hours, confirm the gain; roll back if the figure rises.",
    "[tier]: memory below the pool of [capacity], with the times of copies.",
)
Bandwidth = Annotated[float, msgspec.Meta(gt=0, le=1e18)]


class TargetTable(msgspec.Struct, forbid_unknown_fields=True):
    """The table `[target]`: at least a share `percentile` of the requests within the SLO.

    `slo_s` limits TTFT, `tpot_slo_s` the time per output token (None: no limit); the file has both
    in milliseconds. `measure` ranks policies by TTFT at the percentile or by the share of
    violations; `view`: TTFT on an idle engine ("unloaded") or behind earlier requests ("queued").
    """

    slo_s: Seconds = msgspec.field(name="slo_ms")
    percentile: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    measure: Measure = "percentile"
    view: View = "unloaded"
    tpot_slo_s: Seconds | None = msgspec.field(name="tpot_slo_ms", default=None)

    def __post_init__(self) -> None:
        if not self.slo_s:
            raise ValueError("slo_ms: 0 is not above 0")
        if self.tpot_slo_s is not None and not self.tpot_slo_s:
            raise ValueError("tpot_slo_ms: 0 is not above 0")

    @classmethod
    def of(cls, target: Target) -> Self:
        """Return the table of a target."""
        tpot = None if target.tpot_slo_s is None else Seconds(target.tpot_slo_s)
        slo = Seconds(target.slo_s)
        return cls(slo, target.percentile, target.measure, target.view, tpot)

    def target(self) -> Target:
        """Return the target."""
        tpot = None if self.tpot_slo_s is None else float(self.tpot_slo_s)
        return Target(float(self.slo_s), self.percentile, self.measure, self.view, tpot)


class CapacityTable(msgspec.Struct, forbid_unknown_fields=True):
    """The capacity of a cache, in each unit that is known."""

    tokens: Count
    blocks: Count | None = None
    block_size: Count | None = None
    bytes: Count | None = None


class EngineTable(msgspec.Struct, forbid_unknown_fields=True):
    """The engine with which the figures were computed, one of `replicas`.

    `summary` is the deployment in one line, `engine` such as `vllm@0.33+mtp:3` (with a drafter).
    `kv_groups` are a hybrid model's, `sliding/16/128/12+full/16/0/12@0`; else empty. With `dp`
    ranks, each is a replica. `kv_bytes_per_token` is of one GPU, only with SGLang's host tier.
    """

    summary: str
    engine: str
    replicas: Annotated[int, msgspec.Meta(ge=1)]
    max_num_seqs: Count
    max_num_batched_tokens: Count
    kv_groups: str = ""
    dp: Count | None = None
    kv_bytes_per_token: Count | None = None

    @classmethod
    def of(cls, where: ResolvedDeployment, kv_groups: str = "") -> Self:
        """Return the table of a deployment."""
        copied = where.model if where.engine.hicache else None
        return cls(
            where.summary,
            where.engine.text,
            where.engines,
            where.max_num_seqs,
            where.max_num_batched_tokens,
            kv_groups,
            where.dp if where.dp > 1 else None,
            copied.kv_bytes_per_token(where.tp) if copied else None,
        )

    def simulated(self, setting: RunSetting) -> RunSetting:
        """Return `setting` with the table's `engine` and `kv_groups`, unchanged if not a vLLM."""
        engine = parse_engine(self.engine)
        if engine.name != "vllm":
            return setting
        return replace(setting, kv_groups=self.kv_groups, engine=engine.simulated_as)


class CanaryTable(msgspec.Struct, forbid_unknown_fields=True):
    """The table `[canary]`: a test that would confirm the gain in `figure`.

    `replicas` with the new policy are compared for `hours` with as many on LRU, at
    `requests_per_hour` each. `replicas` and `hours` are None if no feasible test would show it.
    """

    figure: str
    requests_per_hour: Number
    replicas: Count | None = None
    hours: Number | None = None


class MemoryTable(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Memory below the pool, over all GPUs of the engine, with its copy times.

    A pool that all replicas share has `pool_bytes_per_s`, over all their links together (None: no
    limit), and `evict` (None: nothing is evicted); both are None for other memory.
    """

    kind: TierKind
    bytes: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    read_bytes_per_s: Bandwidth
    write_bytes_per_s: Bandwidth
    latency_s: Seconds = msgspec.field(name="latency_ms")
    pool_bytes_per_s: Bandwidth | None = None
    evict: Literal["lru"] | None = None

    @property
    def text(self) -> str:
        """The tier for `--tiers`, unrounded: `dram=8GiB:read=25GB/s:write=25GB/s:latency=10us`."""
        size = f"{self.bytes}B" if self.bytes % units.GIB else f"{self.bytes // units.GIB}GiB"
        read, write = (
            _shifted(each, -9) for each in (self.read_bytes_per_s, self.write_bytes_per_s)
        )
        latency = f"{_shifted(self.latency_s, 6)}us"
        return f"{self.kind}={size}:read={read}GB/s:write={write}GB/s:latency={latency}"


def _pool_of(tier: Tier) -> tuple[float | None, Literal["lru"] | None]:
    """Return a MemoryTable's `pool_bytes_per_s` and `evict`; None, None without a shared pool."""
    if tier.pool is None:
        return None, None
    carried = tier.pool.bytes_per_s
    return carried if math.isfinite(carried) else None, "lru" if tier.pool.evicts else None


class TierTable(msgspec.Struct, forbid_unknown_fields=True):
    """Memory below a vLLM's pool: CPU memory, or CPU memory and files below it, in this order.

    `offload` is such as `vllm@0.33:eviction_policy=arc`; KV bytes are over all GPUs of the engine.
    """

    offload: str
    kv_bytes_per_token: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    memory: Annotated[list[MemoryTable], msgspec.Meta(min_length=1, max_length=2)]

    def __post_init__(self) -> None:
        try:
            OffloadSpec.parse(self.offload)
        except UsageError as error:
            raise ValueError(f"offload: {error.what}") from error

    @classmethod
    def of(cls, offer: TierOffer, candidate: TierCandidate, block_size: int) -> Self:
        """Return the table of a tier, for blocks of `block_size` tokens."""
        memory = [
            MemoryTable(
                kind,
                size,
                tier.read.bytes_per_s,
                tier.write_bytes_per_s,
                Seconds(tier.read.latency_s),
                *_pool_of(tier),
            )
            for (kind, size), tier in zip(
                candidate.tiers, offer.below(candidate).tiers, strict=True
            )
        ]
        return cls(candidate.offload, offer.block_bytes // block_size, memory)

    @property
    def in_words(self) -> str:
        """Sizes and offload method: `230 GiB dram, vllm@0.33`."""
        sizes = " + ".join(f"{units.format_size(each.bytes)} {each.kind}" for each in self.memory)
        return f"{sizes}, {self.offload}"

    def tiers(self, pool_blocks: int) -> str:
        """Return the pool and this tier for `--tiers`: `hbm=9000blocks,` and `MemoryTable.text`."""
        return ",".join((f"hbm={pool_blocks}blocks", *(each.text for each in self.memory)))


class RecommendationTable(msgspec.Struct):
    """The contents of recommendation.toml; figures are of the held-out requests.

    `expected` maps `lru` and `recommended` to their figures by name: `p50_ms` and other percentiles
    of TTFT, `violation_share` and `token_hit_rate` (0-1). `gain` maps figures, such as `p95` or
    `tel`, to the share by which the policy's is below LRU's: (value, low, high), with the ends of
    the 95 % CI. `flags` maps `vllm` and `sglang`, if they can run the policy, to launch flags.
    """

    schema: int
    verdict: Verdict
    target: TargetTable
    policy: PolicyTable
    capacity: CapacityTable
    latency: LatencyTable
    trace: str = ""
    expected: dict[str, dict[str, Number]] = {}
    gain: dict[str, tuple[float, float, float]] = {}  # infinite ends: unknown
    flags: dict[str, str] = {}
    deployment: EngineTable | None = None
    canary: CanaryTable | None = None
    tier: TierTable | None = None
    grade: Grade | None = None


class PolicyFile(Struct, frozen=True, kw_only=True):
    """A policy to run, its fitted table, and the trace that both come from.

    A recommendation adds the target, capacity and latency of its study, the deployment, and the
    `tier` below the pool of `capacity_tokens`. `expected` maps `lru` and `recommended` to their
    figures by name (`p95_ms`, `token_hit_rate`); empty without a recommendation.
    """

    trace: str
    policy: Policy
    fitted: FittedTable | None = None
    target: Target | None = None
    capacity_tokens: int | None = None
    profile: LatencyProfile | None = None
    expected: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    deployment: EngineTable | None = None
    tier: TierTable | None = None


class RecommendationFile(PolicyFile, frozen=True, kw_only=True):
    """The recommendation that `kvscope tune` wrote."""

    verdict: Verdict
    target: Target
    capacity_tokens: int
    profile: LatencyProfile
    flags: Mapping[str, str] = field(default_factory=dict)


class AddedTier(Struct, frozen=True):
    """Memory to add below the pool of each replica, with its held-out results."""

    table: TierTable
    trial: WindowTrial
    grade: Grade
    canary: Canary | None


def write_recommendation(
    path: Path,
    result: TuningResult,
    *,
    trace: str,
    block_size: int,
    profile: LatencyProfile,
    flags: Flags,
    capacity_bytes: int | None = None,
    fitted: FittedTable | None = None,
    deployment: EngineTable | None = None,
    added: AddedTier | None = None,
) -> None:
    """Write the recommendation of `result`, or of the tier `added`, so that it reads back equal."""
    best, target = added.trial if added else result.recommended, result.target
    canary, blocks = added.canary if added else result.canary, best.capacity_blocks
    table = RecommendationTable(
        schema=SCHEMA,
        trace=trace,
        verdict="switch" if added else result.verdict,
        target=TargetTable.of(target),
        policy=PolicyTable.of(best.policy),
        capacity=CapacityTable(blocks * block_size, blocks, block_size, capacity_bytes),
        latency=LatencyTable.of(profile),
        expected={
            "lru": _figures(result.baseline),
            "recommended": _figures(best),
        },
        gain={name: (gain.value, gain.low, gain.high) for name, gain in best.gains.items()},
        flags={engine: text for engine, text in asdict(flags).items() if text is not None},
        deployment=deployment,
        canary=CanaryTable(**asdict(canary)) if canary else None,
        tier=added.table if added else None,
        grade=added.grade if added else result.grade,
    )
    held_out = f"[expected]: {result.split.held_out_requests} held-out requests."
    _write(path, msgspec.structs.asdict(table), fitted, *_COMMENTS, held_out)


def read_recommendation(path: Path) -> RecommendationFile:
    """Return the recommendation in the file at `path`.

    Raises InputError with the file, the key, the value and the remedy.
    """
    return _recommendation(document_in(path, REMEDY), str(path))


def read_policy_file(path: Path) -> PolicyFile:
    """Return the contents of a file of `kvscope tune` or `fit --export`. Raises InputError."""
    document, where = document_in(path, REMEDY), str(path)
    if document.keys() & {"verdict", "target", "capacity", "latency"}:
        return _recommendation(document, where)
    policy = policy_in(document, where)
    trace = str(document.get("trace", ""))
    return PolicyFile(trace=trace, policy=policy, fitted=read_fit(document, policy, where))


def read_recommendation_table(path: Path) -> RecommendationTable:
    """Return all tables of the recommendation at `path`. Raises InputError."""
    return table_as(document_in(path, REMEDY), RecommendationTable, str(path), REMEDY)


def _recommendation(document: Mapping[str, Any], where: str) -> RecommendationFile:
    table = table_as(document, RecommendationTable, where, REMEDY)
    policy = policy_in(document, where)
    return RecommendationFile(
        trace=table.trace,
        verdict=table.verdict,
        policy=policy,
        capacity_tokens=table.capacity.tokens,
        target=table.target.target(),
        profile=table.latency.profile(f"{where}: latency"),
        expected=table.expected,
        deployment=table.deployment,
        flags=table.flags,
        tier=table.tier,
        fitted=read_fit(document, policy, where),
    )


def write_policy(
    path: Path, policy: Policy, fitted: FittedTable | None, *, trace: str, block_size: int
) -> None:
    """Write `policy` and its table, fitted on `trace` with blocks of `block_size` tokens."""
    document = {
        "schema": SCHEMA,
        "trace": trace,
        "block_size": block_size,
        "policy": PolicyTable.of(policy),
    }
    _write(path, document, fitted, "block_size: tokens, of the trace. An engine may differ.")


def _write(
    path: Path, document: dict[str, Any], fitted: FittedTable | None, *comments: str
) -> None:
    fit = fitted.document() if fitted else {}
    write_toml(path, document | fit, comments)


def why_kept(path: Path, verdict: Verdict) -> str | None:
    """Return why a new verdict may not replace the recommendation at `path`; None if it may.

    A recommendation to switch is replaced only by another one to switch.
    """
    if verdict == "switch" or verdict_in(path) != "switch":
        return None
    return (
        f"{path} recommends a change and was left as it is: replace it with --force, or name"
        " another file with --output"
    )


def verdict_in(path: Path) -> str:
    """Return the verdict of the recommendation at `path`; empty if the file cannot be read."""
    try:
        return str(tomllib.loads(content_of(path, MAX_BYTES).decode()).get("verdict", ""))
    except (KvscopeError, OSError, ValueError, ArithmeticError, RecursionError):
        return ""


def _shifted(value: float, digits: int) -> str:
    """Return `value` times 10^`digits` for `--tiers`, exactly and without an exponent."""
    return f"{Decimal(repr(float(value))).scaleb(digits).normalize():f}"


def _figures(trial: Trial) -> dict[str, float]:
    times = asdict(trial.times_ms)
    return {f"{name}_ms": value for name, value in times.items()} | {
        "violation_share": trial.violation_share,
        "token_hit_rate": trial.outcome.token_hit_rate,
    }
