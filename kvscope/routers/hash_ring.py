"""A ring of hashes, on which every replica has many places: what consistent hashing needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s, Int64s
from kvscope.routers.base import mix32

PLACES = 150
"""Places of each replica. Source: smg 1.13 and sglang-router 0.3.2, VIRTUAL_NODES_PER_WORKER."""


class HashRing(NamedTuple):
    """The places in the order of their hashes, and the replica of each."""

    places: Int64s
    replicas: Int32s


def new_ring(replicas: int, seed: int) -> HashRing:
    """Return a ring with PLACES places for each replica; real ones hash its URL, this a number."""
    count = replicas * PLACES
    hashes = np.array([mix32(mix32(seed) + place) for place in range(count)], dtype=np.int64)
    order = np.argsort(hashes, kind="stable")
    return HashRing(hashes[order], (order // PLACES).astype(np.int32))


def first_place(ring: HashRing, key: int) -> int:
    """Return the first place at or after the hash of a key, clockwise."""
    position = mix32(key)
    low, high = 0, len(ring.places)
    while low < high:
        middle = (low + high) // 2
        if ring.places[middle] < position:
            low = middle + 1
        else:
            high = middle
    return low % len(ring.places)
