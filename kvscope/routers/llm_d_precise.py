"""llm-d's endpoint picker with KV events: queue, KV usage and the cached prefix, weighted."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import EVENT_LAG, MemorySizes, Prompt, Router, View, new_dice
from kvscope.routers.llm_d import pick, plugin_config, weights

_MIN_MAX = 4


class ScoreMemory(NamedTuple):
    """The prefix score of each of N replicas for one request, and dice."""

    scores: Float64s
    dice: Int64s


class LlmDPrecise(Router):
    """`llm-d@0.8` that knows from KV events what replicas hold.

    The prefix score is normalized over the replicas that hold any block of the prompt: 1 for the
    longest prefix, 0 for the shortest, as for those that hold none; 1 for all of them if they hold
    as much. So a block that all prompts share draws them to the one replica that has it until its
    KV memory is full. After 0.8 the score is the share of the prompt that is cached (`min_max` 0).
    Events come at once unless `event_lag_s` is set; the program states no lag. Left out: entries
    for prompts that were sent but not yet reported (speculativeIndexing, off by default), and that
    an index remembers ten replicas a block.
    Source: llm-d-inference-scheduler 0.8.0, pkg/epp/framework/plugins/scheduling/scorer/
    preciseprefixcache/utils.go (indexedScoresToNormalizedScoredPods), precise_prefix_cache.go
    (PluginConfig), and at 520af478 (absoluteScoredPods); llm-d-kv-cache, pkg/kvcache/
    kvblock_scorer.go; weights of deploy/config/epp-precise-prefix-cache-config.yaml.
    """

    name = "llm-d-precise@0.8"
    aliases = ("llm-d-precise",)
    summary = "queue, KV usage and the cached prefix (KV events)"
    source = "llm-d-inference-scheduler 0.8.0"
    sees = "truth"
    draws = True
    counts_blocks = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        *weights(prefix=2, queue=1, kv=1),
        Parameter(
            "min_max", 1, "1: prefix scores as in 0.8; 0: the share cached, as later", high=1
        ),
        EVENT_LAG,
    )

    def memory(self, sizes: MemorySizes, seed: int) -> ScoreMemory:
        """Return room for the scores of one request, and dice."""
        return ScoreMemory(np.zeros(sizes.replicas), new_dice(seed))

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: ScoreMemory, p: Float64s) -> int:
        """Return the replica of the highest score."""
        cached, scores = view.reported_blocks, memory.scores
        shortest, longest = 0, 0
        for replica in range(view.replicas):
            if cached[replica] > 0 and (shortest == 0 or cached[replica] < shortest):
                shortest = cached[replica]
            longest = max(longest, cached[replica])
        for replica in range(view.replicas):
            scores[replica] = 0.0
            if p[_MIN_MAX] == 0.0:
                scores[replica] = cached[replica] / max(prompt.full_blocks, 1)
            elif cached[replica] > 0:
                scores[replica] = 1.0
                if longest > shortest:
                    scores[replica] = (cached[replica] - shortest) / (longest - shortest)
        return pick(scores, view, p, memory.dice)

    def flags(self) -> tuple[str, ...]:
        """Return the picker's configuration and its option."""
        refresh = f"--refresh-metrics-interval {self.values['scrape_s']:g}s"
        return (plugin_config("precise-prefix-cache-scorer", self.values), refresh)
