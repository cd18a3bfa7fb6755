"""Ray Serve LLM's prefix-aware router, with its own tree of the prompts sent to each replica."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import (
    MemorySizes,
    Prompt,
    Router,
    View,
    idlest_and_most,
    less_busy_of_two,
    new_dice,
)
from kvscope.routers.prefix_tree import (
    ABSENT,
    EPOCH,
    FIRST,
    Tree,
    add_leaf,
    eviction_is_due,
    forget_replicas,
    matching_blocks,
    new_tree,
    node_at,
    stamp,
    take_out,
)

_IMBALANCED, _MATCH_RATE, _INTERVAL, _THRESHOLD, _TARGET, _CHARACTERS = range(6)
_CLASS = "ray.serve.llm.request_router.PrefixCacheAffinityRouter"


class DrawnTree(NamedTuple):
    """A tree of prompts, and the state of random numbers."""

    tree: Tree
    dice: Int64s


class RayPrefixAware(Router):
    """Send a request to a replica that got its longest matching prefix, by default at any load.

    One radix tree has the texts sent to all replicas. If less than `match_rate_threshold` of a
    prompt matches, the replicas with the fewest characters in the tree are candidates, otherwise
    those that got the whole match; among candidates, the fewest requests in flight win, of equals
    the first. While the busiest replica exceeds the least busy one by more than
    `imbalanced_threshold` requests, the less busy of two random replicas gets the request.

    Every `eviction_interval_s` (do_eviction) the tree cuts replicas with more than
    `eviction_threshold_chars` to `eviction_target_chars`: texts sent least recently go first, whole
    requests at a time. A new replica has no characters, so it gets all prompts that match too
    little, until it has as many as the others.

    A token counts as `characters_per_token` characters. Prompts that differ within a block of the
    trace count as different from its first character on. One proxy routes all requests and knows
    each queue. Left out: replicas near the proxy, multiplexed models, and a limit of requests in
    flight, which Ray Serve LLM sets to 10^9.
    Source: ray 2.60.0, llm/_internal/serve/routing_policies/prefix_aware/prefix_aware_router.py and
    prefix_tree.py, serve/_private/request_router/pow_2_router.py and request_router.py.
    """

    name = "ray-prefix-aware@2.60"
    aliases = ("ray-prefix-aware", "ray")
    summary = "longest prefix sent before, or the least text"
    source = "Ray Serve LLM 2.60.0, PrefixCacheAffinityRouter"
    sees = "load"
    needs = "text"
    draws = True
    parameters = (
        Parameter(
            "imbalanced_threshold",
            float("inf"),
            "requests by which the busiest replica may exceed the least busy",
            search=(4, 16, 64),
        ),
        Parameter(
            "match_rate_threshold",
            0.1,
            "share of the prompt that has to match",
            high=1.0,
            search=(0.1, 0.3, 0.5, 0.7),
        ),
        Parameter("eviction_interval_s", 0, "seconds between evictions from the tree; 0: none"),
        Parameter("eviction_threshold_chars", 400_000, "characters of a replica to evict from"),
        Parameter("eviction_target_chars", 360_000, "characters of a replica after an eviction"),
        Parameter("characters_per_token", 4, "characters of a token", low=0.1, high=1000),
    )

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        super().__init__(values)
        self.draws = isfinite(self.values["imbalanced_threshold"])

    def memory(self, sizes: MemorySizes, seed: int) -> DrawnTree:
        """Return an empty tree."""
        return DrawnTree(new_tree(sizes, begin=0, epochs=1), new_dice(seed))

    def among(self, memory: DrawnTree, replicas: int, seed: int) -> DrawnTree:
        """Remove replicas that left from the tree."""
        forget_replicas(memory.tree, replicas)
        return memory

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: DrawnTree, p: Float64s) -> int:
        """Return the least busy of the tree's candidates; if imbalanced, of two random replicas."""
        tree, load = memory.tree, view.own.in_flight
        if eviction_is_due(tree, prompt.now_s, p[_INTERVAL]):
            _evict(tree, view.replicas, p[_THRESHOLD] / p[_CHARACTERS], p[_TARGET] / p[_CHARACTERS])
        blocks = matching_blocks(tree.node_of, path, prompt.blocks)
        node = int(tree.node_of[path[blocks - 1]]) if blocks else 0
        is_short = blocks * view.block_size / max(prompt.input_tokens, 1) < p[_MATCH_RATE]
        least, most = idlest_and_most(load)
        if most - load[least] > p[_IMBALANCED]:
            choice = less_busy_of_two(load, memory.dice)
        else:
            choice, fewest = -1, 0
            for replica in range(view.replicas):
                if node and not is_short and tree.stamps[node, replica] == ABSENT:
                    continue
                tokens = int(tree.replica_tokens[replica]) if is_short else 0
                is_even = tokens == fewest and load[replica] < load[choice]
                if choice < 0 or tokens < fewest or is_even:
                    choice, fewest = replica, tokens
        _insert(tree, prompt, path, blocks, view.block_size, choice)
        return choice

    def flags(self) -> tuple[str, ...]:
        """Return the router's part of a Ray Serve deployment's configuration, as YAML."""
        imbalanced, rate, interval_s, threshold, target, _ = self.settings()
        kwargs = f"match_rate_threshold: {rate:.10g}"
        if isfinite(imbalanced):
            kwargs += f", imbalanced_threshold: {imbalanced:.10g}"
        if interval_s:
            kwargs += (
                f", do_eviction: true, eviction_threshold_chars: {threshold:.10g},"
                f" eviction_target_chars: {target:.10g}, eviction_interval_secs: {interval_s:.10g}"
            )
        return (
            f"request_router_config: {{request_router_class: {_CLASS},",
            f"request_router_kwargs: {{{kwargs}}}}}",
        )


def _insert(
    tree: Tree, prompt: Prompt, path: Int32s, matching: int, block_size: int, replica: int
) -> None:
    """Add a prompt, whose first `matching` blocks are in the tree, as a replica's newest.

    All nodes on its path get the replica's stamp of this epoch.
    """
    node = node_at(tree, path, matching, block_size)
    leaf = add_leaf(tree, node, prompt, path, matching, block_size)
    above = leaf
    while above:
        if tree.stamps[above, replica] == ABSENT:
            tree.replica_tokens[replica] += tree.tokens[above]
        tree.stamps[above, replica] = tree.counters[EPOCH] + FIRST
        above = tree.parent[above]
    stamp(tree, leaf, replica)


def _evict(tree: Tree, replicas: int, threshold_tokens: float, target_tokens: float) -> None:
    """Cut every replica above `threshold_tokens` to `target_tokens`, oldest epochs first.

    An epoch is a request; its nodes are those on the path of its prompt that no later request of
    the replica touched. They go at once, from the lowest node up to the first ancestor that a
    later request touched, which stays.
    """
    for replica in range(replicas):
        if tree.replica_tokens[replica] <= threshold_tokens:
            continue
        while tree.replica_tokens[replica] > target_tokens:
            epoch = tree.searched[replica]
            tree.searched[replica] += 1
            node = int(tree.stamped[epoch])
            while node and tree.stamps[node, replica] == epoch + FIRST:
                node = take_out(tree, node, replica, replicas)
