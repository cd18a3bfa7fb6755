"""A measured latency profile: its parameters, how certain they are, and where it errs."""

from __future__ import annotations

from kvscope.latency.calibration import ENOUGH, Calibration, CellFit
from kvscope.latency.decoding import PARAMETERS, DecodingFit
from kvscope.report.section import Section, tabulate
from kvscope.report.words import count, significant

_NAMES = (
    ("base_s", "b, per request", 1.0, "ms"),
    ("per_token_s", "a, per token", 1e3, "µs"),
    ("per_token_pair_s", "g, per pair of tokens", 1e6, "ns"),
)


def sections(calibration: Calibration) -> list[Section]:
    """Return the profile, measured and fitted TTFTs, and decoding steps if measured."""
    return [_profile(calibration), _cells(calibration), *_steps(calibration.fit.decoding)]


def _profile(calibration: Calibration) -> Section:
    profile = calibration.profile
    run = calibration.run
    ended = f"Ended early ({run.ended}): {run.count} of {run.planned} measurements."
    return Section.of(
        "Latency profile",
        "TTFT = b + a u + g u (c + u/2) for u uncached and c cached tokens, with",
        *_parameters(calibration),
        f"{count(profile.xi_tokens(0.2))} uncached tokens take 200 ms.",
        *_enough(calibration),
        *_decoding(calibration.fit.decoding),
        _checked(calibration),
        ended if run.ended else None,
    )


def _parameters(calibration: Calibration) -> list[str]:
    lines = []
    profile = calibration.profile
    for key, name, scale, unit in _NAMES:
        low, high = (end * 1e3 * scale for end in profile.intervals[key])
        value = getattr(profile, key) * 1e3 * scale
        lines.append(f"  {name}: {significant(value)} {unit} (95% CI {_interval(low, high)})")
    if profile.floor_s:
        lines.append(f"a u is at least {significant(profile.floor_s * 1e3)} ms, the floor.")
    if profile.request_s:
        request_ms = significant(profile.request_s * 1e3)
        lines.append(
            f"HTTP and tokenizer take {request_ms} ms a request, outside of the engine's steps."
        )
    return lines


def _enough(calibration: Calibration) -> list[str]:
    fit = calibration.fit
    off = fit.linear_worst.linear_off
    linear = f"not enough: off by {off:+.0%} {_at(fit.linear_worst)}"
    if fit.linear_is_enough:
        linear = f"enough: within {abs(off):.0%} everywhere"
    profile = (
        f"off by {fit.worst.off:+.0%} {_at(fit.worst)}, more than {ENOUGH:.0%}: the engine behaves"
        " otherwise, or was disturbed. Measure again on an idle machine, with --max-tokens as long"
        " as your prompts"
    )
    if fit.is_enough:
        profile = f"within {abs(fit.worst.off):.0%} everywhere"
    return [f"The linear model of the papers (g = 0) is {linear}.", f"This profile is {profile}."]


def _decoding(fit: DecodingFit | None) -> list[str]:
    if fit is None:
        return ["Steps of decoding were not measured."]
    base, request, token = (fit.parameters[name] for name in PARAMETERS)
    terms = f"{significant(base * 1e3)} ms + {significant(request * 1e6)} µs a request"
    terms += f" + {significant(token * 1e9)} ns a token before it"
    return [f"A step of decoding takes {terms}: within {abs(fit.worst.off):.0%} everywhere."]


def _at(cell: CellFit) -> str:
    behind = f" after {count(cell.cached)} cached" if cell.cached else ""
    return f"at {count(cell.uncached)} tokens{behind}"


def _checked(calibration: Calibration) -> str | None:
    run = calibration.run
    if not run.reports_cached:
        if calibration.engine.name == "torch":
            return None
        unchecked = "Not checked: the server does not report how many tokens were cached"
        return f"{unchecked} (vLLM: --enable-prompt-tokens-details)."
    if run.uncached_prefixes:
        left_out = sorted(run.uncached_prefixes.items())[:3]
        pairs = ", ".join(f"{had:,} of {cell.cached:,}" for cell, had in left_out)
        left = f"Left out, since the server had not cached the prompt sent before: {pairs} tokens."
        return f"{left} Is the cache too small?"
    return "The server confirmed the cached tokens of every measurement."


def _cells(calibration: Calibration) -> Section:
    table = tabulate(
        "TTFT by token counts",
        calibration.fit.cells,
        {
            "uncached": lambda cell: count(cell.uncached),
            "cached": lambda cell: count(cell.cached),
            "n": lambda cell: count(cell.n),
            "median (ms)": lambda cell: significant(cell.median_s * 1e3),
            "lowest": lambda cell: significant(cell.least_s * 1e3),
            "highest": lambda cell: significant(cell.most_s * 1e3),
            "fitted": lambda cell: significant(cell.fitted_s * 1e3),
            "off": lambda cell: f"{cell.off:+.1%}",
            "linear off": lambda cell: f"{cell.linear_off:+.1%}",
        },
        note="fitted to the medians by relative error, no parameter below 0",
    )
    return Section.of("Measured and fitted", table)


def _steps(fit: DecodingFit | None) -> list[Section]:
    if fit is None:
        return []
    table = tabulate(
        "A step of decoding",
        fit.steps,
        {
            "requests": lambda step: count(step.batch),
            "tokens before": lambda step: count(step.context),
            "n": lambda step: count(step.n),
            "median (ms)": lambda step: significant(step.median_s * 1e3),
            "fitted": lambda step: significant(step.fitted_s * 1e3),
            "off": lambda step: f"{step.off:+.1%}",
        },
    )
    return [Section.of("Decoding", table)]


def _interval(low: float, high: float) -> str:
    """Return an interval as text; explain an interval of zero width."""
    if low == high:
        return "has no width: at its bound of 0" if not low else "has no width: readings agree"
    return f"{significant(low)} to {significant(high)}"
