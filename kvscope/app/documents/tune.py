"""The document of `kvscope tune`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from kvscope.app.documents.base import Document, Facts, ModelFacts, TraceFacts, model_facts
from kvscope.app.documents.runs import SettingFacts, setting_facts
from kvscope.app.tune import Assumption, Recommendation
from kvscope.core.runs import Outcome
from kvscope.tuning.bootstrap import Gain
from kvscope.tuning.flags import Flags
from kvscope.tuning.split import Split
from kvscope.tuning.trial import Trial
from kvscope.tuning.tuner import HeldOutTrial, PrefillScenario, RequiredCapacity

_GIB = 2**30


class CapacityFacts(Facts):
    """A capacity in every unit that is known; `capacity_hbm` is a multiple of the GPU memory."""

    capacity_blocks: int
    capacity_tokens: int
    capacity_bytes: int | None
    capacity_gib: float | None
    capacity_hbm: float | None


class TargetFacts(Facts):
    """The target of a tuning."""

    slo_ms: float
    percentile: float
    measure: str
    view: str


class TrialFigures(Facts, Outcome):
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


class JudgedFigures(TrialFigures):
    """The same by the held-out window, with the gain over LRU at the user's capacity."""

    keeps_share: float
    gain: Mapping[str, Gain]


class NextBest(JudgedFigures):
    """What SGLang can run, where it lacks the recommended policy."""

    flags: Flags


class LeastCapacity(CapacityFacts):
    """The least capacity that meets the SLO, by the training window and by the held-out one."""

    chosen: TrialFigures
    judged: TrialFigures
    would_need_blocks: int | None


class LeastCapacities(Facts):
    """The least capacity that meets the SLO: with LRU, and with any policy."""

    lru: LeastCapacity | None
    best: LeastCapacity | None


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
    return TuneDocument.build(
        setting_facts(tuning.setting),
        tuning,
        trace=TraceFacts.build(tuned.trace),
        target=TargetFacts.build(tuning.target),
        model=model_facts(tuned.model),
        recommendation=RecommendationFacts.build(
            _capacity(tuned, best.capacity_blocks),
            tuning,
            policy=best.policy.name,
            leaves=best.policy.evicts,
            params=_params(tuned, best),
            baseline=_trial(tuned, tuning.baseline),
            expected=_trial(tuned, best),
            gain=best.gains or dict.fromkeys(tuning.infinite.gains, Gain(0.0, 0.0, 0.0)),
            flags=tuned.flags,
            next_best_for_sglang=_next_best(tuned),
        ),
        contenders=tuple(_judged(tuned, trial) for trial in tuning.contenders),
        ceilings=tuple(_judged(tuned, trial) for trial in tuning.oracles),
        infinite=_judged(tuned, tuning.infinite),
        least_capacity=LeastCapacities(
            lru=_least(tuned, tuning.least_lru), best=_least(tuned, tuning.least_any)
        ),
        explored=tuple(_trial(tuned, trial) for trial in tuning.explored),
        scaled=tuning.scenarios,
        assumptions=tuned.assumptions,
    )


def _next_best(tuned: Recommendation) -> NextBest | None:
    other = None if tuned.flags.sglang else tuned.next_best_for_sglang()
    if other is None:
        return None
    return NextBest.build(_judged(tuned, other), flags=tuned.flags_for(other))


def _params(tuned: Recommendation, trial: Trial) -> dict[str, float]:
    params = dict(trial.policy.values)
    if "xi_tokens" in params:
        params["xi_ms"] = float(tuned.profile.ttft_s(int(params["xi_tokens"]), 0)) * 1e3
    return params


def _capacity(tuned: Recommendation, blocks: int) -> CapacityFacts:
    size = tuned.bytes_in(blocks)
    return CapacityFacts(
        capacity_blocks=blocks,
        capacity_tokens=blocks * tuned.trace.block_size,
        capacity_bytes=size,
        capacity_gib=None if size is None else size / _GIB,
        capacity_hbm=size / tuned.hbm_bytes if size is not None and tuned.hbm_bytes else None,
    )


def _trial(tuned: Recommendation, trial: Trial) -> TrialFigures:
    return TrialFigures.build(
        trial.outcome,
        trial,
        policy=trial.policy.name,
        params=_params(tuned, trial),
        hindsight=trial.policy.hindsight,
        target_tel_ms=trial.tel_s * 1e3,
        meets_slo=trial.meets(tuned.tuning.target),
        prefills_per_s=trial.served_per_s,
    )


def _judged(tuned: Recommendation, judged: HeldOutTrial) -> JudgedFigures:
    return JudgedFigures.build(
        _trial(tuned, judged), keeps_share=judged.meeting_share, gain=judged.gains
    )


def _least(tuned: Recommendation, least: RequiredCapacity | None) -> LeastCapacity | None:
    if least is None:
        return None
    return LeastCapacity.build(
        _capacity(tuned, least.training.capacity_blocks),
        least,
        chosen=_trial(tuned, least.training),
        judged=_trial(tuned, least.held_out),
    )
