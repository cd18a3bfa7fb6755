"""Both ends of what is not known exactly of latency, pool and session starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvscope.core.trace import Prompts
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.deployment.pool import KvPool
from kvscope.deployment.roofline import HIGH, LOW
from kvscope.ingest.clocks import other_starts
from kvscope.tuning.tuner import End

if TYPE_CHECKING:
    from kvscope.app.latency import TraceLatency
    from kvscope.latency.observed import TraceFit

PREFILL_ENDS = (End("prefill half as long", 0.5), End("prefill twice as long", 2.0))


def ends_of(
    latency: TraceLatency,
    prompts: Prompts,
    *,
    latency_named: bool,
    pool: KvPool | None = None,
    tpot: bool = False,
) -> tuple[End, ...]:
    """Return both ends of latency and pool, and other starts of sessions without a common clock.

    Without a deployment, those of a latency that was not named are prefill times halved and
    doubled. `pool` is the deployment's in blocks of the trace, None where another capacity is
    stated. With `tpot`, time per output token has an SLO.
    """
    if latency.deployment is not None:
        ends = _of_deployment(latency, latency.deployment, pool, tpot=tpot)
    else:
        ends = _of_fit(latency.fit) if latency_named else PREFILL_ENDS
    layouts = (
        End(f"{starts.open_sessions:.3g} sessions open at a time", sessions=starts)
        for starts in other_starts(prompts.arrival_s, prompts.clock)
    )
    return (*ends, *layouts)


def _of_deployment(
    latency: TraceLatency, where: ResolvedDeployment, pool: KvPool | None, *, tpot: bool
) -> tuple[End, ...]:
    """Return both ends: the smaller pool with the slower prefill, and the other way round."""
    slow, fast = where.latency_high, where.latency_low
    if latency.fit is not None and tpot:  # which a fit to TTFTs leaves to the roofline
        slow, fast = max(slow, HIGH), min(fast, LOW)
    if pool is None:
        return () if slow == fast else _prefill(slow, fast)
    if pool.low_blocks == pool.high_blocks and slow == fast:
        return ()
    return (
        End(f"the smallest pool and prefill {slow:g}x as long", slow, max(pool.low_blocks, 1)),
        End(f"the largest pool and prefill {fast:g}x as long", fast, pool.high_blocks),
    )


def _of_fit(fit: TraceFit | None) -> tuple[End, ...]:
    """Return both ends of a latency that was fitted to the trace's TTFTs, none of another."""
    return () if fit is None or fit.low == fit.high else _prefill(fit.low, fit.high)


def _prefill(*factors: float) -> tuple[End, ...]:
    return tuple(End(f"prefill {factor:g}x as long", factor) for factor in factors)
