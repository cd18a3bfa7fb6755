"""Hits that an engine reported against those predicted: why the two differ, token by token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Bools, Int64s
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import Prompts
from kvscope.replay.attribution import NO_REQUEST, Attribution, look_up, regrouped
from kvscope.replay.traffic import walk

Gap = Literal["routed", "in-flight", "evicted", "kept", "cached-before"]
"""Causes of fewer hits than predicted (the first three), and of more.

- routed: tokens that this worker had never computed, but another one had. in-flight: the last
  request with them had no first token yet. evicted: all others, evicted earlier than predicted.
- kept: computed before and predicted to miss, but hit. cached-before: hit, though no earlier
  request of the trace has them.
"""


class HitGaps(Struct, frozen=True):
    """Observed hits of R requests, and why they differ from predicted ones (`tokens` by cause).

    Observed hits are the predicted ones, less `routed` (only another worker had computed them),
    `in-flight` (not computed yet) and `evicted` (earlier than predicted), plus `kept` (computed
    before, predicted to miss) and `cached-before` (in no earlier request of the trace).
    `observed_tokens` are -1, and `tokens` 0, where no hits were reported.
    """

    observed_tokens: Int64s
    tokens: Mapping[Gap, Int64s]

    @property
    def known(self) -> Bools:
        """Whether the hits of each request were reported."""
        return self.observed_tokens >= 0


def hit_gaps(
    prompts: Prompts, definition: HitDefinition, causes: Attribution, observed_tokens: Int64s
) -> HitGaps:
    """Return why `observed_tokens` (R entries, -1: not reported) differ from the predicted hits."""
    steps, size = walk(prompts, definition), prompts.block_size
    observed = np.minimum(observed_tokens, prompts.input_tokens)
    known = observed >= 0
    hits, predicted = np.maximum(observed, 0), causes.hit_tokens
    before = np.maximum(causes.shared_tokens, predicted)
    fewer = np.where(known, np.maximum(predicted - hits, 0), 0)
    measured = prompts.measurements
    if measured is not None and len(measured.workers) > 1:
        blocks = np.arange(len(steps.block_parent), dtype=np.int64)
        steps = regrouped(steps, blocks, measured.worker)
    lookups = look_up(steps, (hits // size).astype(np.int32))
    own = np.minimum(lookups.seen.astype(np.int64) * size, predicted)
    routed = np.minimum(predicted - np.minimum(np.maximum(hits, own), predicted), fewer)
    running = np.zeros_like(fewer, dtype=np.bool_)
    if measured is not None:
        arrival_s, last = prompts.arrival_s, np.maximum(lookups.last_use, 0)
        begun_s = arrival_s + np.nan_to_num(measured.queue_s)
        running = (lookups.last_use != NO_REQUEST) & (
            arrival_s[last] + measured.ttft_s[last] > begun_s
        )
    in_flight = np.where(running, fewer - routed, 0)
    return HitGaps(
        observed,
        {
            "routed": routed,
            "in-flight": in_flight,
            "evicted": fewer - routed - in_flight,
            "kept": np.where(known, np.maximum(np.minimum(hits, before) - predicted, 0), 0),
            "cached-before": np.where(known, np.maximum(hits - before, 0), 0),
        },
    )
