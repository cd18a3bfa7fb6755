"""Generate traffic with all its tokens: conversations that share heads, repeat and branch.

The same requests go to vLLM as tokens and to kvscope as paths of a trie.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import Request

VOCABULARY = 1 << 30


class TokenRequest(Struct, frozen=True):
    """One request: prompt and output tokens, cache salt and arrival."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    salt: str | None
    arrival_s: float
    parent: int = -1  # the request that it continues

    def blocks(self, size: int) -> int:
        """Return the number of blocks it fills: the last output token is never computed."""
        return (len(self.prompt) + len(self.output) - 1) // size

    def chunk(self, depth: int, size: int, ahead: int = 0) -> tuple[int, ...]:
        """Return the tokens of a block, and so many behind it."""
        return (self.prompt + self.output)[depth * size : (depth + 1) * size + ahead]


class Mix(Struct, frozen=True):
    """Mean lengths in tokens, and the probabilities of each kind of next turn."""

    head: int = 80
    turn: int = 60
    output: int = 40
    heads: int = 3
    salts: int = 2
    again: float = 0.1  # repeats the request
    edited: float = 0.1  # continues from the middle of its history
    silent: float = 0.1  # continues without the output
    new: float = 0.35  # begins a conversation
    gap: float = 0.5  # mean time between arrivals, in steps


def conversations(requests: int, seed: int, mix: Mix) -> list[TokenRequest]:
    """Return `requests` requests in order of arrival, at whole steps."""
    rng = np.random.default_rng(seed)

    def tokens(mean: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, VOCABULARY, 1 + rng.poisson(mean)).tolist())

    heads = [(), *(tokens(mix.head) for _ in range(mix.heads))]
    salts = [None, *(f"tenant {number}" for number in range(mix.salts))]
    generated: list[TokenRequest] = []
    arrival = 0.0
    for _ in range(requests):
        arrival += float(rng.poisson(mix.gap))
        roll = float(rng.random())
        if not generated or roll < mix.new:
            head = heads[int(rng.integers(len(heads)))]
            salt = salts[int(rng.integers(len(salts)))]
            generated.append(
                TokenRequest(head + tokens(mix.turn), tokens(mix.output), salt, arrival, -1)
            )
            continue
        recent = int(rng.integers(max(len(generated) - 40, 0), len(generated)))
        before = generated[recent]
        roll = float(rng.random())
        if roll < mix.again:
            generated.append(replace(before, arrival_s=arrival))
            continue
        history = before.prompt + before.output
        if roll < mix.again + mix.edited:
            history = history[: int(rng.integers(1, len(history)))]
        elif roll < mix.again + mix.edited + mix.silent:
            history = before.prompt
        prompt = history + tokens(mix.turn)
        generated.append(TokenRequest(prompt, tokens(mix.output), before.salt, arrival, recent))
    return generated


def prompts_of(trace: list[TokenRequest], size: int, ahead: int = 0) -> Prompts:
    """Return the requests as paths of a trie, outputs included.

    A block is told by its own tokens and `ahead` behind it.
    """
    nodes: dict[tuple[object, ...], int] = {}
    parents = [0]
    leaf, carried_leaf = [], []
    for request in trace:
        node, full = 0, len(request.prompt) // size
        ends = [0]
        for depth in range(max(request.blocks(size), full)):
            key = (node, request.chunk(depth, size, ahead), request.salt if depth == 0 else None)
            if key not in nodes:
                nodes[key] = len(parents)
                parents.append(node)
            node = nodes[key]
            ends.append(node)
        leaf.append(ends[full])
        carried_leaf.append(node)
    inputs = _column([len(request.prompt) for request in trace])
    outputs = _column([len(request.output) for request in trace])
    full_blocks = (inputs // size).astype(np.int32)
    filled = np.maximum((inputs + outputs - 1) // size, full_blocks).astype(np.int32)
    return Prompts(
        block_size=size,
        arrival_s=np.array([request.arrival_s for request in trace]),
        input_tokens=inputs,
        output_tokens=outputs,
        conversation=np.zeros(len(trace), dtype=np.int32),
        parent=_column([request.parent for request in trace]),
        user=np.full(len(trace), -1, dtype=np.int32),
        category=np.zeros(len(trace), dtype=np.int32),
        clock=np.full(len(trace), -1, dtype=np.int32),
        categories=("unknown 1",),
        blocks=full_blocks,
        full_blocks=full_blocks,
        leaf=_column(leaf),
        cached_blocks=filled,
        carried_leaf=_column(carried_leaf),
        carried_blocks=filled,
        block_parent=_column(parents),
    )


def as_trace(trace: list[TokenRequest], size: int) -> list[Request]:
    """Return the requests as a trace has them: hashes of the prompts' blocks, and parents."""
    ids: dict[tuple[int, ...] | tuple[str | None, ...], int] = {}
    records = []
    for number, request in enumerate(trace):
        chunks = [request.chunk(depth, size) for depth in range(len(request.prompt) // size)]
        named: list[int | str] = [ids.setdefault(chunk, len(ids)) for chunk in chunks]
        if named:
            named[0] = f"{named[0]} {request.salt}"
        records.append(
            Request(
                input_tokens=len(request.prompt),
                output_tokens=len(request.output),
                arrival_s=request.arrival_s,
                hash_ids=named,
                chat_id=number,
                parent_chat_id=request.parent if request.parent >= 0 else None,
            )
        )
    return records


def _column(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)
