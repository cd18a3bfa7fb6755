"""Runs in JSON documents: the names that scripts depend on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvscope.core.kv_size import ModelKv
from kvscope.core.runs import Run, RunSetting, TierOutcome
from kvscope.core.trace import Trace


def run_record(run: Run, trace: Trace, model: ModelKv | None) -> dict[str, Any]:
    """A run, its capacity in every unit, and its numbers by category and over time."""
    tokens = run.capacity_blocks * trace.block_size
    categories, stretches = [], []
    for part in run.parts:
        numbers = asdict(part.outcome)
        if part.category is not None:
            categories.append({"category": part.category} | numbers)
        else:
            stretches.append({"start_s": part.start_s, "length_s": part.length_s} | numbers)
    return {
        "policy": run.policy,
        "leaves": run.leaves,
        "params": run.params,
        "hindsight": run.hindsight,
        "capacity_model": run.setting.capacity_model,
        "capacity_blocks": run.capacity_blocks,
        "capacity_tokens": tokens,
        "capacity_bytes": model.bytes_for(tokens) if model else None,
        **asdict(run.outcome),
        "hit_rate_error": run.hit_rate_error,
        "evictions": run.evictions,
        "misses": run.misses,
        "preemptions": run.preemptions,
        "turned_away": run.turned_away,
        "tiers": [_tier_record(tier, trace, model) for tier in run.tiers],
        "categories": categories,
        "over_time": stretches,
        "kvscope": run.kvscope,
        "created_at": run.created_at,
    }


def setting_record(setting: RunSetting) -> dict[str, Any]:
    """What the numbers of a run count and assume."""
    return {
        "definition": setting.definition,
        "latency": {
            "profile": setting.latency,
            "base_ms": setting.base_s * 1e3,
            "per_token_ms": setting.per_token_s * 1e3,
            "per_token_pair_ms": setting.per_token_pair_s * 1e3,
        },
        "slo_ms": None if setting.slo_s is None else setting.slo_s * 1e3,
        "rate_scale": setting.rate_scale,
        "isolate": setting.isolate,
        "sample_rate": setting.sample_rate,
        "coarsen": setting.coarsen,
        "capacity_model": setting.capacity_model,
        "max_num_seqs": setting.max_num_seqs,
        "max_num_batched_tokens": setting.max_num_batched_tokens,
        "tiers_asked": setting.tiers or None,
        "tier_mode": setting.tier_mode,
    }


def _tier_record(tier: TierOutcome, trace: Trace, model: ModelKv | None) -> dict[str, Any]:
    tokens = tier.capacity_blocks * trace.block_size
    return asdict(tier) | {"capacity_bytes": model.bytes_for(tokens) if model else None}
