"""A ring of hashes, on which every replica has many places, and the routers that hash on it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import MemorySizes, Prompt, Router, View, mix32

PLACES = 150
"""Places of each replica. Source: smg 1.13 and sglang-router 0.3.2, VIRTUAL_NODES_PER_WORKER."""


class HashRing(NamedTuple):
    """The `places` on a ring, ascending hashes from 0 to 2^32 - 1, and the `replicas` of each."""

    places: Int64s
    replicas: Int32s


def new_ring(replicas: int, seed: int) -> HashRing:
    """Return a ring with 150 places (`PLACES`) for each replica, at hashes of seed and number.

    Real rings hash a replica's URL.
    """
    count = replicas * PLACES
    hashes = np.array([mix32(mix32(seed) + place) for place in range(count)], dtype=np.int64)
    order = np.argsort(hashes, kind="stable")
    return HashRing(hashes[order], (order // PLACES).astype(np.int32))


def first_place(ring: HashRing, key: int) -> int:
    """Return the index of the first place at or after a key's hash, 0 behind the last place."""
    return int(np.searchsorted(ring.places, mix32(key))) % len(ring.places)


class RingRouter(Router):
    """Base of routers whose memory is a hash ring of the replicas that serve."""

    def memory(self, sizes: MemorySizes, seed: int) -> HashRing:
        """Return a ring of all replicas."""
        return new_ring(sizes.replicas, seed)

    def among(self, memory: HashRing, replicas: int, seed: int) -> HashRing:
        """Return a ring of the first `replicas` only."""
        return new_ring(replicas, seed)


class ConsistentHash(RingRouter):
    """Send a conversation to its replica on a hash ring, or the next clockwise that has room.

    A replica has room if with this request it has at most `load_factor` times the average in
    flight, rounded up; at least one has. A large factor is plain consistent hashing.
    Source: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads" (SODA 2018);
    HAProxy's hash-balance-factor.
    """

    name = "consistent-hash"
    aliases = ("chwbl",)
    summary = "the session's next replica on a ring that has room"
    source = "Mirrokni et al., SODA 2018; HAProxy hash-balance-factor"
    sees = "load"
    needs = "keys"
    parameters = (
        Parameter(
            "load_factor",
            1.25,
            "multiple of the average load that a replica may have",
            low=1.0,
            search=(1.1, 1.25, 1.5, 2.0),
        ),
    )

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: HashRing, p: Float64s) -> int:
        """Return the first replica clockwise that has room."""
        load = view.own.in_flight
        total = 1
        for replica in range(view.replicas):
            total += load[replica]
        # Not rounded up: a count is below a number just if it is below that number rounded up.
        limit = p[0] * total / view.replicas
        place = first_place(memory, prompt.key)
        while load[memory.replicas[place]] >= limit:
            place = (place + 1) % len(memory.places)
        return int(memory.replicas[place])

    def flags(self) -> tuple[str, ...]:
        """Return the directives of a HAProxy backend."""
        return (
            "hash-type consistent",
            f"hash-balance-factor {100 * self.values['load_factor']:.10g}",
        )


class PrefixHash(RingRouter):
    """Send prompts that begin alike to one replica of a hash ring, unless it has too many.

    A replica has too many requests in flight if they exceed both `load_factor` times the average,
    this request included, and the average plus `balance_abs_threshold`. Then the replica with the
    fewest in flight gets the request, the first of equals.
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

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: HashRing, p: Float64s) -> int:
        """Return the ring's replica, or the least busy one if it has too many requests."""
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
    """Return a key for the first `tokens` tokens of a prompt.

    It is the id of the block in which they end; if the path lacks it, a key of this request alone.
    """
    blocks = (min(tokens, prompt.input_tokens) + block_size - 1) // block_size
    if 0 < blocks <= prompt.blocks:
        return int(path[blocks - 1])
    return -1 - prompt.request
