"""Whether an engine behaves as predicted: confirmed, not confirmed, or inconclusive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvscope.core.units import format_duration
from kvscope.tuning.bootstrap import FEWEST, Bootstrap, Resampled
from kvscope.tuning.target import Target
from kvscope.validate.result import Check, GainComparison, RunFacts, Verdict

HITS_IN_FLIGHT = 0.01
"""The share of hit tokens that may differ where requests overlap: the end of steps is unknown."""
FAILED = 0.01
"""The share of requests without an answer that makes a run inconclusive."""

_NO_SLO_S = 1e9
_NOT_PROFILED = "TTFT is not judged without the engine's latency (`kvscope calibrate`, --latency)"


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

    A TTFT passes within `tolerance` of the prediction; it fails if its whole 95 % interval lies
    outside, which takes `FEWEST` conversations. A gain passes if its interval lies above 0, and
    fails if it lies below. Without a latency profile of the engine (`profiled`), no TTFT is judged.
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
    return tuple(checks), gains, _verdict(checks)


def _verdict(checks: Sequence[Check]) -> Verdict:
    if any(check.passed is False for check in checks):
        return "not confirmed"
    return "confirmed" if all(check.passed for check in checks) else "inconclusive"


def _complete(run: RunFacts) -> list[Check]:
    """Return a check for a run that is incomplete."""
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
        certainty = f"95 % CI {format_duration(low)} to {format_duration(high)}"
    return Check(
        name,
        passed,
        f"{policy}: {name} TTFT {format_duration(measured)}, predicted"
        f" {format_duration(predicted)} ({measured / predicted - 1:+.1%} off; {certainty})",
    )


def _gain(policy: str, name: str, gains: GainComparison) -> Check:
    measured, predicted = gains.measured[name], gains.predicted[name]
    return Check(
        "gain",
        True if measured.low > 0 else False if measured.high < 0 else None,
        f"{policy}: {name} {-measured.value:+.1%} against LRU (95 % CI {-measured.high:+.1%} to"
        f" {-measured.low:+.1%}), predicted {-predicted.value:+.1%}",
    )
