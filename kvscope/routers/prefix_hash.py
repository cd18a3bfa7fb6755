"""The replica on which the hash of a prompt's beginning falls."""

from __future__ import annotations

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import MemorySizes, Prompt, Router, View
from kvscope.routers.hash_ring import HashRing, first_place, new_ring


class PrefixHash(Router):
    """Send prompts that begin alike to one replica of a hash ring, unless it has too many.

    A replica has too many requests in flight if they exceed the average, this request included,
    both by `load_factor` and by more than `balance_abs_threshold`. Then the one with the fewest
    gets the request, the first of equals.
    The hash covers `prefix_tokens`; a block that they cover in part counts as a whole.
    Source: smg 1.13 (lightseekorg/smg), model_gateway/src/policies/prefix_hash.rs at 73da68ca; the
    absolute threshold and all defaults: its launcher, smg/router_args.py of the wheel 1.13.0.
    """

    name = "prefix-hash@1.13"
    aliases = ("prefix-hash",)
    summary = "by a hash of the prompt's head, unless too busy"
    source = "smg 1.13, prefix_hash"
    sees = "load"
    needs = "text"
    parameters = (
        Parameter(
            "prefix_tokens",
            256,
            "tokens of the prompt that are hashed",
            low=1,
            search=(64, 256, 1024, 4096),
        ),
        Parameter(
            "load_factor",
            1.25,
            "multiple of the average load that a replica may have",
            low=1.0,
            search=(1.1, 1.25, 2.0),
        ),
        Parameter(
            "balance_abs_threshold",
            10,
            "requests above the average that a replica may have in any case",
            search=(0, 10),
        ),
    )

    def memory(self, sizes: MemorySizes, seed: int) -> HashRing:
        """Return the ring."""
        return new_ring(sizes.replicas, seed)

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: HashRing, p: Float64s) -> int:
        """Return the ring's replica, or the least busy one if that has too many requests."""
        load = view.own.in_flight
        key = prefix_key(prompt, path, view.block_size, int(p[0]))
        home = int(memory.replicas[first_place(memory, key)])
        total = least = 0
        for replica in range(view.replicas):
            total += load[replica]
            if load[replica] < load[least]:
                least = replica
        average = (total + 1) / view.replicas
        has_too_many = load[home] > average * p[1] and load[home] > average + p[2]
        return least if has_too_many else home

    def flags(self) -> tuple[str, ...]:
        """Return the options of `python -m smg.launch_router`."""
        tokens, factor, requests = self.settings()
        return (
            "--policy prefix_hash",
            f"--prefix-token-count {tokens:.10g}",
            f"--prefix-hash-load-factor {factor:.10g}",
            f"--prefix-hash-balance-abs-threshold {requests:.10g}",
        )


def prefix_key(prompt: Prompt, path: Int32s, block_size: int, tokens: int) -> int:
    """Return a number that stands for the first tokens of a prompt.

    It is that of the block in which they end; where that is not on the path, of the request alone.
    """
    blocks = (min(tokens, prompt.input_tokens) + block_size - 1) // block_size
    if 0 < blocks <= prompt.blocks:
        return int(path[blocks - 1])
    return -1 - prompt.request
