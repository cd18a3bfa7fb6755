"""Made traffic with all its tokens: conversations whose turns share heads, repeat and part ways.

The same requests go to vLLM as tokens and to kvscope as paths of a trie.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import Request

VOCABULARY = 1 << 30


@dataclass(frozen=True)
class Asked:
    """One request: what it asks, what it will be answered, who it is salted for, and when."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    salt: str | None
    arrival_s: float
    parent: int = -1  # the request that it continues

    def blocks(self, size: int) -> int:
        """How many blocks it fills: the last output token is never computed."""
        return (len(self.prompt) + len(self.output) - 1) // size

    def chunk(self, depth: int, size: int) -> tuple[int, ...]:
        """The tokens of one block."""
        return (self.prompt + self.output)[depth * size : (depth + 1) * size]


@dataclass(frozen=True)
class Mix:
    """What the traffic is made of: lengths in tokens, and chances of what a next turn does."""

    head: int = 80
    turn: int = 60
    output: int = 40
    heads: int = 3
    salts: int = 2
    again: float = 0.1  # asks the very same once more
    edited: float = 0.1  # goes on from the middle of its history
    silent: float = 0.1  # goes on without the output, as if it had been stripped
    new: float = 0.35  # opens a conversation
    gap: float = 0.5  # mean time between arrivals, in steps


def conversations(requests: int, seed: int, mix: Mix) -> list[Asked]:
    """`requests` requests in order of arrival, at whole steps."""
    rng = np.random.default_rng(seed)

    def tokens(mean: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, VOCABULARY, 1 + rng.poisson(mean)).tolist())

    heads = [(), *(tokens(mix.head) for _ in range(mix.heads))]
    salts = [None, *(f"tenant {number}" for number in range(mix.salts))]
    asked: list[Asked] = []
    arrival = 0.0
    for _ in range(requests):
        arrival += float(rng.poisson(mix.gap))
        roll = float(rng.random())
        if not asked or roll < mix.new:
            head = heads[int(rng.integers(len(heads)))]
            salt = salts[int(rng.integers(len(salts)))]
            asked.append(Asked(head + tokens(mix.turn), tokens(mix.output), salt, arrival, -1))
            continue
        recent = int(rng.integers(max(len(asked) - 40, 0), len(asked)))
        before = asked[recent]
        roll = float(rng.random())
        if roll < mix.again:
            asked.append(replace(before, arrival_s=arrival))
            continue
        history = before.prompt + before.output
        if roll < mix.again + mix.edited:
            history = history[: int(rng.integers(1, len(history)))]
        elif roll < mix.again + mix.edited + mix.silent:
            history = before.prompt
        prompt = history + tokens(mix.turn)
        asked.append(Asked(prompt, tokens(mix.output), before.salt, arrival, recent))
    return asked


def prompts_of(asked: list[Asked], size: int) -> Prompts:
    """The requests as paths of a trie, outputs included: everything is known of everybody."""
    nodes: dict[tuple[object, ...], int] = {}
    parents = [0]
    leaf, carried_leaf = [], []
    for one in asked:
        node, full = 0, len(one.prompt) // size
        ends = [0]
        for depth in range(max(one.blocks(size), full)):
            key = (node, one.chunk(depth, size), one.salt if depth == 0 else None)
            if key not in nodes:
                nodes[key] = len(parents)
                parents.append(node)
            node = nodes[key]
            ends.append(node)
        leaf.append(ends[full])
        carried_leaf.append(node)
    inputs = _column([len(one.prompt) for one in asked])
    outputs = _column([len(one.output) for one in asked])
    full_blocks = (inputs // size).astype(np.int32)
    filled = np.maximum((inputs + outputs - 1) // size, full_blocks).astype(np.int32)
    return Prompts(
        block_size=size,
        arrival_s=np.array([one.arrival_s for one in asked]),
        input_tokens=inputs,
        output_tokens=outputs,
        conversation=np.zeros(len(asked), dtype=np.int32),
        parent=_column([one.parent for one in asked]),
        user=np.full(len(asked), -1, dtype=np.int32),
        category=np.zeros(len(asked), dtype=np.int32),
        categories=("unknown 1",),
        blocks=full_blocks,
        full_blocks=full_blocks,
        leaf=_column(leaf),
        cached_blocks=filled,
        carried_leaf=_column(carried_leaf),
        carried_blocks=filled,
        block_parent=_column(parents),
    )


def as_trace(asked: list[Asked], size: int) -> list[Request]:
    """The requests as a trace tells them: hashes of the prompts' blocks, and who continues whom."""
    ids: dict[tuple[int, ...] | tuple[str | None, ...], int] = {}
    trace = []
    for number, one in enumerate(asked):
        chunks = [one.chunk(depth, size) for depth in range(len(one.prompt) // size)]
        named: list[int | str] = [ids.setdefault(chunk, len(ids)) for chunk in chunks]
        if named:
            named[0] = f"{named[0]} {one.salt}"
        trace.append(
            Request(
                input_tokens=len(one.prompt),
                output_tokens=len(one.output),
                arrival_s=one.arrival_s,
                hash_ids=named,
                chat_id=number,
                parent_chat_id=one.parent if one.parent >= 0 else None,
            )
        )
    return trace


def _column(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)
