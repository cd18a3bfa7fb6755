"""The result of a validation, new or stored, and whether the engine behaves as predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from kvscope.core.percentiles import Percentiles
from kvscope.core.trace import Trace
from kvscope.core.units import duration_in_words
from kvscope.store import results
from kvscope.store.db import Store
from kvscope.tuning.bootstrap import FEWEST, Bootstrap, Gain, Resampled
from kvscope.tuning.target import Target
from kvscope.validate.tokens import TraceSample

Verdict = Literal["confirmed", "not confirmed", "inconclusive"]

HITS_IN_FLIGHT = 0.01
"""The share of hit tokens that may differ where requests overlap: the end of steps is unknown."""
FAILED = 0.01
"""The share of requests without an answer that makes a run inconclusive."""
_NO_SLO_S = 1e9
_NOT_PROFILED = "TTFT is not judged without the engine's latency (`kvscope calibrate`, --latency)"


class EngineFacts(Struct, frozen=True):
    """The engine that was measured, as far as it is known.

    `blocks` is the number that requests can use, `flags` are the engine's flags for all policies.
    """

    name: str
    version: str | None
    device: str | None
    model: str
    blocks: int
    block_size: int
    flags: tuple[str, ...] = ()


class Figures(Struct, frozen=True):
    """Predicted or measured figures of the counted requests; TEL and violations need an SLO.

    `answer_ms` is the time to the last token; None as a prediction for requests in sequence.
    """

    hit_tokens: int
    token_hit_rate: float
    ttft_ms: Percentiles
    tel_ms: float | None
    violations: int | None
    answer_ms: Percentiles | None = None


class RunFacts(Struct, frozen=True):
    """One run of one policy on the engine, number `repeat` (from 0): prediction and measurement.

    Figures cover the `counted` requests: those after the warm-up that were answered. In
    `mismatched_requests`, cached tokens differ from the prediction, by `mismatched_tokens` in
    total; None where the engine does not report hits. Arrays have an entry for each request of the
    run; `failed` has the errors of unanswered ones. `ended` is why the run ended early, or empty.
    `numbers` are the requests' numbers in the trace; empty where they were not kept. `leaves`: the
    policy evicts blocks without cached children ("leaf") or all ("any").
    """

    DOCUMENT: ClassVar[str] = (
        "policy leaves params repeat flags counted=counted_requests predicted measured"
        " mismatched_requests mismatched_tokens failed_requests failures ended=ended_early"
    )
    policy: str
    leaves: str
    params: Mapping[str, float]
    repeat: int
    flags: tuple[str, ...]
    predicted: Figures
    measured: Figures
    counted: NDArray[np.bool_]
    mismatched_requests: int | None
    mismatched_tokens: int | None
    predicted_hit_tokens: NDArray[np.int64]
    measured_hit_tokens: NDArray[np.int64]
    predicted_ttft_s: NDArray[np.float64]
    measured_ttft_s: NDArray[np.float64]
    failed: Mapping[int, str]
    ended: str = ""
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def counted_requests(self) -> int:
        """The number of counted requests."""
        return int(self.counted.sum())

    @property
    def failed_requests(self) -> int:
        """The number of requests without an answer."""
        return len(self.failed)

    @property
    def failures(self) -> tuple[str, ...]:
        """The distinct errors of the failed requests."""
        return tuple(sorted(set(self.failed.values())))

    @property
    def ended_early(self) -> str | None:
        """Why the run ended early, None where it did not."""
        return self.ended or None


class Check(Struct, frozen=True):
    """A criterion of the verdict, in `words`; `passed` is None if the run is inconclusive."""

    name: str
    passed: bool | None
    words: str


class GainComparison(Struct, frozen=True):
    """The recommended policy's gain over LRU, predicted and measured, by figure.

    Figures are TTFT percentiles, such as "p95", "violations" (requests beyond the SLO) and "tel".
    A gain is the relative reduction of a figure, with its 95 % interval.
    """

    predicted: Mapping[str, Gain]
    measured: Mapping[str, Gain]


class ValidationFacts(Struct, frozen=True, kw_only=True):
    """The facts of a validation that the store keeps; `ended` is why it ended early, or empty.

    `latency` is the name of the latency profile. `tolerance` is the share of the predicted TTFT by
    which the measured one may differ. `forced_outputs`: the engine generates the trace's outputs.
    `deployment` has the deployment's stated options by their keys in kvscope.toml; null without.
    """

    engine: EngineFacts
    pace: str
    forced_outputs: bool
    latency: str
    tolerance: float
    slo_s: float | None
    verdict: Verdict
    ended: str
    runs: tuple[RunFacts, ...]
    deployment: Mapping[str, Any] | None = None


class RequestCounts(Struct, frozen=True):
    """Counts of requests: `of` in the whole trace, `sent`, and left out for each reason.

    The first `warmup` of those sent are not judged. `not_drawn`: conversations outside the sample.
    `later`: after the limit of time or of requests. `too_long`: more tokens than the engine takes,
    or an empty prompt.
    """

    of: int
    sent: int
    warmup: int
    not_drawn: int
    later: int
    too_long: int


class Validation(ValidationFacts, frozen=True, kw_only=True):
    """The measurements of `kvscope validate` next to the predictions, and the verdict."""

    DOCUMENT: ClassVar[str] = (
        "trace engine deployment pace forced_outputs latency tolerance slo_ms requests runs"
        " gain=compared checks verdict ended=ended_early"
    )
    trace: Trace
    warmup: int
    sample: TraceSample
    compared: GainComparison | None
    checks: tuple[Check, ...]

    @property
    def requests(self) -> RequestCounts:
        """Counts of the requests that were sent, and of those left out, by reason."""
        sample = self.sample
        return RequestCounts(
            of=sample.total,
            sent=len(sample.prompts.leaf),
            warmup=self.warmup,
            not_drawn=sample.outside_sample,
            later=sample.beyond_limit,
            too_long=sample.too_long,
        )

    @property
    def ended_early(self) -> str | None:
        """Why the validation ended early, None where it did not."""
        return self.ended or None


class StoredValidation(ValidationFacts, frozen=True, kw_only=True):
    """A validation from the store, where runs have only their counted requests."""

    created_at: datetime


def stored_validations(store: Store, trace: Trace) -> tuple[StoredValidation, ...]:
    """Return the validations of `trace`, the latest first."""
    facts = {*StoredValidation.__struct_fields__} - {"engine", "runs"}
    return tuple(
        StoredValidation(
            engine=msgspec.convert(row["engine"], EngineFacts),
            runs=tuple(_run(run) for run in results.validation_runs(store, row["validation_id"])),
            **{name: row[name] for name in facts},
        )
        for row in results.all_validations(store, trace)
    )


def _run(row: Mapping[str, Any]) -> RunFacts:
    own = ("policy", "leaves", "repeat", "mismatched_requests", "mismatched_tokens", "ended")
    return RunFacts(
        **{name: row[name] for name in own},
        params=dict(row["params"]),
        flags=tuple(row["flags"]),
        predicted=msgspec.convert(row["predicted"], Figures),
        measured=msgspec.convert(row["measured"], Figures),
        counted=np.ones(len(row["measured_ttft_s"]), dtype=np.bool_),
        predicted_hit_tokens=np.array(row["predicted_hit_tokens"], dtype=np.int64),
        measured_hit_tokens=np.array(row["measured_hit_tokens"], dtype=np.int64),
        predicted_ttft_s=np.array(row["predicted_ttft_s"], dtype=np.float64),
        measured_ttft_s=np.array(row["measured_ttft_s"], dtype=np.float64),
        numbers=np.array(row["request_numbers"] or (), dtype=np.int64),
        # The store has their number, but neither which ones nor why.
        failed=dict.fromkeys(range(row["failed_requests"]), ""),
    )


def judge(
    runs: Sequence[RunFacts],
    conversation: NDArray[np.int32],
    *,
    baseline: str,
    target: Target | None,
    tolerance: float,
    sequential: bool,
    profiled: bool = True,
) -> tuple[tuple[Check, ...], GainComparison | None, Verdict]:
    """Return the checks, the gain over `baseline` where two policies ran, and the verdict.

    Hits must be exactly those predicted in `sequential` runs, and may differ by 1 % else. A TTFT
    passes within `tolerance` of the prediction (a share); it fails if its whole 95 % interval lies
    outside, for which ten conversations are needed (`FEWEST`). A gain passes if its interval lies
    above 0, and fails if it lies below. Without a latency profile of the engine (`profiled`), no
    TTFT is judged. Judged are p50 and the figure that `target` ranks by (None: p95); a share of
    violations passes if it differs from the predicted one by at most `tolerance`.

    `conversation` has the conversation of each request of a run: intervals resample whole ones.
    """
    goal = target or Target(_NO_SLO_S)
    by_policy: dict[str, list[RunFacts]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    checks = [check for run in runs for check in _complete(run)]
    figures: dict[str, tuple[Bootstrap, Resampled, Resampled]] = {}
    for policy, repeats in by_policy.items():
        checks.append(_hits(policy, repeats, sequential=sequential))
        # A conversation is drawn with all its repeats.
        bootstrap = Bootstrap(np.concatenate([conversation[run.counted] for run in repeats]), goal)
        predicted = bootstrap.figures(
            np.concatenate([run.predicted_ttft_s[run.counted] for run in repeats])
        )
        measured = bootstrap.figures(
            np.concatenate([run.measured_ttft_s[run.counted] for run in repeats])
        )
        figures[policy] = bootstrap, predicted, measured
        names = list(bootstrap.gains(predicted, measured))
        if not profiled:
            checks.append(Check("ttft", None, f"{policy}: {_NOT_PROFILED}"))
            continue
        for name in dict.fromkeys(("p50", goal.objective)):
            at, interval = names.index(name), None
            if bootstrap.conversations >= FEWEST:
                interval = bootstrap.interval(measured, name)
            predicted_value, measured_value = float(predicted.value[at]), float(measured.value[at])
            checks.append(_ttft(policy, name, predicted_value, measured_value, interval, tolerance))
    other = next((policy for policy in by_policy if policy != baseline), None)
    gains = None
    if other is not None and baseline in by_policy:
        _, *of_baseline = figures[baseline]
        bootstrap, *of_other = figures[other]
        gains = GainComparison(*map(bootstrap.gains, of_baseline, of_other))
        checks.append(_gain(other, goal.objective, gains))
    verdict: Verdict = "confirmed" if all(each.passed for each in checks) else "inconclusive"
    if any(check.passed is False for check in checks):
        verdict = "not confirmed"
    return tuple(checks), gains, verdict


def _complete(run: RunFacts) -> list[Check]:
    """Return an inconclusive check if a run ended early or too many requests failed, else none."""
    if run.ended:
        return [Check("complete", None, f"the run of {run.policy} ended early: {run.ended}")]
    if len(run.failed) > FAILED * len(run.counted):
        reason = next(iter(run.failed.values()))
        failed = f"{len(run.failed)} of {len(run.counted)} requests got no answer"
        return [Check("complete", None, f"{run.policy}: {failed} ({reason})")]
    return []


def _hits(policy: str, runs: Sequence[RunFacts], *, sequential: bool) -> Check:
    if any(run.mismatched_tokens is None for run in runs):
        return Check("hits", None, f"{policy}: the engine does not report its hits")
    off = sum(run.mismatched_tokens or 0 for run in runs)
    predicted = sum(run.predicted.hit_tokens for run in runs)
    requests = sum(run.mismatched_requests or 0 for run in runs)
    counted = sum(int(run.counted.sum()) for run in runs)
    share = off / predicted if predicted else float(off > 0)
    words = "every request hit exactly the tokens predicted"
    if off:
        words = (
            f"{requests:,} of {counted:,} requests hit other tokens than predicted, {off:,}"
            f" in all, {share:.2%} of the hits"
        )
    return Check("hits", share <= (0 if sequential else HITS_IN_FLIGHT), f"{policy}: {words}")


def _ttft(
    policy: str,
    name: str,
    predicted: float,
    measured: float,
    interval: tuple[float, float] | None,
    tolerance: float,
) -> Check:
    if name == "violations":
        words = (
            f"{policy}: {measured:.1%} of the requests beyond the SLO, predicted {predicted:.1%}"
        )
        return Check(name, abs(predicted - measured) <= tolerance, words)
    least, most = predicted * (1 - tolerance), predicted * (1 + tolerance)
    passed: bool | None = least <= measured <= most
    if interval is None:
        passed, certainty = passed or None, f"no interval: fewer than {FEWEST} conversations"
    else:
        low, high = interval
        if not passed and low <= most and high >= least:
            passed = None
        certainty = f"95 % CI {duration_in_words(low)} to {duration_in_words(high)}"
    return Check(
        name,
        passed,
        f"{policy}: {name} TTFT {duration_in_words(measured)}, predicted"
        f" {duration_in_words(predicted)} ({measured / predicted - 1:+.1%} off; {certainty})",
    )


def _gain(policy: str, name: str, gains: GainComparison) -> Check:
    measured, predicted = gains.measured[name], gains.predicted[name]
    return Check(
        "gain",
        True if measured.low > 0 else False if measured.high < 0 else None,
        f"{policy}: {name} {-measured.value:+.1%} against LRU (95 % CI {-measured.high:+.1%} to"
        f" {-measured.low:+.1%}), predicted {-predicted.value:+.1%}",
    )
