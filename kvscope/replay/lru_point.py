"""What LRU gives at one capacity, hits and TTFT at once, read off stack distances: no replay."""

from __future__ import annotations

from dataclasses import dataclass

from kvscope.core.hits import HitDefinition, standard
from kvscope.core.runs import Outcome
from kvscope.core.trace import Prompts
from kvscope.latency.profile import LatencyProfile
from kvscope.replay.curve import HitCurve, lru_curve
from kvscope.replay.misses import lru_hit_blocks
from kvscope.replay.stack_distances import LruDistances, lru_distances
from kvscope.replay.summary import Served, serve, summarize


@dataclass(frozen=True, slots=True)
class LruAnywhere:
    """One pass over a trace, from which any capacity can be read off exactly."""

    prompts: Prompts
    definition: HitDefinition
    distances: LruDistances
    curve: HitCurve

    def served(self, capacity_blocks: int, profile: LatencyProfile) -> Served:
        """How each request fares at this capacity."""
        hits = lru_hit_blocks(self.distances, len(self.prompts.leaf), capacity_blocks)
        return serve(self.prompts, self.definition, hits, profile)

    def outcome(
        self, capacity_blocks: int, profile: LatencyProfile, slo_s: float | None = None
    ) -> Outcome:
        """What came of all requests at this capacity: what a replay of LRU would tell."""
        return summarize(self.served(capacity_blocks, profile), slo_s)


def lru_anywhere(prompts: Prompts, definition: HitDefinition | None = None) -> LruAnywhere:
    """The pass itself. The definition must not be a flat one."""
    counted = definition or standard()
    distances = lru_distances(prompts, counted)
    return LruAnywhere(prompts, counted, distances, lru_curve(prompts, counted, distances))
