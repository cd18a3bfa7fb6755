"""The recommendation as a file, `recommendation.toml`: for people to read, and to be read back.

schema = 1
verdict = "switch"

[target]
slo_ms = 200
percentile = 0.95

[policy]
name = "tlru"
leaves = "leaf"
params = { xi_tokens = 2048.0, next_prompt_tokens = 256.0, ttl_s = inf }

[capacity]
tokens = 184432

[latency]  # a latency profile, as kvscope.simulate.latency.file has it
[expected], [gain] and [flags] are there to be read by people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

from kvscope import __version__
from kvscope.errors import InputError, UsageError
from kvscope.policies.base import Policy
from kvscope.policies.registry import by_name
from kvscope.simulate.latency import LatencyProfile
from kvscope.simulate.latency.file import document_in, lines_of, profile_in, quoted
from kvscope.tune.facts import Judged, Tuning, Verdict
from kvscope.tune.flags import Flags
from kvscope.tune.objective import Measure, Target, View, times_ms

SCHEMA = 1
_REMEDY = "`kvscope tune` writes such a file"
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


def write_recommendation(
    path: Path,
    found: Tuning,
    *,
    trace: str,
    block_size: int,
    profile: LatencyProfile,
    flags: Flags,
    capacity_bytes: int | None = None,
) -> None:
    """Write what `found` recommends, so that reading it gives the very same policy."""
    best = found.recommended
    tokens = best.trial.capacity_blocks * block_size
    lines = [
        f"# Written by kvscope {__version__} for the trace {quoted(trace)}.",
        f"schema = {SCHEMA}",
        f"trace = {quoted(trace)}",
        f"verdict = {quoted(found.verdict)}  # switch, keep-lru, add-capacity or unreachable",
        "",
        "[target]  # at least this share of the requests within the SLO",
        f"slo_ms = {Decimal(repr(float(found.target.slo_s))) * 1_000}",
        *_lines(
            {
                "percentile": found.target.percentile,
                "measure": found.target.measure,
                "view": found.target.view,
            }
        ),
        "",
        "[policy]",
        *_lines({"name": best.trial.policy.name, "leaves": best.trial.policy.evicts}),
        f"params = {_inline(best.trial.policy.values)}",
        "",
        "[capacity]  # kept between requests: what runs comes on top of it",
        *_lines({"tokens": tokens, "blocks": best.trial.capacity_blocks, "block_size": block_size}),
        *([f"bytes = {capacity_bytes}"] if capacity_bytes is not None else []),
        "",
        "[latency]  # what it was computed with",
        *lines_of(profile),
        "",
        f"[expected]  # by {found.split.judged_requests} requests that nothing was chosen on",
        f"lru = {_inline(_figures(found.baseline, found.target.view))}",
        f"recommended = {_inline(_figures(best, found.target.view))}",
        "",
        "[gain]  # share by which a figure is less than with LRU: value, low and high (95 %)",
        *_lines({name: [one.value, one.low, one.high] for name, one in best.gains.items()}),
        "",
        "[flags]  # those of an engine that has the policy",
        *_lines(
            {
                name: text
                for name in ("sglang", "vllm")
                if (text := getattr(flags, name)) is not None
            }
        ),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_recommendation(path: Path) -> Recommendation:
    """The recommendation in the file at `path`.

    Raises InputError with the file, the key, the value and the remedy.
    """
    document = document_in(path, _REMEDY)
    if document.get("schema") != SCHEMA:
        raise InputError(
            f"schema {document.get('schema')!r}, this kvscope knows {SCHEMA}",
            where=f"{path}: schema",
            remedy="tune again, or upgrade kvscope",
        )
    target, policy = (_table(path, document, name) for name in ("target", "policy"))
    latency = _table(path, document, "latency")
    tokens = _table(path, document, "capacity").get("tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 <= tokens <= _LARGEST:
        raise InputError(
            f"{tokens!r} is no capacity", where=f"{path}: capacity.tokens", remedy=_REMEDY
        )
    return Recommendation(
        trace=str(document.get("trace", "")),
        verdict=_one_of(f"{path}: verdict", document.get("verdict"), get_args(Verdict)),
        policy=_policy(path, policy),
        capacity_tokens=tokens,
        target=_target(path, target),
        profile=profile_in(latency, f"{path}: latency"),
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


def _lines(values: Mapping[str, str | float | Sequence[float]]) -> list[str]:
    return [f"{name} = {_value(one)}" for name, one in values.items()]


def _inline(values: Mapping[str, float]) -> str:
    return "{ " + ", ".join(f"{name} = {_value(one)}" for name, one in values.items()) + " }"


def _value(value: str | float | Sequence[float]) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int | float):
        # inf and nan are TOML too; what numpy calls a float has a name that is not
        return repr(value) if isinstance(value, int) else repr(float(value))
    return "[" + ", ".join(_value(float(one)) for one in value) + "]"


def _table(path: Path, document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name)
    if not isinstance(table, dict):
        raise InputError("missing", where=f"{path}: [{name}]", remedy=_REMEDY)
    return table


def _policy(path: Path, table: Mapping[str, Any]) -> Policy:
    try:
        kind = by_name(str(table.get("name")))
    except UsageError as error:
        raise InputError(error.what, where=f"{path}: policy.name", remedy=error.remedy) from error
    if kind.hindsight:
        raise InputError(
            f"{kind.name} knows the future, and cannot be run",
            where=f"{path}: policy.name",
            remedy=_REMEDY,
        )
    try:
        return kind(_params(path, table.get("params")), table.get("leaves"))
    except UsageError as error:
        where = f"{path}: policy: {error.where}"
        raise InputError(error.what, where=where, remedy=error.remedy) from error


def _params(path: Path, table: object) -> dict[str, float]:
    if not isinstance(table, dict):
        raise InputError("missing", where=f"{path}: policy.params", remedy=_REMEDY)
    return {name: _number(f"{path}: policy.params.{name}", one) for name, one in table.items()}


def _target(path: Path, table: Mapping[str, Any]) -> Target:
    slo_ms = _number(f"{path}: target.slo_ms", table.get("slo_ms"))
    percentile = _number(f"{path}: target.percentile", table.get("percentile"))
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


def _number(where: str, value: object) -> float:
    number = math.nan
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
    if math.isnan(number):
        raise InputError(f"{value!r} is not a number", where=where, remedy=_REMEDY)
    return number
