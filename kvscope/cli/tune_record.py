"""A recommendation in JSON documents: the names that scripts depend on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvscope.app.tune import Tuned
from kvscope.cli.run_records import setting_record
from kvscope.tune.bootstrap import Gain
from kvscope.tune.objective import Trial
from kvscope.tune.result import Judged, Least

_GIB = 2**30


def tune_record(found: Tuned) -> dict[str, Any]:
    """The recommendation, what it rests on, and all that was tried."""
    tuning = found.tuning
    best = tuning.recommended
    return {
        **setting_record(tuning.setting),
        "target": {
            "slo_ms": tuning.target.slo_s * 1e3,
            "percentile": tuning.target.percentile,
            "measure": tuning.target.measure,
            "view": tuning.target.view,
        },
        "model": found.model
        and {
            "name": found.model.name,
            "dtype": found.model.dtype,
            "bytes_per_token": found.model.bytes_per_token,
        },
        "capacity_blocks": tuning.capacity_blocks,
        "capacity_origin": tuning.capacity_origin,
        "recommendation": {
            "verdict": tuning.verdict,
            "policy": best.trial.policy.name,
            "leaves": best.trial.policy.evicts,
            "params": _params(found, best.trial),
            **_size(found, best.trial.capacity_blocks),
            "baseline": _figures(found, tuning.baseline.trial),
            "expected": _figures(found, best.trial),
            "gain": best.gains or dict.fromkeys(tuning.infinite.gains, Gain(0.0, 0.0, 0.0)),
            "flags": asdict(found.flags),
            "next_best_for_sglang": _next_best(found),
        },
        "contenders": [_judged(found, one) for one in tuning.contenders],
        "ceilings": [_judged(found, one) for one in tuning.ceilings],
        "infinite": _judged(found, tuning.infinite),
        "least_capacity": {
            "lru": _least(found, tuning.least_lru),
            "best": _least(found, tuning.least_best),
        },
        "explored": [_figures(found, one) for one in tuning.explored],
        "split": tuning.split,
        "scaled": tuning.scaled,
        "assumptions": found.assumptions,
    }


def _next_best(found: Tuned) -> dict[str, Any] | None:
    """What SGLang can run, where it does not have what is recommended."""
    other = None if found.flags.sglang else found.next_best_for_sglang()
    if other is None:
        return None
    return _judged(found, other) | {"flags": asdict(found.flags_for(other))}


def _params(found: Tuned, trial: Trial) -> dict[str, float]:
    params = dict(trial.policy.values)
    if "xi_tokens" in params:
        xi_s = float(found.profile.ttft_s(int(params["xi_tokens"]), 0))
        params["xi_ms"] = xi_s * 1e3
    return params


def _size(found: Tuned, blocks: int) -> dict[str, float | None]:
    size = found.bytes_in(blocks)
    return {
        "capacity_blocks": blocks,
        "capacity_tokens": blocks * found.trace.block_size,
        "capacity_bytes": size,
        "capacity_gib": None if size is None else size / _GIB,
        "capacity_hbm": size / found.hbm_bytes if size is not None and found.hbm_bytes else None,
    }


def _figures(found: Tuned, trial: Trial) -> dict[str, Any]:
    """A trial: its figures are of the part that it was made on, in the target's view."""
    return {
        "policy": trial.policy.name,
        "params": _params(found, trial),
        "hindsight": trial.policy.hindsight,
        "capacity_blocks": trial.capacity_blocks,
        "target_ms": trial.target_s * 1e3,
        "violation_share": trial.violation_share,
        "target_tel_ms": trial.tel_s * 1e3,
        "meets_slo": trial.meets(found.tuning.target),
        "prefills_per_s": trial.served_per_s,
        **asdict(trial.outcome),
    }


def _judged(found: Tuned, judged: Judged) -> dict[str, Any]:
    return _figures(found, judged.trial) | {"keeps_share": judged.keeps, "gain": judged.gains}


def _least(found: Tuned, least: Least | None) -> dict[str, Any] | None:
    if least is None:
        return None
    return {
        **_size(found, least.chosen.capacity_blocks),
        "chosen": _figures(found, least.chosen),
        "judged": _figures(found, least.judged),
        "would_need_blocks": least.would_need_blocks,
    }
