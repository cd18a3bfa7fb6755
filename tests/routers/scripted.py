"""Scripted requests for routers: prompts that share beginnings, and how long each is in flight."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s
from kvscope.routers.base import Fetch, MemorySizes, Prompt, ReplicaLoad, Router, Truth, View

BLOCK_SIZE = 4
CHARACTERS_PER_TOKEN = 2
_FIRST_CHARACTER = 0x10000  # from here on Unicode has a million characters, one for each block
_LONGEST = 400  # later requests while one is in flight


class Request(NamedTuple):
    """A prompt, and the number of later requests that arrive before it finishes."""

    path: Int32s
    input_tokens: int
    key: int
    in_flight: int

    @property
    def full_blocks(self) -> int:
        """Return how many blocks of the path are full."""
        return min(len(self.path), self.input_tokens // BLOCK_SIZE)


class Script(NamedTuple):
    """Requests in the order of their arrival, and the trie of their blocks (0 is its root)."""

    requests: list[Request]
    block_parent: Int32s

    def sizes(self, replicas: int) -> MemorySizes:
        """Return how large a router's memory has to be for these requests."""
        longest = max(len(request.path) for request in self.requests)
        blocks = len(self.block_parent)
        return MemorySizes(
            replicas, len(self.requests), blocks, longest, BLOCK_SIZE, 1000, self.block_parent
        )

    def text(self, number: int, characters_per_token: int = CHARACTERS_PER_TOKEN) -> str:
        """Return the text of a request: blocks differ from their first character."""
        request = self.requests[number]
        width = BLOCK_SIZE * characters_per_token
        text = "".join(chr(_FIRST_CHARACTER + block) * width for block in request.path)
        tail = chr(_FIRST_CHARACTER + len(self.block_parent) + number) * width
        return (text + tail)[: request.input_tokens * characters_per_token]

    def finished_before(self, number: int) -> list[int]:
        """Return the requests that finish right before one arrives."""
        return [
            earlier
            for earlier in range(max(number - 2 * _LONGEST, 0), number)
            if earlier + self.requests[earlier].in_flight == number
        ]


def scripted(requests: int, seed: int, in_flight: int = 20, apart: int = 4) -> Script:
    """Return conversations below shared system prompts, and now and then a prompt said again.

    About `in_flight` requests are in flight at a time, in waves. The first `apart` prompts share
    nothing and stay in flight together. Of the last blocks that are not full, half are on the path.
    """
    rng = random.Random(seed)
    parents, children = [0], {}
    script: list[Request] = []

    def below(block: int, label: int) -> int:
        """Return the block of a label below another one."""
        if (block, label) not in children:
            children[block, label] = len(parents)
            parents.append(block)
        return children[block, label]

    def extended(path: list[int], blocks: int, label: int) -> list[int]:
        """Return a path with more blocks of one label."""
        path = list(path)
        for _ in range(blocks):
            path.append(below(path[-1] if path else 0, label))
        return path

    systems = [extended([], rng.randint(1, 12), -1 - number) for number in range(12)]
    conversations: list[tuple[int, list[int]]] = []
    for number in range(requests):
        key = number
        draw = rng.random()
        if number < apart:
            path = extended([], rng.randint(2, 6), number)
        elif draw < 0.05 and len(script) > apart:
            again = rng.choice(script[-60:])
            path, key = list(again.path[: again.full_blocks]), again.key
            path = path[: rng.randint(0, len(path))] if draw < 0.03 else path
        elif draw < 0.65 and conversations:
            key, path = conversations[
                rng.randrange(max(len(conversations) - 40, 0), len(conversations))
            ]
            path = extended(path, rng.randint(1, 8), number)
        else:
            path = extended(rng.choice(systems), rng.randint(0, 9), number)
        tokens = len(path) * BLOCK_SIZE
        conversations.append((key, path))
        tail = rng.randrange(BLOCK_SIZE)
        if tail or not path:
            tokens += max(tail, 1)
            if rng.random() < 0.5:
                path = extended(path, 1, requests + number)
        wave = in_flight * (0.25 + 1.5 * (number // 150 % 2))
        held = 1 + min(int(rng.expovariate(1 / wave)), 399)
        script.append(
            Request(
                np.array(path, np.int32), tokens, key, max(held, apart) if number < apart else held
            )
        )
    return Script(script, np.array(parents, dtype=np.int32))


def decide(
    router: Router, script: Script, replicas: int, memory: Any = None, times: Any = None
) -> Iterator[int]:
    """Yield the replica that a router chooses for each request, with the loads of its choices."""
    counts = np.zeros(replicas, dtype=np.int64)
    load = ReplicaLoad(*(counts.copy() for _ in ReplicaLoad._fields))
    truth = Truth(counts.astype(np.int32), counts, np.ones(replicas), np.zeros(replicas))
    fetch = Fetch(np.zeros(1, dtype=np.int32), np.zeros(1))
    reported, expected = truth.cached_blocks, np.zeros(1, dtype=np.int32)
    view = View(replicas, 1000, BLOCK_SIZE, load, load, reported, expected, truth, fetch)
    memory = router.memory(script.sizes(replicas), 1) if memory is None else memory
    settings = router.settings()
    choices: list[int] = []
    for number, request in enumerate(script.requests):
        for earlier in script.finished_before(number):
            load.in_flight[choices[earlier]] -= 1
        now_s = 0.0 if times is None else times[number]
        prompt = Prompt(
            number, now_s, request.input_tokens, request.key, len(request.path), request.full_blocks
        )
        choice = int(router.choose(prompt, request.path, view, memory, settings))
        load.in_flight[choice] += 1
        load.processed[choice] += 1
        choices.append(choice)
        yield choice
