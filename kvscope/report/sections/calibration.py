"""A measured latency profile in words and a table: what it is, how sure, and where it is off."""

from __future__ import annotations

from kvscope.core import units
from kvscope.latency.calibration import ENOUGH, Calibration, CellFit
from kvscope.report.section import Section, Table

_NAMES = (
    ("base_s", "b, a request", 1.0, "ms"),
    ("per_token_s", "a, a token", 1e3, "us"),
    ("per_token_pair_s", "g, a pair of tokens", 1e6, "ns"),
)


def sections(found: Calibration) -> list[Section]:
    """The profile, then every pair of token counts."""
    return [_profile(found), _cells(found)]


def _profile(found: Calibration) -> Section:
    profile = found.profile
    sentences = [
        "TTFT = b + a u + g u (c + u/2) for u uncached and c cached tokens, with",
        *_parameters(found),
        f"Within 200ms: {units.format_count(profile.xi_tokens(0.2))} uncached tokens.",
        *_enough(found),
        *_checked(found),
    ]
    if found.ended:
        sentences.append(
            f"It ended early ({found.ended}): {found.readings} of {found.wanted} measurements."
        )
    return Section("Latency profile", tuple(sentences))


def _parameters(found: Calibration) -> list[str]:
    lines = []
    for key, name, scale, unit in _NAMES:
        low, high = (end * 1e3 * scale for end in found.profile.intervals[key])
        value = getattr(found.profile, key) * 1e3 * scale
        lines.append(f"  {name}: {value:.4g} {unit} (95 % interval {low:.4g} to {high:.4g})")
    return lines


def _enough(found: Calibration) -> list[str]:
    fit = found.fit
    words = []
    if fit.linear_is_enough:
        words.append(
            "The linear model (g = 0, the papers') would do: it is within"
            f" {abs(fit.linear_worst.linear_off):.0%} everywhere."
        )
    else:
        words.append(
            "The linear model (g = 0, the papers') is not enough: it is off by"
            f" {fit.linear_worst.linear_off:+.0%} {_at(fit.linear_worst)}."
        )
    if fit.is_enough:
        words.append(f"This one is within {abs(fit.worst.off):.0%} everywhere.")
    else:
        words.append(
            f"This one is off by {fit.worst.off:+.0%} {_at(fit.worst)}, more than {ENOUGH:.0%}:"
            " the engine does not behave so, or was disturbed. Measure again on an idle machine,"
            " with --max-tokens as long as your prompts."
        )
    return words


def _at(cell: CellFit) -> str:
    behind = f" behind {units.format_count(cell.cached)} cached" if cell.cached else ""
    return f"at {units.format_count(cell.uncached)} tokens{behind}"


def _checked(found: Calibration) -> list[str]:
    if not found.checked:
        if found.measured.engine == "torch":
            return []
        told = "The server does not tell how many tokens were cached, so that nobody checked it"
        return [f"{told} (vLLM: --enable-prompt-tokens-details)."]
    if found.not_cached:
        pairs = ", ".join(f"{had:,} of {cell.cached:,}" for cell, had in found.not_cached[:3])
        left = f"Left out where the server had not cached what it was just sent: {pairs} tokens."
        return [f"{left} Is the cache too small?"]
    return ["The server confirmed the cached tokens of every measurement."]


def _cells(found: Calibration) -> Section:
    rows = tuple(
        (
            units.format_count(cell.uncached),
            units.format_count(cell.cached),
            units.format_count(cell.n),
            _ms(cell.median_s),
            _ms(cell.least_s),
            _ms(cell.most_s),
            _ms(cell.fitted_s),
            f"{cell.off:+.1%}",
            f"{cell.linear_off:+.1%}",
        )
        for cell in found.fit.cells
    )
    columns = (
        *("uncached", "cached", "n", "median", "least", "most"),
        *("fitted", "off", "linear off"),
    )
    return Section(
        "Measured and fitted",
        tables=(
            Table(
                "TTFT by token counts",
                columns,
                rows,
                note="times in ms; fitted to the medians by relative error, no parameter below 0",
            ),
        ),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"
