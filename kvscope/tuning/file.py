"""Recommendations and policies as files: `recommendation.toml` and `policy.toml`.

An engine's plugin reads `[policy]`, and the table that was fitted for it (kvscope.learning). The
rest is for `kvscope validate`, and for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kvscope.core.toml_files import (
    SCHEMA,
    Count,
    Number,
    Seconds,
    document_in,
    table_as,
    write_toml,
)
from kvscope.latency.file import LatencyTable
from kvscope.latency.profile import LatencyProfile
from kvscope.learning.learners import FittedTable, read_fit
from kvscope.learning.policy_file import REMEDY, PolicyTable, policy_in
from kvscope.policies.base import Policy
from kvscope.tuning.flags import Flags
from kvscope.tuning.objective import times_ms
from kvscope.tuning.result import Judged, Tuning, Verdict
from kvscope.tuning.target import Measure, Target, View


class TargetTable(msgspec.Struct, forbid_unknown_fields=True):
    """Fields as in `Target`."""

    slo_s: Seconds = msgspec.field(name="slo_ms")
    percentile: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    measure: Measure = "percentile"
    view: View = "unloaded"

    def __post_init__(self) -> None:
        if not self.slo_s:
            raise ValueError("slo_ms: 0 is not above 0")


class CapacityTable(msgspec.Struct, forbid_unknown_fields=True):
    """Idle cached blocks, in each unit that is known."""

    tokens: Count
    blocks: Count | None = None
    block_size: Count | None = None
    bytes: Count | None = None


class RecommendationFile(msgspec.Struct):
    """recommendation.toml. Figures are of held-out requests; a gain is value, low and high."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFile:
    """A policy to run, what was fitted for it, and the trace that both were taken from.

    A recommendation also has the target, the capacity and the latency that it was chosen for.
    """

    trace: str
    policy: Policy
    fitted: FittedTable | None = None
    target: Target | None = None
    capacity_tokens: int | None = None
    profile: LatencyProfile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation(PolicyFile):
    """What `kvscope tune` recommends."""

    verdict: Verdict
    target: Target
    capacity_tokens: int
    profile: LatencyProfile


def write_recommendation(
    path: Path,
    tuning: Tuning,
    *,
    trace: str,
    block_size: int,
    profile: LatencyProfile,
    flags: Flags,
    capacity_bytes: int | None = None,
    fitted: FittedTable | None = None,
) -> None:
    """Write what `tuning` recommends, so that reading it returns the same policy."""
    best, target = tuning.recommended, tuning.target
    blocks = best.trial.capacity_blocks
    document = RecommendationFile(
        schema=SCHEMA,
        trace=trace,
        verdict=tuning.verdict,
        target=TargetTable(Seconds(target.slo_s), target.percentile, target.measure, target.view),
        policy=PolicyTable.of(best.trial.policy),
        capacity=CapacityTable(blocks * block_size, blocks, block_size, capacity_bytes),
        latency=LatencyTable.of(profile),
        expected={
            "lru": _figures(tuning.baseline, target.view),
            "recommended": _figures(best, target.view),
        },
        gain={name: (gain.value, gain.low, gain.high) for name, gain in best.gains.items()},
        flags={
            engine: text
            for engine, text in (("sglang", flags.sglang), ("vllm", flags.vllm))
            if text is not None
        },
    )
    _write(
        path,
        document,
        fitted,
        "verdict: switch, keep-lru, add-capacity or unreachable.",
        "[target]: at least a share `percentile` of the requests within slo_ms.",
        "[capacity]: idle cached blocks. Add KV memory for running requests.",
        "[latency]: the profile that the figures were computed with.",
        f"[expected]: {tuning.split.judged_requests} held-out requests.",
        "[gain]: share by which a figure is below LRU's: value, low and high of its 95 % CI.",
        "[flags]: for an engine that has the policy.",
    )


def read_recommendation(path: Path) -> Recommendation:
    """Return the recommendation in the file at `path`.

    Raises InputError with the file, the key, the value and the remedy.
    """
    return _recommendation(document_in(path, REMEDY), str(path))


def read_policy_file(path: Path) -> PolicyFile:
    """Return what `kvscope tune` or `kvscope fit --export` wrote to `path`; InputError as above."""
    document, where = document_in(path, REMEDY), str(path)
    if document.keys() & {"verdict", "target", "capacity", "latency"}:
        return _recommendation(document, where)
    policy = policy_in(document, where)
    trace = str(document.get("trace", ""))
    return PolicyFile(trace=trace, policy=policy, fitted=read_fit(document, policy, where))


def _recommendation(document: Mapping[str, Any], where: str) -> Recommendation:
    file = table_as(document, RecommendationFile, where, REMEDY)
    policy, target = policy_in(document, where), file.target
    return Recommendation(
        trace=file.trace,
        verdict=file.verdict,
        policy=policy,
        capacity_tokens=file.capacity.tokens,
        target=Target(float(target.slo_s), target.percentile, target.measure, target.view),
        profile=file.latency.profile(f"{where}: latency"),
        fitted=read_fit(document, policy, where),
    )


def write_policy(
    path: Path, policy: Policy, fitted: FittedTable | None, *, trace: str, block_size: int
) -> None:
    """Write `policy` and what was fitted for it on `trace`, with blocks of `block_size` tokens."""
    document = {
        "schema": SCHEMA,
        "trace": trace,
        "block_size": block_size,
        "policy": PolicyTable.of(policy),
    }
    _write(path, document, fitted, "block_size: tokens, of the trace. An engine may differ.")


def _write(
    path: Path,
    document: msgspec.Struct | dict[str, object],
    fitted: FittedTable | None,
    *comments: str,
) -> None:
    plain: dict[str, Any] = (
        document if isinstance(document, dict) else msgspec.structs.asdict(document)
    )
    write_toml(path, plain | (fitted.document() if fitted else {}), comments)


def _figures(judged: Judged, view: View) -> dict[str, float]:
    outcome = judged.trial.outcome
    times = times_ms(outcome, view)
    return {
        "p50_ms": times.p50,
        "p90_ms": times.p90,
        "p95_ms": times.p95,
        "p99_ms": times.p99,
        "violation_share": judged.trial.violation_share,
        "token_hit_rate": outcome.token_hit_rate,
    }
