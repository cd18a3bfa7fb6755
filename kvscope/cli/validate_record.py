"""A validation in JSON documents: the names that scripts depend on."""

from __future__ import annotations

from typing import Any

from kvscope.validate.result import Figures, RunFacts, Validation


def validation_record(found: Validation) -> dict[str, Any]:
    """What was run, prediction beside measurement, and the verdict."""
    return {
        "engine": found.engine,
        "pace": found.pace,
        "forced_outputs": found.forced_outputs,
        "latency": found.latency,
        "tolerance": found.tolerance,
        "slo_ms": None if found.slo_s is None else found.slo_s * 1e3,
        "requests": {
            "of": found.part.of,
            "sent": len(found.part.prompts.leaf),
            "warmup": found.warmup,
            "not_drawn": found.part.not_drawn,
            "later": found.part.later,
            "too_long": found.part.too_long,
        },
        "runs": [_run(run) for run in found.runs],
        "gain": found.compared,
        "checks": found.checks,
        "verdict": found.verdict,
        "ended": found.ended or None,
    }


def _run(run: RunFacts) -> dict[str, Any]:
    return {
        "policy": run.policy,
        "leaves": run.leaves,
        "params": dict(run.params),
        "repeat": run.repeat,
        "flags": run.flags,
        "counted": int(run.counted.sum()),
        "predicted": _figures(run.predicted),
        "measured": _figures(run.measured),
        "mismatched_requests": run.mismatched_requests,
        "mismatched_tokens": run.mismatched_tokens,
        "failed_requests": len(run.failed),
        "failures": sorted(set(run.failed.values())),
        "ended": run.ended or None,
    }


def _figures(one: Figures) -> dict[str, Any]:
    return {
        "hit_tokens": one.hit_tokens,
        "token_hit_rate": one.token_hit_rate,
        "ttft_ms": one.ttft_ms,
        "tel_ms": one.tel_ms,
        "violations": one.violations,
    }
