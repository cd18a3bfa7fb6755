"""llm-d's endpoint picker: queue, KV usage and a guess of the cached prefix, weighted."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import EVENT_LAG, MemorySizes, Prompt, Router, View, draw, new_dice
from kvscope.routers.lru_index import LruIndex, clear, empty_index, holds, touch

PREFIX, QUEUE, KV, _SCRAPE, _LIMIT, _BLOCK = range(6)
_LISTED_BLOCKS = 31_250  # defaultLRUCapacityPerServer; 0.8 ignores lruCapacityPerServer


def weights(prefix: float, queue: float, kv: float) -> tuple[Parameter, ...]:
    """Return an llm-d router's declared parameters, with these default weights of its scores."""
    search = (0, 1, 2, 3, 5, 10)
    return (
        Parameter("prefix_weight", prefix, "weight of the cached prefix", search=search),
        Parameter("queue_weight", queue, "weight of a short waiting queue", search=search),
        Parameter("kv_weight", kv, "weight of unused KV memory", search=search),
        Parameter("scrape_s", 0.05, "how often the picker reads the metrics of replicas"),
    )


class PickerMemory(NamedTuple):
    """The blocks `sent` to each of N replicas, the replicas' `scores` (N) for the current request.

    `dice` is the state of random numbers.
    """

    sent: LruIndex
    scores: Float64s
    dice: Int64s


def pick(prefix_scores: Float64s, view: View, p: Float64s, dice: Int64s) -> int:
    """Return the replica of the highest weighted score; of equals one drawn evenly.

    `prefix_scores` (N) are from 0 to 1. The shortest queue scores 1 and the longest 0, however
    small the difference; KV memory scores its unused share.
    """
    waiting, used_blocks = view.scraped.waiting, view.scraped.used_blocks
    shortest, longest = waiting[0], waiting[0]
    for replica in range(1, view.replicas):
        shortest = min(shortest, waiting[replica])
        longest = max(longest, waiting[replica])
    best, highest, ties = 0, -1.0, 0
    for replica in range(view.replicas):
        queue = 1.0
        if longest > shortest:
            queue = (longest - waiting[replica]) / (longest - shortest)
        unused = max(0.0, 1.0 - used_blocks[replica] / max(view.capacity_blocks, 1))
        score = p[QUEUE] * queue + p[KV] * unused + p[PREFIX] * prefix_scores[replica]
        if score > highest:
            best, highest, ties = replica, score, 1
        elif score == highest:
            ties += 1
            if draw(dice, ties) == 0:
                best = replica
    return best


def plugin_config(scorer: str, values: dict[str, float]) -> str:
    """Return the scheduling profile, one line of YAML; `scorer` is the prefix scorer's type."""
    plugins = {
        scorer: values["prefix_weight"],
        "queue-scorer": values["queue_weight"],
        "kv-cache-utilization-scorer": values["kv_weight"],
    }
    profile = ", ".join(
        f"{{pluginRef: {name}, weight: {weight:g}}}" for name, weight in plugins.items()
    )
    return f"schedulingProfiles: [{{name: default, plugins: [{profile}]}}]"


class LlmD(Router):
    """Send each request to the replica with the highest weighted sum of three scores.

    The prefix score is the matched share of the prompt's first max_prefix_blocks full engine
    blocks, by an LRU list per replica of the blocks sent to it. A request touches its head first,
    so heads are evicted first, unlike in an engine; a replica scores for each of its blocks up to
    the first block that no replica has. Scores of queue and KV usage are as of the last scrape.
    Four characters count as a token. Prompts that differ within a block of the trace count as
    different from its first token on. Here the lists have a request's blocks before the next
    request is routed; the real picker adds them some time after its choice.
    Source: llm-d-inference-scheduler 0.8.0 with gateway-api-inference-extension 1.5.0,
    pkg/epp/framework/plugins (approximateprefix, queuedepth, kvcacheutilization, picker/maxscore);
    weights of its Helm chart, config/charts/epplib/templates/_config.yaml.
    """

    name = "llm-d@0.8"
    aliases = ("llm-d",)
    summary = "queue, KV usage and a guess of the cached prefix"
    source = "llm-d-inference-scheduler 0.8.0"
    sees = "load"
    draws = True
    counts_blocks = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        *weights(prefix=3, queue=2, kv=2),
        Parameter("max_prefix_blocks", 256, "engine blocks of a prompt that are compared", low=1),
        Parameter("engine_block_tokens", 16, "tokens of a block of the engine", low=1),
        Parameter("auto_tune", 1, "1: a list has the engine's blocks; 0: 31,250", high=1),
    )

    def memory(self, sizes: MemorySizes, seed: int) -> PickerMemory:
        """Return an empty LRU list of blocks for each replica."""
        capacity = sizes.capacity_blocks
        if not self.values["auto_tune"]:
            tokens = _LISTED_BLOCKS * self.values["engine_block_tokens"]
            capacity = int(tokens / sizes.block_size)
        capacity = max(1, min(capacity, sizes.blocks))
        sent = empty_index(sizes.replicas, capacity)
        return PickerMemory(sent, np.zeros(sizes.replicas), new_dice(seed))

    def among(self, memory: PickerMemory, replicas: int, seed: int) -> PickerMemory:
        """Forget the lists of replicas that left."""
        for replica in range(replicas, len(memory.scores)):
            clear(memory.sent, replica)
        return memory

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: PickerMemory, p: Float64s) -> int:
        """Return the replica of the highest score, and note the blocks sent to it."""
        scores, block_tokens = memory.scores, int(p[_BLOCK])
        total = min(prompt.input_tokens // block_tokens, int(p[_LIMIT]))
        depths = min(-(-total * block_tokens // view.block_size), prompt.blocks)
        scores[:] = 0.0
        for depth in range(depths):
            anywhere = False
            for replica in range(view.replicas):
                if holds(memory.sent, replica, path[depth]):
                    anywhere = True
                    scores[replica] += 1.0
            if not anywhere:
                break
        for replica in range(view.replicas):
            matched = scores[replica] * view.block_size / block_tokens
            scores[replica] = min(matched / total, 1.0) if total > 0 else 0.0
        chosen = pick(scores, view, p, memory.dice)
        for depth in range(depths):
            touch(memory.sent, chosen, path[depth])
        return chosen

    def flags(self) -> tuple[str, ...]:
        """Return the picker's YAML configuration and its command-line option."""
        refresh = f"--refresh-metrics-interval {self.values['scrape_s']:g}s"
        limits = f"maxPrefixBlocksToMatch: {self.values['max_prefix_blocks']:.0f}"
        if not self.values["auto_tune"]:
            block_tokens = self.values["engine_block_tokens"]
            limits += f", autoTune: false, blockSizeTokens: {block_tokens:.0f}"
        producer = f"plugins: [{{type: approx-prefix-cache-producer, parameters: {{{limits}}}}}]"
        return (plugin_config("prefix-cache-scorer", self.values), producer, refresh)


_MIN_MAX = 4


class ScoreMemory(NamedTuple):
    """The prefix score of each of N replicas for the current request, and random state."""

    scores: Float64s
    dice: Int64s


class LlmDPrecise(Router):
    """`llm-d@0.8` with cached blocks known from KV events.

    The prefix score is normalized over the replicas that hold any block of the prompt: 1 for the
    longest prefix, 0 for the shortest and for replicas without any; 1 for all of them if they hold
    equally long ones. So a block that all prompts share draws them to the one replica that has it
    until its KV memory is full. After 0.8 the score is the share of the prompt that is cached
    (`min_max` 0). Events come at once unless `event_lag_s` is set; the program states no lag. Left
    out: entries for prompts that were sent but not yet reported (speculativeIndexing, off by
    default), and the index's limit of ten replicas a block.
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
        """Return an empty score array, and the state of random numbers."""
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
        """Return the picker's YAML configuration and its command-line option."""
        refresh = f"--refresh-metrics-interval {self.values['scrape_s']:g}s"
        return (plugin_config("precise-prefix-cache-scorer", self.values), refresh)
