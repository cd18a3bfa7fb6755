"""Whether an engine does what was predicted: confirmed, not confirmed, or too little to tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvscope.core.units import format_duration
from kvscope.tuning.bootstrap import FEWEST, Bootstrap, Gain, Resampled
from kvscope.tuning.target import Target
from kvscope.validate.result import Check, Compared, RunFacts, Verdict

HITS_AT_ONCE = 0.01
"""The share of hit tokens by which requests that meet may differ: when steps end is not known."""
FAILED = 0.01
"""The share of requests without an answer from which on nothing is said."""

_NO_SLO_S = 1e9


def judged(
    runs: Sequence[RunFacts],
    conversation: NDArray[np.int32],
    *,
    baseline: str,
    target: Target | None,
    tolerance: float,
    sequential: bool,
) -> tuple[tuple[Check, ...], Compared | None, Verdict]:
    """What was compared, the gain over `baseline` where two policies ran, and the verdict.

    A TTFT passes within `tolerance` of the prediction; it fails if its whole 95 % interval lies
    outside, which takes `FEWEST` conversations. A gain passes if its interval lies above 0, and
    fails if it lies below.
    """
    goal = target or Target(_NO_SLO_S)
    by_policy: dict[str, list[RunFacts]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    checks = [check for run in runs for check in _complete(run)]
    drawn: dict[str, tuple[Resampled, Resampled]] = {}
    for name, likes in by_policy.items():
        checks.append(_hits(name, likes, sequential=sequential))
        bootstrap, predicted, measured = _draws(likes, conversation, goal)
        drawn[name] = predicted, measured
        names = list(bootstrap.gains(predicted, measured))
        checks += [
            _ttft(
                name,
                figure,
                float(predicted.value[names.index(figure)]),
                float(measured.value[names.index(figure)]),
                _interval(bootstrap, measured, figure),
                tolerance,
            )
            for figure in dict.fromkeys(("p50", goal.objective))
        ]
    other = next((name for name in by_policy if name != baseline), None)
    found = None
    if other is not None and baseline in by_policy:
        bootstrap, *_ = _draws(by_policy[other], conversation, goal)
        pairs = zip(drawn[baseline], drawn[other], strict=True)
        found = Compared(*(bootstrap.gains(before, after) for before, after in pairs))
        checks.append(_gain(other, goal.objective, found))
    return tuple(checks), found, _verdict(checks)


def _verdict(checks: Sequence[Check]) -> Verdict:
    if any(check.passed is False for check in checks):
        return "not confirmed"
    return "confirmed" if all(check.passed for check in checks) else "inconclusive"


def _complete(run: RunFacts) -> list[Check]:
    """What is to be said of a run that is not whole."""
    if run.ended:
        return [Check("complete", None, f"the run of {run.policy} ended early: {run.ended}")]
    if len(run.failed) > FAILED * len(run.counted):
        reason = next(iter(run.failed.values()))
        failed = f"{len(run.failed)} of {len(run.counted)} requests got no answer"
        return [Check("complete", None, f"{run.policy}: {failed} ({reason})")]
    return []


def _hits(name: str, runs: Sequence[RunFacts], *, sequential: bool) -> Check:
    if any(run.mismatched_tokens is None for run in runs):
        return Check("hits", None, f"{name}: the engine does not tell what it hit")
    off = sum(run.mismatched_tokens or 0 for run in runs)
    predicted = sum(run.predicted.hit_tokens for run in runs)
    requests = sum(run.mismatched_requests or 0 for run in runs)
    counted = sum(int(run.counted.sum()) for run in runs)
    share = off / predicted if predicted else float(off > 0)
    passed = share <= (0 if sequential else HITS_AT_ONCE)
    if not off:
        return Check("hits", passed, f"{name}: every request hit exactly the tokens predicted")
    return Check(
        "hits",
        passed,
        f"{name}: {requests:,} of {counted:,} requests hit other tokens than predicted, {off:,}"
        f" in all, {share:.2%} of the hits",
    )


def _draws(
    runs: Sequence[RunFacts], conversation: NDArray[np.int32], goal: Target
) -> tuple[Bootstrap, Resampled, Resampled]:
    """The figures of all runs of one policy, a conversation being drawn with all its repeats."""
    bootstrap = Bootstrap(np.concatenate([conversation[run.counted] for run in runs]), goal)
    predicted = np.concatenate([run.predicted_ttft_s[run.counted] for run in runs])
    measured = np.concatenate([run.measured_ttft_s[run.counted] for run in runs])
    return bootstrap, bootstrap.figures(predicted), bootstrap.figures(measured)


def _interval(bootstrap: Bootstrap, drawn: Resampled, figure: str) -> tuple[float, float] | None:
    """The 95 % interval of a figure; None where there are too few conversations to draw from."""
    return bootstrap.interval(drawn, figure) if bootstrap.conversations >= FEWEST else None


def _ttft(
    name: str,
    figure: str,
    said: float,
    was: float,
    interval: tuple[float, float] | None,
    tolerance: float,
) -> Check:
    if figure == "violations":
        return _violations(name, said, was, tolerance)
    least, most = said * (1 - tolerance), said * (1 + tolerance)
    passed: bool | None = least <= was <= most
    if interval is None:
        passed, told = passed or None, f"fewer than {FEWEST} conversations tell no interval"
    else:
        low, high = interval
        if not passed and low <= most and high >= least:
            passed = None
        told = f"95 % interval {format_duration(low)} to {format_duration(high)}"
    return Check(
        figure,
        passed,
        f"{name}: {figure} TTFT {format_duration(was)}, predicted {format_duration(said)}"
        f" ({was / said - 1:+.1%} off; {told})",
    )


def _violations(name: str, said: float, was: float, tolerance: float) -> Check:
    passed = abs(said - was) <= tolerance
    return Check(
        "violations",
        passed,
        f"{name}: {was:.1%} of the requests beyond the SLO, predicted {said:.1%}",
    )


def _gain(name: str, figure: str, found: Compared) -> Check:
    measured, predicted = found.measured[figure], found.predicted[figure]
    passed = True if measured.low > 0 else False if measured.high < 0 else None
    return Check(
        "gain",
        passed,
        f"{name}: {figure} {_change(measured)} against LRU (95 % interval {-measured.high:+.1%} to"
        f" {-measured.low:+.1%}), predicted {_change(predicted)}",
    )


def _change(gain: Gain) -> str:
    return f"{-gain.value:+.1%}"
