"""The document of `kvscope tune`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvscope.app.documents.base import (
    Document,
    ModelFacts,
    TraceFacts,
    model_facts,
    trace_facts,
    values,
)
from kvscope.app.documents.runs import SettingFacts, setting_facts
from kvscope.app.tune import Assumption, Recommendation
from kvscope.core.runs import Outcome
from kvscope.tuning.bootstrap import Gain
from kvscope.tuning.flags import Flags
from kvscope.tuning.split import Split
from kvscope.tuning.trial import Trial
from kvscope.tuning.tuner import HeldOutTrial, PrefillScenario, RequiredCapacity

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class CapacityFacts:
    """A capacity in every unit that is known; `capacity_hbm` is a multiple of the GPU memory."""

    capacity_blocks: int
    capacity_tokens: int
    capacity_bytes: int | None
    capacity_gib: float | None
    capacity_hbm: float | None


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """The target of a tuning."""

    slo_ms: float
    percentile: float
    measure: str
    view: str


@dataclass(frozen=True, kw_only=True)
class TrialFigures(Outcome):
    """One policy at one capacity, by the window that it was tried on, in the target's view."""

    policy: str
    params: Mapping[str, float]
    hindsight: bool
    capacity_blocks: int
    target_ms: float
    violation_share: float
    target_tel_ms: float
    meets_slo: bool
    prefills_per_s: float


@dataclass(frozen=True, kw_only=True)
class JudgedFigures(TrialFigures):
    """The same by the held-out window, with the gain over LRU at the user's capacity."""

    keeps_share: float
    gain: Mapping[str, Gain]


@dataclass(frozen=True, kw_only=True)
class NextBest(JudgedFigures):
    """What SGLang can run, where it lacks the recommended policy."""

    flags: Flags


@dataclass(frozen=True, kw_only=True)
class LeastCapacity(CapacityFacts):
    """The least capacity that meets the SLO, by the training window and by the held-out one."""

    chosen: TrialFigures
    judged: TrialFigures
    would_need_blocks: int | None


@dataclass(frozen=True, kw_only=True)
class LeastCapacities:
    """The least capacity that meets the SLO: with LRU, and with any policy."""

    lru: LeastCapacity | None
    best: LeastCapacity | None


@dataclass(frozen=True, kw_only=True)
class RecommendationFacts(CapacityFacts):
    """What to run, what it gives, and the engines' flags for it."""

    verdict: str
    policy: str
    leaves: str
    params: Mapping[str, float]
    baseline: TrialFigures
    expected: TrialFigures
    gain: Mapping[str, Gain]
    flags: Flags
    next_best_for_sglang: NextBest | None


@dataclass(frozen=True, kw_only=True)
class TuneDocument(Document, SettingFacts):
    """What `kvscope tune` recommends, what that rests on, and all that was tried."""

    command: Literal["tune"] = "tune"
    trace: TraceFacts
    target: TargetFacts
    model: ModelFacts | None
    capacity_blocks: int
    capacity_origin: str
    recommendation: RecommendationFacts
    contenders: tuple[JudgedFigures, ...]
    ceilings: tuple[JudgedFigures, ...]
    infinite: JudgedFigures
    least_capacity: LeastCapacities
    explored: tuple[TrialFigures, ...]
    split: Split
    scaled: tuple[PrefillScenario, ...]
    assumptions: tuple[Assumption, ...]


def tune_document(tuned: Recommendation) -> TuneDocument:
    """Return the document of `kvscope tune`."""
    tuning, best = tuned.tuning, tuned.tuning.recommended
    return TuneDocument(
        **setting_facts(tuning.setting),
        trace=trace_facts(tuned.trace),
        target=TargetFacts(
            slo_ms=tuning.target.slo_s * 1e3,
            percentile=tuning.target.percentile,
            measure=tuning.target.measure,
            view=tuning.target.view,
        ),
        model=model_facts(tuned.model),
        capacity_blocks=tuning.capacity_blocks,
        capacity_origin=tuning.capacity_origin,
        recommendation=RecommendationFacts(
            **_capacity(tuned, best.capacity_blocks),
            verdict=tuning.verdict,
            policy=best.policy.name,
            leaves=best.policy.evicts,
            params=_params(tuned, best),
            baseline=TrialFigures(**_trial(tuned, tuning.baseline)),
            expected=TrialFigures(**_trial(tuned, best)),
            gain=best.gains or dict.fromkeys(tuning.infinite.gains, Gain(0.0, 0.0, 0.0)),
            flags=tuned.flags,
            next_best_for_sglang=_next_best(tuned),
        ),
        contenders=tuple(JudgedFigures(**_judged(tuned, trial)) for trial in tuning.contenders),
        ceilings=tuple(JudgedFigures(**_judged(tuned, trial)) for trial in tuning.oracles),
        infinite=JudgedFigures(**_judged(tuned, tuning.infinite)),
        least_capacity=LeastCapacities(
            lru=_least(tuned, tuning.least_lru), best=_least(tuned, tuning.least_any)
        ),
        explored=tuple(TrialFigures(**_trial(tuned, trial)) for trial in tuning.explored),
        split=tuning.split,
        scaled=tuning.scenarios,
        assumptions=tuned.assumptions,
    )


def _next_best(tuned: Recommendation) -> NextBest | None:
    other = None if tuned.flags.sglang else tuned.next_best_for_sglang()
    if other is None:
        return None
    return NextBest(**_judged(tuned, other), flags=tuned.flags_for(other))


def _params(tuned: Recommendation, trial: Trial) -> dict[str, float]:
    params = dict(trial.policy.values)
    if "xi_tokens" in params:
        params["xi_ms"] = float(tuned.profile.ttft_s(int(params["xi_tokens"]), 0)) * 1e3
    return params


def _capacity(tuned: Recommendation, blocks: int) -> dict[str, Any]:
    size = tuned.bytes_in(blocks)
    return {
        "capacity_blocks": blocks,
        "capacity_tokens": blocks * tuned.trace.block_size,
        "capacity_bytes": size,
        "capacity_gib": None if size is None else size / _GIB,
        "capacity_hbm": size / tuned.hbm_bytes if size is not None and tuned.hbm_bytes else None,
    }


def _trial(tuned: Recommendation, trial: Trial) -> dict[str, Any]:
    return {
        **values(trial.outcome),
        "policy": trial.policy.name,
        "params": _params(tuned, trial),
        "hindsight": trial.policy.hindsight,
        "capacity_blocks": trial.capacity_blocks,
        "target_ms": trial.target_s * 1e3,
        "violation_share": trial.violation_share,
        "target_tel_ms": trial.tel_s * 1e3,
        "meets_slo": trial.meets(tuned.tuning.target),
        "prefills_per_s": trial.served_per_s,
    }


def _judged(tuned: Recommendation, judged: HeldOutTrial) -> dict[str, Any]:
    return _trial(tuned, judged) | {"keeps_share": judged.meeting_share, "gain": judged.gains}


def _least(tuned: Recommendation, least: RequiredCapacity | None) -> LeastCapacity | None:
    if least is None:
        return None
    return LeastCapacity(
        **_capacity(tuned, least.training.capacity_blocks),
        chosen=TrialFigures(**_trial(tuned, least.training)),
        judged=TrialFigures(**_trial(tuned, least.held_out)),
        would_need_blocks=least.would_need_blocks,
    )
