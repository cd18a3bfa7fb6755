"""From a target to a latency profile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from threading import Event

from kvscope.calibrate.facts import Calibration, Measured
from kvscope.calibrate.fit import fit
from kvscope.calibrate.grid import grid
from kvscope.calibrate.measure import Readings, Target, measure
from kvscope.errors import EngineError
from kvscope.simulate.latency import LatencyProfile


def calibrate(
    target: Target,
    measured: Measured,
    *,
    longest: int,
    rounds: int,
    seed: int = 0,
    name: str | None = None,
    advance: Callable[[int], None],
    stop: Event,
) -> Calibration:
    """Measure `target` with prompts of up to `longest` tokens and fit a profile.

    Raises EngineError where the target fails before there is enough, or caches nothing.
    """
    found = measure(target, grid(longest), rounds=rounds, seed=seed, advance=advance, stop=stop)
    _refuse_uncached(found)
    made = fit(found.ttft_s, seed=seed)
    done = f"{found.count} of {found.wanted}" if found.ended else str(found.count)
    source = (
        f"kvscope calibrate, {datetime.now(UTC):%Y-%m-%d}, {measured.in_words};"
        f" {done} measurements of {len(found.ttft_s)} pairs of token counts,"
        f" prompts of up to {longest:,} tokens"
    )
    profile = LatencyProfile(
        name=name or measured.in_words,
        source=source,
        intervals=made.intervals,
        **made.parameters,
    )
    return Calibration(
        measured=measured,
        profile=profile,
        fit=made,
        readings=found.count,
        wanted=found.wanted,
        checked=found.told,
        not_cached=tuple(sorted(found.uncached_prefixes.items())),
        ended=found.ended,
    )


def _refuse_uncached(found: Readings) -> None:
    """Raise EngineError where every prefix that should have been cached was not."""
    prefixed = [cell for cell in found.ttft_s if cell.cached]
    if found.uncached_prefixes and not any(found.ttft_s[cell] for cell in prefixed):
        cell, cached = max(found.uncached_prefixes.items())
        raise EngineError(
            f"{cached} of {cell.cached} tokens were cached that had just been sent",
            remedy="turn prefix caching on (vLLM: --enable-prefix-caching), give it more blocks, or"
            " ask for shorter prompts with --max-tokens",
        )
