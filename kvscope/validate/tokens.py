"""The requests to send to an engine: a part of a trace, its anonymous blocks turned into tokens.

Every block becomes a distinct list of tokens, made from its number and a seed. Parts for which the
trace has no blocks (the end of a prompt, an output that no later turn repeats) become tokens
that occur nowhere else. So an engine hits the same tokens as the trace, in blocks of any size.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.core.arrays import STEP, mixed
from kvscope.core.errors import InputError
from kvscope.core.prefix import paths
from kvscope.core.trace import Prompts
from kvscope.ingest.lineage import conversations
from kvscope.ingest.trie import Trie
from kvscope.replay.derived_traces import select

FIRST, BEHIND = 100, 1000
"""Token ids are from the first up to the second: in every vocabulary, and never special."""
_UNIQUE = 1 << 40  # where the numbers of blocks that only one request has begin
_SEED = 0xD1B54A32D192ED03

Tokens = NDArray[np.int32]


class TraceSample(Struct, frozen=True):
    """The requests to replay, out of `total`, and how many were left out for each reason.

    `numbers` are the sampled requests' numbers in the trace.
    """

    prompts: Prompts
    numbers: NDArray[np.int64]
    total: int
    outside_sample: int
    beyond_limit: int
    too_long: int


def sample_trace(
    prompts: Prompts,
    *,
    share: float = 1.0,
    seconds: float | None = None,
    most: int | None = None,
    longest: int | None = None,
    seed: int = 0,
) -> TraceSample:
    """Return a `share` of a trace's conversations, cut to `seconds` and `most` requests.

    Requests of more than `longest` tokens are left out. Conversations are sampled whole, and
    arrivals stay, so that the load keeps its pattern. Raises InputError for an empty sample.
    """
    total = len(prompts.leaf)
    selected = np.ones(total, dtype=bool)
    if share < 1:
        conversations, member = np.unique(prompts.conversation, return_inverse=True)
        sampled = np.random.default_rng(seed).random(len(conversations)) < share
        selected &= sampled[member]
    outside_sample = int(total - selected.sum())
    if seconds is not None:
        selected &= prompts.arrival_s <= prompts.arrival_s[0] + seconds
    if most is not None:
        selected &= np.cumsum(selected) <= most
    beyond_limit = int(total - outside_sample - selected.sum())
    if longest is not None:
        tokens = prompts.input_tokens.astype(np.int64) + np.maximum(prompts.output_tokens, 1)
        selected &= tokens <= longest
    selected &= prompts.input_tokens > 0
    chosen = np.flatnonzero(selected)
    if not len(chosen):
        raise InputError(
            "no request is left to replay",
            where="--share, --until, --max-requests",
            remedy="take more of the trace, or a larger --max-model-len",
        )
    return TraceSample(
        prompts=select(prompts, chosen),
        numbers=chosen,
        total=total,
        outside_sample=outside_sample,
        beyond_limit=beyond_limit,
        too_long=total - outside_sample - beyond_limit - len(chosen),
    )


class TokenTrace:
    """The requests of a trace as tokens, the same for the same seed.

    `forced`: the engine must output the tokens that the trace's later turns repeat. Otherwise it
    chooses its output, and the outputs in later turns' prompts are new to it.
    """

    def __init__(self, prompts: Prompts, *, forced: bool, seed: int = 0) -> None:
        self.prompts, self.forced, self.seed = prompts, forced, seed
        _, self.turns = conversations(prompts.parent)
        self._paths = [paths(prompts.block_parent, prompts.leaf, prompts.blocks)]
        if forced:  # what is carried contains more of the prompt's last block, too
            self._paths.append(
                paths(prompts.block_parent, prompts.carried_leaf, prompts.carried_blocks)
            )

    def __len__(self) -> int:
        return len(self.prompts.leaf)

    def kind(self, request: int) -> str:
        """Return the type of a request, without its turn bucket."""
        return str(self.prompts.categories[self.prompts.category[request]]).rpartition(" ")[0]

    def prompt(self, request: int) -> Tokens:
        """Return the tokens of a prompt."""
        return self._sequence(request)[: self.prompts.input_tokens[request]]

    def output(self, request: int) -> Tokens:
        """Return the tokens of the answer, at least one."""
        return self._sequence(request)[self.prompts.input_tokens[request] :]

    def sent(self, block_size: int) -> Prompts:
        """Return the requests with blocks of `block_size` tokens, as the engine caches them."""
        inputs = self.prompts.input_tokens
        outputs = np.maximum(self.prompts.output_tokens, 1).astype(np.int32)
        full = (inputs // block_size).astype(np.int32)
        cached = np.maximum((inputs + outputs - 1) // block_size, full).astype(np.int32)
        known = cached if self.forced else full
        digests = b"".join(
            blake2b(block.tobytes(), digest_size=8).digest()
            for request, count in enumerate(known.tolist())
            for block in self._sequence(request)[: count * block_size].reshape(count, block_size)
        )
        trie = Trie()
        starts = np.concatenate(([0], np.cumsum(known, dtype=np.int64)))
        leaf = carried_leaf = trie.intern(starts, np.frombuffer(digests, dtype=np.int64))
        for beyond in range(int((known - full).max())):  # up to the prompt's last full block
            leaf = np.where(known - full > beyond, trie.parent[leaf], leaf)
        return replace(
            self.prompts,
            block_size=block_size,
            output_tokens=outputs,
            blocks=full,
            full_blocks=full,
            leaf=leaf,
            cached_blocks=cached,
            carried_leaf=carried_leaf,
            carried_blocks=cached if self.forced else full,
            block_parent=trie.parent.copy(),
        )

    def _sequence(self, request: int) -> Tokens:
        prompts, size = self.prompts, self.prompts.block_size
        count = int(prompts.input_tokens[request]) + max(int(prompts.output_tokens[request]), 1)
        numbers = _UNIQUE + (request << 20) + np.arange(-(-count // size), dtype=np.int64)
        for path_set in self._paths:
            path = path_set.blocks[path_set.starts[request] : path_set.starts[request + 1]]
            numbers[: len(path)] = path[: len(numbers)]
        return _block_tokens(numbers, size, self.seed)[:count]


def _block_tokens(numbers: NDArray[np.int64], size: int, seed: int) -> Tokens:
    places = numbers.astype(np.uint64)[:, None] * np.uint64(size) + np.arange(size, dtype=np.uint64)
    start = np.uint64(seed * _SEED % (1 << 64))
    x = mixed((places + start) * STEP)
    return np.asarray(FIRST + (x % np.uint64(BEHIND - FIRST)), dtype=np.int32).ravel()
