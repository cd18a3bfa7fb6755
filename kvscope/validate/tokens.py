"""A trace of anonymous blocks as prompts of tokens, of which exactly the same parts are alike.

Every block becomes a list of tokens of its own, made from its number and a seed; what the trace
does not tell (the end of a prompt, an output that no later turn repeats) becomes tokens that occur
nowhere else. So an engine hits what the trace hits, in blocks of whatever size.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from kvscope.core.prefix import paths
from kvscope.core.trace import Prompts

FIRST, BEHIND = 100, 1000
"""Token ids are from the first up to the second: in every vocabulary, and never special."""
_UNIQUE = 1 << 40  # where the numbers of blocks that only one request has begin
_STEP = np.uint64(0x9E3779B97F4A7C15)
_LAST = np.uint64(31)
_SEED = 0xD1B54A32D192ED03
_MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)

Tokens = NDArray[np.int32]


class TokenTrace:
    """The requests of a trace as tokens, the same for the same seed.

    `forced`: outputs are those that the trace's later turns carry, and somebody makes the engine
    say them. Otherwise an output is the engine's own, and what later turns carry of it is new.
    """

    def __init__(self, prompts: Prompts, *, forced: bool, seed: int = 0) -> None:
        self.prompts, self.forced, self.seed = prompts, forced, seed
        self._named = paths(prompts.block_parent, prompts.leaf, prompts.blocks)
        self._carried = paths(prompts.block_parent, prompts.carried_leaf, prompts.carried_blocks)

    def __len__(self) -> int:
        return len(self.prompts.leaf)

    @cached_property
    def turns(self) -> NDArray[np.int32]:
        """Which turn of its conversation each request is, from 1."""
        turns = np.ones(len(self), dtype=np.int32)
        for request, parent in enumerate(self.prompts.parent):
            if 0 <= parent < request:
                turns[request] = turns[parent] + 1
        return turns

    def kind(self, request: int) -> str:
        """The type of a request."""
        return str(self.prompts.categories[self.prompts.category[request]]).rpartition(" ")[0]

    def prompt(self, request: int) -> Tokens:
        """The tokens of a prompt."""
        return self._sequence(request)[: self.prompts.input_tokens[request]]

    def output(self, request: int) -> Tokens:
        """The tokens of the answer; an engine gives one at the least."""
        return self._sequence(request)[self.prompts.input_tokens[request] :]

    def sent(self, block_size: int) -> Prompts:
        """The same requests as an engine with blocks of `block_size` tokens sees them."""
        nodes: dict[tuple[int, bytes], int] = {}
        parents = [0]
        leaf, carried_leaf = [], []
        inputs = self.prompts.input_tokens
        outputs = np.maximum(self.prompts.output_tokens, 1).astype(np.int32)
        full = (inputs // block_size).astype(np.int32)
        cached = np.maximum((inputs + outputs - 1) // block_size, full).astype(np.int32)
        for request in range(len(self)):
            known = int((cached if self.forced else full)[request])
            tokens = self._sequence(request)[: known * block_size].reshape(known, block_size)
            node, at_prompt = 0, 0
            for depth in range(known):
                key = (node, blake2b(tokens[depth].tobytes(), digest_size=16).digest())
                if key not in nodes:
                    nodes[key] = len(parents)
                    parents.append(node)
                node = nodes[key]
                if depth + 1 == full[request]:
                    at_prompt = node
            leaf.append(at_prompt)
            carried_leaf.append(node)
        return replace(
            self.prompts,
            block_size=block_size,
            output_tokens=outputs,
            blocks=full,
            full_blocks=full,
            leaf=np.array(leaf, dtype=np.int32),
            cached_blocks=cached,
            carried_leaf=np.array(carried_leaf, dtype=np.int32),
            carried_blocks=cached if self.forced else full,
            block_parent=np.array(parents, dtype=np.int32),
        )

    def _sequence(self, request: int) -> Tokens:
        """Prompt and output."""
        prompts, size = self.prompts, self.prompts.block_size
        count = int(prompts.input_tokens[request]) + max(int(prompts.output_tokens[request]), 1)
        numbers = _UNIQUE + (request << 20) + np.arange(-(-count // size), dtype=np.int64)
        told = [self._named] + ([self._carried] if self.forced else [])
        for known in told:  # what is carried tells more of the prompt's last block too
            path = known.blocks[known.starts[request] : known.starts[request + 1]]
            numbers[: len(path)] = path[: len(numbers)]
        return _made(numbers, size, self.seed)[:count]


def _made(numbers: NDArray[np.int64], size: int, seed: int) -> Tokens:
    """The tokens of blocks with these numbers, one block after the other.

    Source of the numbers: splitmix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014).
    """
    places = numbers.astype(np.uint64)[:, None] * np.uint64(size) + np.arange(size, dtype=np.uint64)
    start = np.uint64(seed * _SEED % (1 << 64))
    x = np.asarray((places + start) * _STEP, dtype=np.uint64)
    for shift, mix in _MIX:
        x ^= np.right_shift(x, shift)
        x *= mix
    x ^= np.right_shift(x, _LAST)
    return np.asarray(FIRST + (x % np.uint64(BEHIND - FIRST)), dtype=np.int32).ravel()
