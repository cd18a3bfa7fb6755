"""The document of `kvscope tune --tiers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from kvscope.app.documents.base import Facts, GatedDocument, ModelFacts, TraceFacts, model_facts
from kvscope.app.documents.deployment import DeploymentFacts, LatencyFacts, deployment_facts
from kvscope.app.gates import tuned_tier_figures
from kvscope.app.tune_tiers import TierRecommendation
from kvscope.ingest.clocks import SessionStarts
from kvscope.tuning.bootstrap import Gain
from kvscope.tuning.canary import Canary
from kvscope.tuning.comparison import Harm
from kvscope.tuning.split import Split
from kvscope.tuning.tier_prices import TierKind
from kvscope.tuning.tier_trial import TierTrial
from kvscope.tuning.tiers import TierVerdict, Why


class TierFigures(Facts):
    """One tier, or the pool alone (`offload`, `kind` null), on one window.

    `token_hit_rate` is of pool and tier, `tier_hit_rate` of the tier alone. `prefill_share` is the
    prompts' computing time over the window's length. `gain` is the change of the target's
    percentile against the pool alone (positive: less), null for the pool. `written_bytes_s` is
    written to the tier, `wear` times what its memory is rated for; `cost_hour` is its price,
    `saved_hour` that of the GPU time that it saves, null without --gpu-hour. `files_bytes` are of
    an SSD below CPU memory (0: none), which files fill in `full_s`, null without; `tier_hit_rate`,
    `wear` (of what wears most) and `cost_hour` are then those of both. `interval_tokens` is the
    retention interval of a hybrid model: 0 vLLM's default, null all. The gain of the pool alone
    with another interval is against that with today's.
    """

    offload: str | None
    kind: TierKind | None
    size_bytes: int
    files_bytes: int
    interval_tokens: float | None
    full_s: float | None
    meets: bool
    ttft_at_percentile_ms: float | None
    attainment: float
    token_hit_rate: float
    tier_hit_rate: float
    prefill_share: float
    written_bytes_s: float
    wear: float
    cost_hour: float
    saved_hour: float | None
    gain: Gain | None
    harms: tuple[Harm, ...]


class TierEndFigures(Facts):
    """The choice at one end of what is not known exactly, on the held-out window.

    `prefill_times` and `copy_times` are factors; `holds`: it breaks no limit there, and
    saves its price where it was chosen for that.
    """

    name: str
    prefill_times: float
    copy_times: float
    capacity_blocks: int | None
    sessions: SessionStarts | None
    baseline: TierFigures
    choice: TierFigures
    holds: bool


class TierPriceFacts(Facts):
    """The price of one kind of memory, and where it is from."""

    kind: TierKind
    gib_hour: float
    writes_per_day: float | None
    source: str


class TierRejectionFacts(Facts):
    """Tiers under which requests never start, and why."""

    offload: str
    kind: TierKind
    size_bytes: int
    files_bytes: int
    reason: str


class TuneTiersDocument(GatedDocument):
    """What `kvscope tune --tiers` finds.

    `verdict` is pays, helps, set-interval (of the pool alone) or keep-none; `why` of the last two:
    overloaded, no-gain, too-dear, costs-more, met-without, held-out, uncertain or never-starts.
    `recommended` is on the held-out window, null for no tier. `today` is the pool alone as it is,
    `interval` the same with another retention interval chosen for it, which is kept if
    `interval_kept`; `baseline` is the pool alone with the interval that is kept, and `choice` the
    tier that was chosen: each on the validation and on the held-out window. `front` (no cheaper
    tier has as low a percentile), `sizes` of the choice's way to offload, and `least`, the smallest
    of them that does, are on the validation window; `explored` on the training window. Under
    `rejected`, requests of one of the windows never start. `launch` starts the engine, with
    `arguments` and variables of the `environment`; `left_out` is what the simulation lacks of it,
    and `canary` confirms its gain. `currency` is that of all prices, null for that of the prices
    stated.
    """

    command: Literal["tune-tiers"] = "tune-tiers"
    trace: TraceFacts
    model: ModelFacts | None
    deployment: DeploymentFacts
    latency: LatencyFacts
    slo_ms: float
    percentile: float
    pool_blocks: int
    block_bytes: int
    windows: Split
    verdict: TierVerdict
    why: Why
    words: tuple[str, ...]
    recommended: TierFigures | None
    today: tuple[TierFigures, ...]
    interval: tuple[TierFigures, ...]
    interval_kept: bool
    baseline: tuple[TierFigures, ...]
    choice: tuple[TierFigures, ...]
    front: tuple[TierFigures, ...]
    sizes: tuple[TierFigures, ...]
    least: TierFigures | None
    ends: tuple[TierEndFigures, ...]
    prices: tuple[TierPriceFacts, ...]
    gpu_hour: float | None
    currency: str | None
    launch: str | None
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    left_out: str | None
    canary: Canary | None
    explored: tuple[TierFigures, ...]
    rejected: tuple[TierRejectionFacts, ...]


def tune_tiers_document(tuned: TierRecommendation, words: Sequence[str]) -> TuneTiersDocument:
    """Return the document of `kvscope tune --tiers`, with the answer in words."""
    tuning, plan = tuned.tuning, tuned.plan
    alone = tuning.baseline

    def figures(trial: TierTrial, baseline: TierTrial) -> TierFigures:
        candidate, own, ttft_ms = trial.candidate, trial.trial, trial.trial.target_s * 1e3
        return TierFigures.build(
            trial,
            own,
            offload=candidate and candidate.offload,
            kind=candidate and candidate.kind,
            size_bytes=candidate.size_bytes if candidate else 0,
            files_bytes=candidate.files_bytes if candidate else 0,
            interval_tokens=trial.interval if np.isfinite(trial.interval) else None,
            full_s=trial.full_s,
            meets=own.meets(plan.target),
            wear=plan.wear(trial),
            ttft_at_percentile_ms=ttft_ms if np.isfinite(ttft_ms) else None,
            token_hit_rate=own.outcome.token_hit_rate,
            saved_hour=candidate and plan.saved_hour(baseline, trial),
            gain=own.gains.get(plan.target.objective),
        )

    recommended, launch, interval = tuning.recommended, tuned.launch, tuning.interval
    return TuneTiersDocument.build(
        tuned,
        tuning,
        plan,
        trace=TraceFacts.build(tuned.trace),
        model=model_facts(tuned.model),
        deployment=deployment_facts(tuned.deployment),
        latency=LatencyFacts.build(plan.setting, profile=plan.setting.latency),
        slo_ms=plan.target.slo_s * 1e3,
        percentile=plan.target.percentile,
        windows=tuning.split,
        words=tuple(words),
        currency=plan.currency or None,
        launch=launch and launch.text,
        arguments=launch.arguments if launch else (),
        environment=launch.environment if launch else {},
        figures=tuned_tier_figures(tuned),
        recommended=recommended and figures(recommended, alone[1]),
        today=tuple(figures(each, each) for each in tuning.today),
        interval=tuple(map(figures, interval.choice, tuning.today)) if interval else (),
        interval_kept=interval is not None and interval.kept,
        baseline=tuple(figures(each, each) for each in alone),
        choice=tuple(map(figures, tuning.choice or (), alone)),
        front=tuple(figures(each, alone[0]) for each in tuning.front),
        sizes=tuple(figures(each, alone[0]) for each in tuning.sizes),
        least=tuning.least and figures(tuning.least, alone[0]),
        ends=tuple(
            TierEndFigures.build(
                each.end,
                copy_times=each.copies,
                baseline=figures(each.baseline, each.baseline),
                choice=figures(each.choice, each.baseline),
                holds=each.holds,
            )
            for each in tuning.ends
        ),
        prices=tuple(TierPriceFacts.build(price, kind=kind) for kind, price in plan.prices.items()),
        explored=tuple(figures(each, tuning.trained) for each in tuning.explored),
        rejected=tuple(TierRejectionFacts.build(each, each.candidate) for each in tuning.rejected),
    )
