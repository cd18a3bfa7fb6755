"""The outcome of a fleet: hits and lost hits, latency, balance, and whether it keeps up."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.jit import kernel
from kvscope.core.percentiles import Percentiles, at_rank, percentiles
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Prompts
from kvscope.fleet.replay import FleetReplay, PoolUse
from kvscope.replay.curve import first_counted, looked_up, weighted
from kvscope.replay.metrics import QueueTimes
from kvscope.replay.traffic import Traffic

MINUTE_S = 60.0
_HEAT_BINS = 96


class Slo(Struct, frozen=True):
    """The SLO: at `percentile`, TTFT is within `ttft_s` and TPOT, if stated, within `tpot_s`."""

    ttft_s: float
    percentile: float = 0.95
    tpot_s: float | None = None


class Latencies(Struct, frozen=True):
    """Latencies of counted requests.

    `attainment` is the share with a TTFT within the SLO, `tpot_attainment` the share with a TPOT
    within its SLO, of requests with two output tokens or more (None without SLO or such requests).
    `ttft_ms` is None if the queue grows (`overloaded`) or no request got a token, `tpot_ms` if none
    got two. `rejected` ones, longer than an engine's pool, miss the SLO and are in no percentile.
    """

    requests: int
    rejected: int
    overloaded: bool
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    attainment: float
    tpot_attainment: float | None


class ReplicaOutcome(Struct, frozen=True):
    """The outcome of one replica: `latencies` is None if it served no counted request.

    `computed_tokens` are the uncached input tokens of its counted requests; `utilization` is the
    share of the replay's time in which it prefilled.
    """

    hit_rate: float
    computed_tokens: int
    utilization: float
    evictions: int
    latencies: Latencies | None


class Imbalance(Struct, frozen=True):
    """Uncached tokens sent to the busiest replica over the mean of all replicas (1: balanced).

    `overall` covers the whole time; `p50` and `p95` are percentiles over minutes of arrivals.
    """

    overall: float
    p50: float
    p95: float


class FleetOutcome(Struct, frozen=True):
    """Hit rates, latencies and balance of N replicas over the counted requests.

    Hit rates are shares of the input tokens: `taken` on the replicas that served, `best_available`
    on the replica that held most of each prompt, `infinite` in one cache that evicts nothing. With
    files below CPU tiers, `from_files` is the part of `taken` read from files; `pool` is the use of
    shared files. `target_ttft_s` and `target_tpot_s` are at the SLO's percentile: TTFT inf if the
    queue grows or on a rejected request, TPOT None if no request has one. `sent_tokens` (N x T) are
    the uncached tokens sent to each replica in T intervals of `bin_s` seconds.
    """

    DOCUMENT: ClassVar[str] = (
        "ttft_at_percentile_ms=target_ttft_s tpot_at_percentile_ms=target_tpot_s latencies"
        " hit_rate=taken from_files best_available infinite not_held not_chosen imbalance"
        " overloaded_replicas by_replica=replicas"
    )
    taken: float
    best_available: float
    infinite: float
    latencies: Latencies
    target_ttft_s: float
    target_tpot_s: float | None
    meets: bool
    imbalance: Imbalance
    replicas: tuple[ReplicaOutcome, ...]
    bin_s: float
    sent_tokens: NDArray[np.float64]
    from_files: float | None = None
    pool: PoolUse | None = None

    @property
    def not_held(self) -> float:
        """Share of the input tokens that an infinite cache hits and no single replica held."""
        return self.infinite - self.best_available

    @property
    def not_chosen(self) -> float:
        """Share of the input tokens that the best replica held and the chosen one did not."""
        return self.best_available - self.taken

    @property
    def sent(self) -> tuple[tuple[float, ...], ...]:
        """The uncached tokens sent to each replica (a row) in each interval of `bin_s` seconds."""
        return tuple(map(tuple, self.sent_tokens.tolist()))

    @property
    def overloaded_replicas(self) -> int:
        """The number of replicas whose own queue grows."""
        return sum(
            each.latencies is not None and each.latencies.overloaded for each in self.replicas
        )


def fleet_outcome(
    prompts: Prompts,
    traffic: Traffic,
    setting: RunSetting,
    slo: Slo,
    done: FleetReplay,
    infinite_blocks: Int32s | None = None,
) -> FleetOutcome:
    """Return the outcome of a replay (`done`) of the prompts, whose traffic is `traffic`.

    `infinite_blocks`, if known, is the result of `infinite_hit_blocks` for the order of arrival.
    """
    definition = setting.definition
    first = first_counted(prompts, definition)
    if infinite_blocks is None:
        infinite_blocks = infinite_hit_blocks(traffic, done.order)
    inputs = looked_up(prompts, definition)
    hits = weighted(prompts, definition, done.hit_blocks)
    uncached = inputs - hits
    times = _Times.of(prompts, done)
    counted = slice(first, None)
    total = int(inputs[counted].sum())

    def rate(blocks: Int32s) -> float:
        return _share(int(weighted(prompts, definition, blocks)[counted].sum()), total)

    latencies, read = times.latencies(np.arange(len(uncached)), first, slo), done.read_blocks
    span_s = float(np.nanmax(done.token_s, initial=0.0) - done.arrival_s.min())
    replicas = []
    for number in range(done.replicas):
        members = np.flatnonzero(done.replica == number)
        warm = int(np.searchsorted(members, first))
        computed = int(uncached[members[warm:]].sum())
        looked = int(inputs[members[warm:]].sum())
        replicas.append(
            ReplicaOutcome(
                hit_rate=_share(looked - computed, looked),
                computed_tokens=computed,
                utilization=_busy_s(done, members) / span_s if span_s > 0 else 0.0,
                evictions=int(done.evictions[number]),
                latencies=times.latencies(members, warm, slo) if len(members) > warm else None,
            )
        )
    ttft_s = np.nan_to_num(times.ttft_s[counted], nan=np.inf)
    target_ttft_s = np.inf if latencies.overloaded else at_rank(ttft_s, slo.percentile)
    tpot_s = _known(times.tpot_s[counted])
    target_tpot_s = at_rank(tpot_s, slo.percentile) if len(tpot_s) else None
    fast = slo.tpot_s is None or target_tpot_s is None or target_tpot_s <= slo.tpot_s
    sent = done.replica[counted], done.arrival_s[counted], uncached[counted], done.replicas
    bin_s = max(float(np.ptp(done.arrival_s[counted])) / _HEAT_BINS, 1.0)
    return FleetOutcome(
        taken=rate(done.hit_blocks),
        best_available=rate(done.best_blocks),
        infinite=rate(infinite_blocks),
        latencies=latencies,
        target_ttft_s=target_ttft_s,
        target_tpot_s=target_tpot_s,
        meets=target_ttft_s <= slo.ttft_s and fast,
        imbalance=_imbalance(_sent(*sent, MINUTE_S)),
        replicas=tuple(replicas),
        bin_s=bin_s,
        sent_tokens=_sent(*sent, bin_s),
        from_files=None if read is None else rate(done.hit_blocks) - rate(done.hit_blocks - read),
        pool=done.pool,
    )


class _Times(Struct, frozen=True):
    """Per request: arrival, TTFT, time in the queue, and TPOT (nan for one token), in seconds."""

    arrival_s: Float64s
    ttft_s: Float64s
    waited_s: Float64s
    tpot_s: Float64s

    @classmethod
    def of(cls, prompts: Prompts, done: FleetReplay) -> _Times:
        """Return the times of a replay."""
        after_first = np.maximum(prompts.output_tokens - 1, 1)
        tpot_s = np.where(
            prompts.output_tokens > 1, (done.end_s - done.token_s) / after_first, np.nan
        )
        return cls(done.arrival_s, done.ttft_s, done.begin_s - done.arrival_s, tpot_s)

    def latencies(self, members: Int64s, first: int, slo: Slo) -> Latencies:
        """Return the latencies of requests `members` without the first `first` of these (warm-up).

        `members` are numbers in the trace, ascending.
        """
        counted = members[first:]
        answered = counted[np.isfinite(self.ttft_s[counted])]
        in_order = answered[np.argsort(self.arrival_s[answered], kind="stable")]
        ttft_s, tpot_s = self.ttft_s[in_order], _known(self.tpot_s[counted])
        queue = QueueTimes(
            self.arrival_s[in_order],
            ttft_s,
            self.waited_s[in_order],
            float(self.arrival_s[members].min()),
        )
        overloaded = not queue.keeps_up(slo.ttft_s)
        within = None
        if slo.tpot_s is not None and len(tpot_s):
            within = float(np.mean(tpot_s <= slo.tpot_s))
        return Latencies(
            requests=len(counted),
            rejected=len(counted) - len(answered),
            overloaded=overloaded,
            ttft_ms=None if overloaded or not len(ttft_s) else percentiles(ttft_s * 1e3),
            tpot_ms=percentiles(tpot_s * 1e3) if len(tpot_s) else None,
            attainment=float(np.sum(ttft_s <= slo.ttft_s)) / len(counted),
            tpot_attainment=within,
        )


def infinite_hit_blocks(traffic: Traffic, order: Int32s) -> Int32s:
    """Return the leading blocks of each request that an earlier one in `order` had cached (R)."""
    left = np.zeros(len(traffic.block_parent), dtype=np.bool_)
    left[0] = True
    hits = np.zeros(len(traffic.leaf), dtype=np.int32)
    _fill(traffic.block_parent, traffic.leaf, traffic.length, traffic.look, order, left, hits)
    return hits


@kernel
def _fill(
    block_parent: Int32s,
    leaf: Int32s,
    length: Int32s,
    look: Int32s,
    order: Int32s,
    left: NDArray[np.bool_],
    hits: Int32s,
) -> None:
    """Mark each request's blocks in `left`, in this `order`; write its hits on marked blocks.

    Of each path, `length` blocks that end at `leaf`, at most the first `look` can hit.
    """
    for request in order:
        block, new = leaf[request], 0
        while not left[block]:
            left[block] = True
            block = block_parent[block]
            new += 1
        hits[request] = min(look[request], length[request] - new)


def _busy_s(done: FleetReplay, members: Int64s) -> float:
    """Return the seconds in which a replica prefilled any of the requests `members`."""
    served = members[np.isfinite(done.token_s[members])]
    served = served[np.argsort(done.begin_s[served], kind="stable")]
    begin_s, token_s = done.begin_s[served], done.token_s[served]
    until_s = np.maximum.accumulate(np.concatenate(([-np.inf], token_s)))[:-1]  # by those before
    return float(np.maximum(token_s - np.maximum(begin_s, until_s), 0.0).sum())


def _known(times: Float64s) -> Float64s:
    return times[np.isfinite(times)]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _imbalance(minutes: NDArray[np.float64]) -> Imbalance:
    """Return the imbalance of `minutes`: tokens sent to each replica in each minute (N x T)."""
    means, total = minutes.mean(axis=0), minutes.sum(axis=1)
    busy = means > 0
    if not busy.any():
        return Imbalance(1.0, 1.0, 1.0)
    ratios = minutes[:, busy].max(axis=0) / means[busy]
    return Imbalance(float(total.max() / total.mean()), at_rank(ratios, 0.5), at_rank(ratios, 0.95))


def _sent(
    replica: Int32s, arrival_s: Float64s, tokens: Int64s, replicas: int, bin_s: float
) -> NDArray[np.float64]:
    """Return the tokens sent to each replica in each interval of `bin_s` s (N x T)."""
    at = ((arrival_s - arrival_s.min()) / bin_s).astype(np.int64)
    bins = int(at.max()) + 1
    place = replica.astype(np.int64) * bins + at
    sent = np.bincount(place, tokens, minlength=replicas * bins).reshape(replicas, bins)
    return np.asarray(sent, dtype=np.float64)
