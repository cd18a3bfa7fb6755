"""Hit rates, latencies and SLO violations, from the leading blocks that each request hit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.characterize.distributions import Windows
from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.hits import HitDefinition, standard
from kvscope.core.percentiles import percentiles
from kvscope.core.runs import Outcome, PartOutcome
from kvscope.core.trace import Prompts
from kvscope.latency.profile import LatencyProfile
from kvscope.replay.curve import HitCurve, first_counted, lru_curve
from kvscope.replay.misses import lru_hit_blocks
from kvscope.replay.stack_distances import LruDistances, lru_distances


def waiting_s(arrival_s: Float64s, service_s: Float64s) -> Float64s:
    """Return the seconds that each request waits until its prefill starts; `arrival_s` ascends."""
    before = np.concatenate([[0.0], np.cumsum(service_s)[:-1]]) if len(service_s) else service_s
    slack = arrival_s - before
    return np.asarray(np.maximum.accumulate(slack) - slack)


def queued_ttft_s(arrival_s: Float64s, service_s: Float64s) -> Float64s:
    """Return the seconds from each request's arrival to its first token: wait and service."""
    return waiting_s(arrival_s, service_s) + service_s


GROWTH = 0.02
"""Growth of TTFT, in seconds per second of arrivals, above which replicas do not keep up."""
_PART = 5  # the first and the last fifth of a window are compared


class QueueTimes(Struct, frozen=True):
    """Requests of one queue, in order of arrival: arrival, TTFT and waiting time of each.

    All are seconds; the queue was empty at `began_s`.
    """

    arrival_s: Float64s
    ttft_s: Float64s
    waited_s: Float64s
    began_s: float

    @property
    def growth(self) -> float:
        """Seconds by which TTFT grows per second: over the requests, or since the queue was empty.

        Over the requests: from the mean TTFT of their first fifth to that of the last one, over the
        time between their mean arrivals. Since it was empty: mean waiting time of the last fifth,
        over the time until their mean arrival. The larger one counts; 0 for fewer than 5 requests,
        or if these times are 0. At growth g the engine serves 1/(1 + g) of the work that arrives.
        """
        part = len(self.ttft_s) // _PART
        if not part:
            return 0.0
        last_s, first_s = float(self.ttft_s[-part:].mean()), float(self.ttft_s[:part].mean())
        end_s, start_s = float(self.arrival_s[-part:].mean()), float(self.arrival_s[:part].mean())
        if not self.began_s <= start_s < end_s:
            return 0.0
        until = float(self.waited_s[-part:].mean()) / (end_s - self.began_s)
        return max((last_s - first_s) / (end_s - start_s), until)

    def keeps_up(self, slo_s: float) -> bool:
        """Return whether TTFT grows by at most 0.02 s/s, or its last fifth's mean meets the SLO."""
        if self.growth <= GROWTH:
            return True
        return bool(self.ttft_s[-(len(self.ttft_s) // _PART) :].mean() <= slo_s)


class ServedRequests(Struct, frozen=True):
    """How each of R requests was served, including the warm-up.

    Of `looked_up` blocks `hit_blocks` were cached. TTFT is in seconds: `ttft_s` on an idle engine,
    `queued_ttft_s` behind earlier requests (None where the trace has no times; nan for a request
    that an engine rejects). `tpot_s` is the time per output token after the first (None but for an
    engine; nan for fewer than two tokens). Requests from `first` on are counted. All requests
    together wrote `stored_blocks` to an offload tier, 0 without one.
    """

    prompts: Prompts
    first: int
    looked_up: Int32s
    hit_blocks: Int32s
    hit_tokens: Int64s
    uncached_tokens: Int64s
    ttft_s: Float64s
    queued_ttft_s: Float64s | None
    tpot_s: Float64s | None = None
    stored_blocks: int = 0


def serve(
    prompts: Prompts,
    definition: HitDefinition,
    hit_blocks: Int32s,
    profile: LatencyProfile,
    *,
    transfer_s: Float64s | None = None,
) -> ServedRequests:
    """Return how an engine of this profile serves the prompts, given the blocks that each hits.

    `transfer_s` is each request's wait for blocks from slower tiers. In a `flat` cache hits need
    not be leading: `hit_blocks` counts all of them. Then counts of blocks are exact; counts of
    tokens and of requests are as if the hits were leading blocks.
    """
    inputs = prompts.input_tokens.astype(np.int64)
    hit_tokens = np.minimum(hit_blocks.astype(np.int64) * prompts.block_size, inputs)
    uncached = inputs - hit_tokens
    ttft_s = profile.ttft_s(uncached, hit_tokens)
    if transfer_s is not None:
        ttft_s = ttft_s + transfer_s
    arrival_s = prompts.arrival_s
    timed = len(arrival_s) < 2 or arrival_s[-1] > arrival_s[0]
    return ServedRequests(
        prompts=prompts,
        first=first_counted(prompts, definition),
        looked_up=prompts.blocks if definition.partial else prompts.full_blocks,
        hit_blocks=hit_blocks,
        hit_tokens=hit_tokens,
        uncached_tokens=uncached,
        ttft_s=ttft_s,
        queued_ttft_s=queued_ttft_s(arrival_s, ttft_s) if timed else None,
    )


def summarize(served: ServedRequests, slo_s: float | None = None) -> Outcome:
    """Return the outcome of the counted requests; `slo_s` is the SLO of the TTFT in seconds."""
    return _outcome(served, slice(served.first, None), slo_s)


def by_category(served: ServedRequests, slo_s: float | None = None) -> tuple[PartOutcome, ...]:
    """Return the outcome of each category that has counted requests, in the trace's order."""
    names = served.prompts.categories
    return tuple(
        PartOutcome(names[group], None, None, _outcome(served, members, slo_s))
        for group, members in _groups(served, served.prompts.category)
    )


def over_time(
    served: ServedRequests, windows: Windows, slo_s: float | None = None
) -> tuple[PartOutcome, ...]:
    """Return the outcome of each window of arrivals that has counted requests."""
    return tuple(
        PartOutcome(
            None, windows.start_s(group), windows.length_s, _outcome(served, members, slo_s)
        )
        for group, members in _groups(served, windows.index(served.prompts.arrival_s))
    )


class LruAnywhere(Struct, frozen=True):
    """LRU's results at any capacity from one pass over a trace, as exact as a replay's."""

    prompts: Prompts
    definition: HitDefinition
    distances: LruDistances
    curve: HitCurve

    @classmethod
    def over(cls, prompts: Prompts, definition: HitDefinition | None = None) -> Self:
        """Return LRU's results on `prompts`; `definition` (default: standard) is not a flat one."""
        counted = definition or standard()
        distances = lru_distances(prompts, counted)
        return cls(prompts, counted, distances, lru_curve(prompts, counted, distances))

    def served(self, capacity_blocks: int, profile: LatencyProfile) -> ServedRequests:
        """Return how each request is served at this capacity."""
        hits = lru_hit_blocks(self.distances, len(self.prompts.leaf), capacity_blocks)
        return serve(self.prompts, self.definition, hits, profile)

    def outcome(
        self, capacity_blocks: int, profile: LatencyProfile, slo_s: float | None = None
    ) -> Outcome:
        """Return the outcome of the counted requests (without the warm-up) at this capacity."""
        return summarize(self.served(capacity_blocks, profile), slo_s)


def _groups(served: ServedRequests, group: NDArray[np.integer]) -> Iterator[tuple[int, Int64s]]:
    """Yield each group that has counted requests, and the numbers of these requests."""
    counted = group[served.first :]
    order = np.argsort(counted, kind="stable")
    groups, starts = np.unique(counted[order], return_index=True)
    members = np.split(order + served.first, starts[1:])
    yield from zip(groups.tolist(), members, strict=True)


def _outcome(served: ServedRequests, which: slice | Int64s, slo_s: float | None) -> Outcome:
    hits, hit_tokens = served.hit_blocks[which], int(served.hit_tokens[which].sum())
    total_tokens = int(served.prompts.input_tokens[which].sum(dtype=np.int64))
    looked_up = int(served.looked_up[which].sum(dtype=np.int64))
    ttft_s = served.ttft_s[which]
    queued_s = _answered(served.queued_ttft_s, which)
    tel_ms, violations = _excess(ttft_s, slo_s)
    queued_tel_ms, queued_violations = _excess(queued_s, slo_s)
    return Outcome(
        requests=len(hits),
        hit_tokens=hit_tokens,
        total_tokens=total_tokens,
        token_hit_rate=hit_tokens / total_tokens if total_tokens else 0.0,
        block_hit_rate=int(hits.sum(dtype=np.int64)) / looked_up if looked_up else 0.0,
        request_hit_rate=int(np.count_nonzero(hits)) / len(hits),
        uncached_tokens=percentiles(served.uncached_tokens[which]),
        ttft_ms=percentiles(ttft_s * 1e3),
        queued_ttft_ms=percentiles(queued_s * 1e3) if queued_s is not None else None,
        tel_ms=tel_ms,
        violations=violations,
        queued_tel_ms=queued_tel_ms,
        queued_violations=queued_violations,
    )


def _answered(queued_ttft_s: Float64s | None, which: slice | Int64s) -> Float64s | None:
    """Return the finite TTFTs, of requests not rejected; None without any, or without times."""
    if queued_ttft_s is None:
        return None
    times = queued_ttft_s[which]
    answered = times[np.isfinite(times)]
    return answered if len(answered) else None


def _excess(ttft_s: Float64s | None, slo_s: float | None) -> tuple[float | None, int | None]:
    """Return tail excess latency (ms) and number of late requests; None without TTFTs or SLO."""
    if ttft_s is None or slo_s is None:
        return None, None
    beyond = ttft_s[ttft_s > slo_s] - slo_s
    return float(beyond.sum()) * 1e3, len(beyond)
