"""The contract of a router: the attributes and methods that a file in this folder provides.

A router chooses the replica that serves a request. Three states never mix: the *truth*, the blocks
that each replica's cache holds; the router's knowledge of these caches, from its own *memory*, such
as a tree of the prompts that it sent to each replica, or from *KV events*, which may come late; and
the *load*, which it counts itself or scrapes from the replicas.

Like a policy's, its methods are plain functions of numbers and arrays: the simulator compiles them,
tests and slow replays call them as they are. So they use only code that numba can compile, allocate
nothing, and nothing here imports numba.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.parameters import Parameter, bound_values

Sees = Literal["order", "history", "load", "truth"]
"""What a choice depends on.

`order`: the number and the key of a request alone. `history`: also the prompts routed before.
`load`: also how busy replicas are. `truth`: also what their caches hold.
"""

EVENT_LAG = Parameter("event_lag_s", 0.0, "how late KV events come that report what caches hold")

_WORD = 0xFFFFFFFF


class Prompt(NamedTuple):
    """One request, as a router may see it.

    `request` is its number, from 0 in order of arrival. `key` (at least 0) stands for its session:
    it is the same for all turns of a conversation. The path of its prompt has `blocks` blocks, of
    which the first `full_blocks` are full.
    """

    request: int
    now_s: float
    input_tokens: int
    key: int
    blocks: int
    full_blocks: int


class ReplicaLoad(NamedTuple):
    """Load of N replicas; every array has N entries.

    `in_flight` requests were sent and have not finished: `waiting` ones whose prefill has not begun
    and `running` ones. `processed` counts all requests sent so far, `sent_tokens` their prompt
    tokens. Of requests in flight without a first token, `prompt_tokens` sums whole prompts and
    `uncached_tokens` the part that their replica has to compute, by the router's own estimate if it
    has one (`View.expected_blocks`).

    A replica is a latency profile, or with the time model `engine` a simulated engine.
    `used_blocks` counts the distinct blocks in use: by all prompts in flight, or on a simulated
    engine by running requests. `waiting_tokens` sums the prompts of waiting requests on a simulated
    engine; else 0.
    """

    in_flight: Int64s
    waiting: Int64s
    running: Int64s
    processed: Int64s
    sent_tokens: Int64s
    waiting_tokens: Int64s
    prompt_tokens: Int64s
    uncached_tokens: Int64s
    used_blocks: Int64s


class Truth(NamedTuple):
    """What would happen to this request on each of N replicas; every array has N entries.

    `cached_blocks` is the number of leading blocks of the prompt that the replica holds and a
    look-up may hit, `new_blocks` the number of its blocks that no request in flight there uses.
    The request would wait for `wait_s` seconds behind earlier ones; its prefill would then take
    `prefill_s`.
    """

    cached_blocks: Int32s
    new_blocks: Int64s
    prefill_s: Float64s
    wait_s: Float64s


class Fetch(NamedTuple):
    """A router's order to copy leading blocks from other replicas to the one chosen.

    Both arrays have one entry. `blocks` is 0 unless set, and capped at the most leading blocks that
    any replica holds; the copy takes `seconds` before the prefill.
    """

    blocks: Int32s
    seconds: Float64s


class View(NamedTuple):
    """A fleet of N replicas of `capacity_blocks` blocks each, as seen when a request arrives.

    `own` is the router's own count, up to date. `scraped` are the metrics of the replicas, read
    every `scrape_s` seconds (a router's parameter); the same as `own` for a router without it.
    `reported_blocks` (N) are the `Truth.cached_blocks` by KV events: as of `event_lag_s` seconds
    ago (a router's parameter); the same as in `truth` for a router without it. A router may write
    `expected_blocks` (1 entry): the number of leading blocks that it expects the chosen replica to
    hold; -1 unless set.
    """

    replicas: int
    capacity_blocks: int
    block_size: int
    own: ReplicaLoad
    scraped: ReplicaLoad
    reported_blocks: Int32s
    expected_blocks: Int32s
    truth: Truth
    fetch: Fetch


class MemorySizes(NamedTuple):
    """Sizes of a fleet and its requests, for a router's memory.

    `blocks` counts the trie's blocks and its root, which is block 0. `block_parent` (`blocks`
    entries) has each block's parent, for the root 0. `longest` is 1 more than the blocks of the
    longest path. Each of `replicas` holds `capacity_blocks` blocks of `block_size` tokens.
    """

    replicas: int
    requests: int
    blocks: int
    longest: int
    block_size: int
    capacity_blocks: int
    block_parent: Int32s


class Dice(NamedTuple):
    """Memory of a router that keeps only the state of its random numbers (1)."""

    dice: Int64s


class Router:
    """Declarations of a router (class attributes), and its parameter values (`values`, by name).

    `name` includes the version of the program whose rule it is. `parameters` are those that it has.
    `needs` says what a trace must have: "nothing", "keys" (sessions, for `Prompt.key`), or "text",
    which is approximated by the blocks of a prompt and a number of characters per token.
    `reference` marks routers that no program offers, `draws` those that draw random numbers; with
    some parameter values they may not. `copies` marks a router that writes `View.fetch`.
    `counts_blocks` requests `ReplicaLoad.used_blocks` and `Truth.new_blocks`, which cost time.
    """

    DOCUMENT: ClassVar[str] = "name summary source aliases sees needs draws reference"
    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str]
    source: ClassVar[str]
    sees: ClassVar[Sees]
    needs: ClassVar[Literal["nothing", "keys", "text"]] = "nothing"
    reference: ClassVar[bool] = False
    counts_blocks: ClassVar[bool] = False
    copies: ClassVar[bool] = False
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    draws: bool = False
    values: dict[str, float]

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        self.values = bound_values(self.name, self.parameters, values or {})

    def __repr__(self) -> str:
        """Return the name with the parameter values, which identify a router."""
        return f"{self.name}({self.values})"

    def __eq__(self, other: object) -> bool:
        """Return whether another router has the same name and values."""
        return isinstance(other, Router) and repr(self) == repr(other)

    def __hash__(self) -> int:
        """Return a hash of name and values."""
        return hash(repr(self))

    def settings(self) -> Float64s:
        """Return the parameter values as the array `p` of `choose`, in the order of `parameters`.

        `parameters` is the class attribute that declares them.
        """
        return np.array([self.values[known.name] for known in self.parameters], dtype=np.float64)

    def memory(self, sizes: MemorySizes, seed: int) -> Any:
        """Return an empty memory for one replay: a NamedTuple of arrays, of a type of the router's.

        `seed` starts its random numbers.
        """
        return Dice(new_dice(seed))

    def among(self, memory: Any, replicas: int, seed: int) -> Any:
        """Return the memory for the first `replicas` alone, after all others have left the fleet.

        `memory` was made for the largest number of replicas; it may be changed in place, and is
        used again when replicas come back.
        """
        return memory

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the replica that serves a request, and update the memory.

        `path` has the blocks of the prompt, the head first. Periodic work of a real router, such as
        pruning its tree, is done here for the time since the last request.
        """
        raise NotImplementedError

    def flags(self) -> tuple[str, ...]:
        """Return the launch flags that configure this router with its values; empty for none."""
        return ()


def new_dice(seed: int) -> Int64s:
    """Return the state of random numbers for `draw` (1 entry), from any seed."""
    return np.array([mix32(seed) | 1], dtype=np.int64)


def draw(dice: Int64s, below: int) -> int:
    """Return a random number from 0 to `below` - 1.

    Source: Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8(14), 2003 (32 bits).
    """
    x = int(dice[0])
    x ^= (x << 13) & _WORD
    x ^= x >> 17
    x ^= (x << 5) & _WORD
    dice[0] = x
    return (x * below) >> 32


def mix32(number: int) -> int:
    """Return the hash of a number, from 0 to 2^32 - 1.

    Source: hash-prospector (Wellons), lowbias32.
    """
    x = int(number) & _WORD
    x ^= x >> 16
    x = (x * 0x7FEB352D) & _WORD
    x ^= x >> 15
    x = (x * 0x846CA68B) & _WORD
    return x ^ (x >> 16)


def least_loaded(in_flight: Int64s, processed: Int64s) -> int:
    """Return the replica with fewest requests in flight; of equals, with fewest sent so far."""
    least = 0
    for replica in range(1, len(in_flight)):
        if in_flight[replica] < in_flight[least] or (
            in_flight[replica] == in_flight[least] and processed[replica] < processed[least]
        ):
            least = replica
    return least


def idlest_and_most(in_flight: Int64s) -> tuple[int, int]:
    """Return the first replica with the fewest requests in flight, and the highest count of any."""
    idlest, most = 0, in_flight[0]
    for replica in range(1, len(in_flight)):
        most = max(most, in_flight[replica])
        if in_flight[replica] < in_flight[idlest]:
            idlest = replica
    return idlest, most


def less_busy_of_two(in_flight: Int64s, dice: Int64s) -> int:
    """Return the less busy of two random, different replicas; of equals the first drawn."""
    replicas = len(in_flight)
    if replicas == 1:
        return 0
    first = draw(dice, replicas)
    second = (first + 1 + draw(dice, replicas - 1)) % replicas
    return first if in_flight[first] <= in_flight[second] else second
