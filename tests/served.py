"""Requests served by a simulated queue with a known latency profile, and their measured TTFTs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.arrays import Bools, Float64s, Int32s
from kvscope.core.trace import Measurements
from kvscope.latency.observed import TraceFit, fit_ttfts
from kvscope.latency.profile import LatencyProfile

TRUE = LatencyProfile("true", "", 20e-3, 1e-4, 4e-9)
BLOCK = 64


class Served(Struct, frozen=True, eq=False):
    """Requests and how they were served; `alone_s` is the TTFT on an idle engine."""

    arrival_s: Float64s
    input_tokens: Int32s
    alone_s: Float64s
    measured: Measurements

    def fit(self) -> TraceFit:
        """Fit a profile to what was measured."""
        return fit_ttfts("made", self.arrival_s, self.input_tokens, self.measured)

    def measuring(self, **columns: object) -> Served:
        """Return the requests with other measurements."""
        return replace(self, measured=replace(self.measured, **columns))  # type: ignore[arg-type]

    def only(self, kept: Bools) -> Served:
        """Return some of the requests."""
        numbers = np.flatnonzero(kept)
        return Served(
            self.arrival_s[numbers],
            self.input_tokens[numbers],
            self.alone_s[numbers],
            self.measured.select(numbers),
        )


@cache
def served(
    seed: int,
    load: float,
    *,
    requests: int = 2000,
    noise: float = 0.0,
    workers: int = 1,
    spread: float = 1.0,
) -> Served:
    """Return Poisson arrivals at a share of the workers' capacity, first come, first served."""
    rng = np.random.default_rng(seed)
    tokens = np.clip(rng.lognormal(7.5, spread, requests), 32, 30_000).astype(np.int32)
    reused = (tokens * rng.random(requests)).astype(np.int32) // 16 * 16
    cached = np.where(rng.random(requests) < 0.5, reused, 0).astype(np.int32)
    cached = np.minimum(cached, tokens - 1)
    alone_s = TRUE.ttft_s(tokens - cached, cached)
    service_s = alone_s * np.exp(noise * rng.standard_normal(requests))
    arrival_s = np.cumsum(rng.exponential(service_s.mean() / load / workers, requests))
    worker = rng.integers(workers, size=requests).astype(np.int32)
    free_s, queue_s = np.zeros(workers), np.empty(requests)
    for number in range(requests):
        at = worker[number]
        queue_s[number] = max(free_s[at] - arrival_s[number], 0.0)
        free_s[at] = arrival_s[number] + queue_s[number] + service_s[number]
    unknown = np.full(requests, np.nan)
    return Served(
        arrival_s,
        tokens,
        alone_s,
        Measurements(
            worker=worker,
            ttft_s=queue_s + service_s,
            queue_s=queue_s,
            duration_s=unknown,
            cached_tokens=cached,
            delay_s=unknown,
            waits_for=np.full(requests, -1, dtype=np.int32),
            workers=tuple(map(str, range(workers))),
        ),
    )


def without_queue_times(made: Served) -> Served:
    return made.measuring(queue_s=np.full(len(made.arrival_s), np.nan))


def write_served(path: Path, made: Served, **more: object) -> Path:
    """Write the requests as Qwen-Bailian lines, each with the prefix that was cached for it."""
    measured, lines = made.measured, []
    for number, tokens in enumerate(map(int, made.input_tokens)):
        common = int(measured.cached_tokens[number]) // BLOCK
        own = range(common, tokens // BLOCK)
        line = {
            "chat_id": number,
            "parent_chat_id": -1,
            "timestamp": float(made.arrival_s[number]),
            "input_length": tokens,
            "output_length": 20,
            "type": "text",
            "turn": 1,
            "hash_ids": [*range(common), *(10**6 + number * 10**4 + block for block in own)],
            "block_size": BLOCK,
            "cached_tokens": int(measured.cached_tokens[number]),
            "ttft_ms": float(measured.ttft_s[number]) * 1e3,
            **more,
        }
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
