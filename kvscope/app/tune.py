"""Tune: recommend policy, parameters and capacity for an SLO, and write recommendation.toml."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from kvscope.app.monitor import Monitor
from kvscope.app.requests import TuneRequest
from kvscope.characterize.windows import round_windows
from kvscope.core import units
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Outcome
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.models import Model
from kvscope.latency.profile import LatencyProfile
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.learners import fit_for
from kvscope.policies.base import Policy
from kvscope.replay.derived_traces import isolate
from kvscope.replay.policy_options import CONTENDERS, FORESEEING, format_value
from kvscope.replay.traffic import traffic
from kvscope.tuning.file import write_recommendation
from kvscope.tuning.flags import Flags, flags
from kvscope.tuning.search import XI
from kvscope.tuning.trial import Trial, times_ms
from kvscope.tuning.tuner import (
    HELD_OUT,
    ORACLES,
    SCALES,
    WARMUP,
    HeldOutTrial,
    TuningOptions,
    TuningResult,
)
from kvscope.tuning.tuner import tune as tune_policies


@dataclass(frozen=True, slots=True)
class Assumption:
    """A value that was assumed, and why."""

    name: str
    value: str
    why: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A tuning with the trace and the model that it is for; `path` is where it is written."""

    trace: Trace
    model: Model | None
    hbm_bytes: int | None
    profile: LatencyProfile
    tuning: TuningResult
    assumptions: tuple[Assumption, ...] = ()
    path: str = "recommendation.toml"

    def size(self, blocks: int) -> str:
        """Return a capacity in every unit that is known."""
        return units.blocks_tokens_bytes(
            blocks,
            block_size=self.trace.block_size,
            bytes_per_token=self.model.bytes_per_token if self.model else None,
        )

    def bytes_in(self, blocks: int) -> int | None:
        """Return the bytes of so many blocks, None without a model."""
        return self.model.bytes_for(blocks * self.trace.block_size) if self.model else None

    def flags_at(self, trial: Trial) -> Flags:
        """Return the engine flags of a policy at its capacity."""
        return flags(trial.policy, trial.capacity_blocks * self.trace.block_size)

    def flags_for(self, other: HeldOutTrial) -> Flags:
        """Return the engine flags of another policy at the recommended capacity."""
        blocks = self.tuning.recommended.capacity_blocks
        return self.flags_at(replace(other, capacity_blocks=blocks))

    @property
    def flags(self) -> Flags:
        """Engine flags of what is recommended."""
        return self.flags_for(self.tuning.recommended)

    def next_best_for_sglang(self) -> HeldOutTrial | None:
        """Return the first contender that is significantly better than LRU and runs in SGLang."""
        objective = self.tuning.target.objective
        for contender in self.tuning.contenders:
            if contender.gains[objective].significant and self.flags_for(contender).sglang:
                return contender
        return None

    @property
    def ttft(self) -> str:
        """What the target calls TTFT: as on an idle engine, or queued."""
        return "TTFT" if self.tuning.target.view == "unloaded" else "queued TTFT"

    @property
    def target_name(self) -> str:
        """The latency that decides: p95 TTFT."""
        return f"{units.format_percentile(self.tuning.target.percentile)} {self.ttft}"

    def times_ms(self, outcome: Outcome) -> Percentiles:
        """Return the percentiles of TTFT in the target's view."""
        return times_ms(outcome, self.tuning.target.view)

    def called(self, policy: Policy) -> str:
        """Return a policy's name, with the parameters that are neither defaults nor estimates."""
        usual = {parameter.name: parameter.default for parameter in policy.parameters}
        estimates = self.tuning.estimates.items()
        usual |= {name: estimate.value for name, estimate in estimates if name != XI}
        chosen = [
            f"{name}={format_value(name, value)}"
            for name, value in policy.values.items()
            if value != usual[name]
        ]
        star = FORESEEING if policy.hindsight else ""
        return " ".join([policy.name + star, *chosen])


def kernels(request: TuneRequest) -> list[type[Policy]]:
    """Return the policies whose kernels the request needs."""
    return [*(variant.policy for variant in request.variants), *ORACLES]


def tune(
    trace: Trace, prompts: Prompts, request: TuneRequest, monitor: Monitor | None = None
) -> Recommendation:
    """Return the recommendation for `request`, and all that it rests on.

    Raises Stopped once the monitor's `stop` is set, InputError for a trace that is too short to be
    split, UsageError for shares that cannot split it and for a capacity that holds no block.
    """
    monitor = monitor or Monitor()
    capacities = request.capacities.in_blocks(request.model, trace.block_size)
    lowest, highest = _blocks_in_range(request, trace)
    tuning_options = TuningOptions(
        target=request.target,
        variants=request.variants,
        capacity_blocks=capacities[0] if capacities else None,
        lowest_blocks=lowest,
        highest_blocks=highest,
        warmup=WARMUP if request.warmup is None else request.warmup,
        held_out=HELD_OUT if request.judge is None else request.judge,
        scales=() if "--latency" in request.given else SCALES,
    )
    tuning = tune_policies(
        prompts,
        request.setting,
        tuning_options,
        round_windows(trace),
        lineage=trace.lineage,
        progress=monitor.steps,
        stop=monitor.stop,
    )
    tuned = Recommendation(trace, request.model, request.hbm_bytes, request.profile, tuning)
    return replace(tuned, assumptions=_assumptions(tuned, request.given))


def engine_fit(tuned: Recommendation, prompts: Prompts) -> FittedTable | None:
    """Return the table that the recommended policy needs in an engine, fitted to the whole trace.

    None for a policy without one. An engine goes on fitting where it can, as the replays did that
    the policy was judged by.
    """
    recommended, setting = tuned.tuning.recommended, tuned.tuning.setting
    if recommended.policy.learner is None:
        return None
    whole = isolate(prompts, setting.isolate) if setting.isolate else prompts
    fitted = fit_for(
        traffic(whole, setting.definition), recommended.policy, recommended.capacity_blocks
    )
    return None if fitted is None else fitted.refitted_in_engine()


def write_recommended(path: Path, tuned: Recommendation, prompts: Prompts) -> None:
    """Write recommendation.toml to `path`, with what an engine needs for the policy."""
    blocks = tuned.tuning.recommended.capacity_blocks
    write_recommendation(
        path,
        tuned.tuning,
        trace=tuned.trace.name,
        block_size=tuned.trace.block_size,
        profile=tuned.profile,
        flags=tuned.flags,
        capacity_bytes=tuned.bytes_in(blocks),
        fitted=engine_fit(tuned, prompts),
    )


def _blocks_in_range(request: TuneRequest, trace: Trace) -> tuple[int, int | None]:
    if request.range_bytes is None or request.model is None:
        return 0, None
    low, high = (request.model.blocks_in(size, trace.block_size) for size in request.range_bytes)
    return low, high


def _assumptions(tuned: Recommendation, given: frozenset[str]) -> tuple[Assumption, ...]:
    """Return what was taken for the options that are not `given`, and why."""
    tuning, profile = tuned.tuning, tuned.profile
    line = f"{units.format_duration(profile.base_s)} + {profile.per_token_s * 1e6:.3g} us a token"
    taken = (
        ("--latency", profile.name, f"a preset, {line}: measure yours with kvscope calibrate"),
        ("--model", tuned.model.name if tuned.model else "none", "the latency preset's"),
        (
            "--capacity",
            f"{tuning.capacity_blocks:,} blocks",
            "LRU gets half of the possible hits, in the training window",
        ),
        ("--percentile", units.format_percentile(tuning.target.percentile), "the usual SLO"),
        (
            "--warmup, --judge",
            f"{tuning.split.warmup_requests:,} and {tuning.split.judged_requests:,} requests",
            "a warm cache, and enough requests in both windows",
        ),
        ("--policies", CONTENDERS, "they see no more than an engine does"),
    )
    estimated = [
        Assumption(
            name, format_value(name, tuning.estimates[name].value), "mean of the training window"
        )
        for name in ("next_prompt_tokens", "turn_rate_per_s")
        if name in tuning.estimates
    ]
    return (*(Assumption(*row) for row in taken if row[0] not in given), *estimated)
