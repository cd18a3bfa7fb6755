"""The runs of a store: what replays of a trace gave, kept so that none is done twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from kvscope import __version__
from kvscope.core.hits import HitDefinition
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Misses, Outcome, PartOutcome, Run, RunSetting, TierOutcome
from kvscope.core.trace import Trace
from kvscope.store.db import Store

_AS_THEY_ARE = (
    "policy",
    "leaves",
    "params",
    "hindsight",
    "capacity_blocks",
    "evictions",
    "hit_rate_error",
    "preemptions",
    "turned_away",
    "kvscope",
    "created_at",
)
_DISTRIBUTIONS = ("uncached_tokens", "ttft_ms", "queued_ttft_ms")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run and what the store knows it by.

    `asked` is the digest of everything that shapes its numbers but the sources, `code` theirs.
    """

    run_id: int
    asked: str
    code: str
    run: Run


def digest(
    policy: str,
    leaves: str,
    params: Mapping[str, float],
    capacity_blocks: int,
    setting: RunSetting,
) -> str:
    """What was asked of a run, in 32 hex digits: the same for the same question."""
    values = {name: float(value) for name, value in params.items()}
    whole = (policy, leaves, values, capacity_blocks, asdict(setting))
    text = json.dumps(whole, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def digest_of(run: Run) -> str:
    """What was asked of `run`."""
    return digest(run.policy, run.leaves, run.params, run.capacity_blocks, run.setting)


def all_runs(store: Store, trace: Trace) -> list[StoredRun]:
    """Every run over `trace`, without its parts: smallest capacity first, then by policy."""
    return [_stored(row) for row in store.rows("runs/runs", trace_id=trace.trace_id)]


def known_runs(store: Store, trace: Trace, asked: Sequence[str], code: str) -> dict[str, Run]:
    """Those of the runs asked for that these very sources have made before, parts included."""
    wanted = set(asked)
    found = [one for one in all_runs(store, trace) if one.asked in wanted and one.code == code]
    return {one.asked: one.run for one in with_parts(store, found)}


def with_parts(store: Store, found: Sequence[StoredRun]) -> list[StoredRun]:
    """The same runs with their numbers by category and over time."""
    parts: dict[int, list[PartOutcome]] = {one.run_id: [] for one in found}
    for row in store.rows("runs/parts", run_ids=list(parts)):
        outcome = _outcome(row["outcome"])
        part = PartOutcome(row["category"], row["start_s"], row["length_s"], outcome)
        parts[row["run_id"]].append(part)
    return [replace(one, run=replace(one.run, parts=tuple(parts[one.run_id]))) for one in found]


def add(store: Store, trace: Trace, run: Run, code: str) -> Run:
    """Keep `run`, in the place of what older sources made of the same question."""
    asked = digest_of(run)
    dated = replace(run, kvscope=__version__, created_at=datetime.now(UTC).replace(tzinfo=None))
    with store.transaction():
        older = store.rows("runs/same_asked", trace_id=trace.trace_id, asked=asked)
        _remove(store, [row["run_id"] for row in older])
        run_id = store.row(
            "runs/add_run",
            trace_id=trace.trace_id,
            asked=asked,
            code=code,
            kvscope=dated.kvscope,
            created_at=dated.created_at,
            policy=dated.policy,
            leaves=dated.leaves,
            names=list(dated.params),
            values=[float(value) for value in dated.params.values()],
            hindsight=dated.hindsight,
            capacity_blocks=dated.capacity_blocks,
            setting=asdict(dated.setting),
            outcome=asdict(dated.outcome),
            evictions=dated.evictions,
            misses=dated.misses and asdict(dated.misses),
            hit_rate_error=dated.hit_rate_error,
            tiers=[asdict(tier) for tier in dated.tiers] or None,
            preemptions=dated.preemptions,
            turned_away=dated.turned_away,
        )["run_id"]
        if dated.parts:
            parts = [asdict(part) for part in dated.parts]
            store.run("runs/add_parts", run_id=run_id, parts=parts)
    return dated


def remove(store: Store, trace: Trace, which: Callable[[Run], bool]) -> int:
    """Remove the runs over `trace` that `which` picks; how many they were."""
    picked = [one.run_id for one in all_runs(store, trace) if which(one.run)]
    with store.transaction():
        _remove(store, picked)
    return len(picked)


def _remove(store: Store, run_ids: list[int]) -> None:
    if run_ids:
        for table in ("parts", "runs"):
            store.run(f"runs/remove_{table}", run_ids=run_ids)


def _stored(row: dict[str, Any]) -> StoredRun:
    run = Run(
        **{name: row[name] for name in _AS_THEY_ARE},
        setting=_setting(row["setting"]),
        outcome=_outcome(row["outcome"]),
        misses=row["misses"] and Misses(**row["misses"]),
        tiers=tuple(TierOutcome(**tier) for tier in row["tiers"] or ()),
    )
    return StoredRun(row["run_id"], row["asked"], row["code"], run)


def _setting(struct: dict[str, Any]) -> RunSetting:
    return RunSetting(**struct | {"definition": HitDefinition(**struct["definition"])})


def _outcome(struct: dict[str, Any]) -> Outcome:
    spread = {name: struct[name] and Percentiles(**struct[name]) for name in _DISTRIBUTIONS}
    return Outcome(**struct | spread)
