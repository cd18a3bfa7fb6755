"""The replica on which a conversation falls on a hash ring, or the next one that has room."""

from __future__ import annotations

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import MemorySizes, Prompt, Router, View
from kvscope.routers.hash_ring import HashRing, first_place, new_ring


class ConsistentHash(Router):
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

    def memory(self, sizes: MemorySizes, seed: int) -> HashRing:
        """Return the ring."""
        return new_ring(sizes.replicas, seed)

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
        """Return HAProxy's directives of a backend."""
        return (
            "hash-type consistent",
            f"hash-balance-factor {100 * self.values['load_factor']:.10g}",
        )
