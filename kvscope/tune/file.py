"""A policy as a file for an engine's plugin: the part of a recommendation that the plugin reads."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

from kvscope import __version__
from kvscope.core.errors import InputError
from kvscope.latency import LatencyProfile
from kvscope.latency.file import lines_of, profile_in, quoted
from kvscope.learning.fitted import Fit, fit_in
from kvscope.learning.policy_file import (
    REMEDY,
    SCHEMA,
    number,
    policy_in,
    recommendation_in,
    table_in,
)
from kvscope.policies.base import Policy
from kvscope.tune.flags import Flags
from kvscope.tune.objective import Measure, Target, View, times_ms
from kvscope.tune.result import Judged, Tuning, Verdict


def lines(values: Mapping[str, str | float | Sequence[float]]) -> list[str]:
    """One line a value."""
    return [f"{name} = {_value(one)}" for name, one in values.items()]


def inline(values: Mapping[str, float]) -> str:
    """An inline table."""
    return "{ " + ", ".join(f"{name} = {_value(one)}" for name, one in values.items()) + " }"


def policy_lines(policy: Policy) -> list[str]:
    """The table `[policy]`."""
    return [
        "[policy]",
        *lines({"name": policy.name, "leaves": policy.evicts}),
        f"params = {inline(policy.values)}",
    ]


def _value(value: str | float | Sequence[float]) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int | float):
        # inf and nan are TOML too; what numpy calls a float has a name that is not
        return repr(value) if isinstance(value, int) else repr(float(value))
    return "[" + ", ".join(_value(float(one)) for one in value) + "]"


_LARGEST = 2**53  # tokens: what replays can count


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What a recommendation file says is to be run, and for which target."""

    trace: str
    verdict: Verdict
    policy: Policy
    capacity_tokens: int
    target: Target
    profile: LatencyProfile
    fitted: Fit | None = None


def write_recommendation(
    path: Path,
    found: Tuning,
    *,
    trace: str,
    block_size: int,
    profile: LatencyProfile,
    flags: Flags,
    capacity_bytes: int | None = None,
    fitted: Fit | None = None,
) -> None:
    """Write what `found` recommends, so that reading it gives the very same policy."""
    best = found.recommended
    tokens = best.trial.capacity_blocks * block_size
    text = [
        f"# Written by kvscope {__version__} for the trace {quoted(trace)}.",
        f"schema = {SCHEMA}",
        f"trace = {quoted(trace)}",
        f"verdict = {quoted(found.verdict)}  # switch, keep-lru, add-capacity or unreachable",
        "",
        "[target]  # at least this share of the requests within the SLO",
        f"slo_ms = {Decimal(repr(float(found.target.slo_s))) * 1_000}",
        *lines(
            {
                "percentile": found.target.percentile,
                "measure": found.target.measure,
                "view": found.target.view,
            }
        ),
        "",
        *policy_lines(best.trial.policy),
        *(["", *fitted.lines()] if fitted is not None else []),
        "",
        "[capacity]  # kept between requests: what runs comes on top of it",
        *lines({"tokens": tokens, "blocks": best.trial.capacity_blocks, "block_size": block_size}),
        *([f"bytes = {capacity_bytes}"] if capacity_bytes is not None else []),
        "",
        "[latency]  # what it was computed with",
        *lines_of(profile),
        "",
        f"[expected]  # by {found.split.judged_requests} requests that nothing was chosen on",
        f"lru = {inline(_figures(found.baseline, found.target.view))}",
        f"recommended = {inline(_figures(best, found.target.view))}",
        "",
        "[gain]  # share by which a figure is less than with LRU: value, low and high (95 %)",
        *lines({name: [one.value, one.low, one.high] for name, one in best.gains.items()}),
        "",
        "[flags]  # those of an engine that has the policy",
        *lines(
            {
                name: text
                for name in ("sglang", "vllm")
                if (text := getattr(flags, name)) is not None
            }
        ),
    ]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")


def read_recommendation(path: Path) -> Recommendation:
    """The recommendation in the file at `path`.

    Raises InputError with the file, the key, the value and the remedy.
    """
    document, where = recommendation_in(path), str(path)
    target, latency = (table_in(document, name, where) for name in ("target", "latency"))
    tokens = table_in(document, "capacity", where).get("tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 <= tokens <= _LARGEST:
        raise InputError(
            f"{tokens!r} is no capacity", where=f"{path}: capacity.tokens", remedy=REMEDY
        )
    policy = policy_in(document, where)
    return Recommendation(
        trace=str(document.get("trace", "")),
        verdict=_one_of(f"{path}: verdict", document.get("verdict"), get_args(Verdict)),
        policy=policy,
        capacity_tokens=tokens,
        target=_target(path, target),
        profile=profile_in(latency, f"{path}: latency"),
        fitted=fit_in(document, policy, where),
    )


def _figures(judged: Judged, view: View) -> dict[str, float]:
    outcome = judged.trial.outcome
    times = times_ms(outcome, view)
    return {
        "p50_ms": times.p50,
        "p90_ms": times.p90,
        "p95_ms": times.p95,
        "p99_ms": times.p99,
        "violation_share": judged.trial.violation_share,
        "token_hit_rate": outcome.token_hit_rate,
    }


def _target(path: Path, table: Mapping[str, Any]) -> Target:
    slo_ms = number(f"{path}: target.slo_ms", table.get("slo_ms"))
    percentile = number(f"{path}: target.percentile", table.get("percentile"))
    if not 0 < slo_ms < math.inf:
        raise InputError(
            f"{slo_ms:g} is no time to keep",
            where=f"{path}: target.slo_ms",
            remedy="write milliseconds, such as 200",
        )
    if not 0 < percentile < 1:
        raise InputError(
            f"{percentile:g} is not between 0 and 1",
            where=f"{path}: target.percentile",
            remedy="write 0.95 for p95",
        )
    return Target(
        slo_s=float(Decimal(table["slo_ms"]) / 1_000),
        percentile=percentile,
        measure=_one_of(
            f"{path}: target.measure", table.get("measure", "percentile"), get_args(Measure)
        ),
        view=_one_of(f"{path}: target.view", table.get("view", "unloaded"), get_args(View)),
    )


def _one_of(where: str, value: object, known: Sequence[str]) -> Any:
    if value not in known:
        raise InputError(
            f"{value!r} is not known", where=where, remedy="write one of " + ", ".join(known)
        )
    return value


def write_policy(
    path: Path, policy: Policy, fitted: Fit | None, *, trace: str, block_size: int
) -> None:
    """Write the policy, and what was fitted for it, to `path`: all of it or nothing."""
    text = [
        f"# Written by kvscope {__version__}, `kvscope fit --export`, from {quoted(trace)}.",
        f"schema = {SCHEMA}",
        f"trace = {quoted(trace)}",
        f"block_size = {block_size}  # tokens, of the trace; an engine may have others",
        "",
        *policy_lines(policy),
        *(["", *fitted.lines()] if fitted is not None else []),
    ]
    write_whole(path, "\n".join(text) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Put `text` in the place of what `path` has; who reads it finds the one or the other."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)  # mkstemp's is for its owner alone
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
