"""What a replay walks: each request's path and the facts that policies may see, as columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.hits import HitDefinition
from kvscope.core.prefix import paths
from kvscope.core.trace import Prompts
from kvscope.policies.base import ENDS
from kvscope.replay.stack_distances import walk


class Traffic(NamedTuple):
    """R requests in order of arrival over a trie of N blocks.

    Request r looks up the first `look[r]` blocks of the path of `length[r]` blocks that ends at
    `leaf[r]`, leaves all of them behind, and `anonymous[r]` more below. `parent[r]` is the turn
    before it, -1 for none; `next_prompt_tokens` the truth about the turn after it.
    """

    block_size: int
    block_parent: NDArray[np.int32]
    leaf: NDArray[np.int32]
    length: NDArray[np.int32]
    look: NDArray[np.int32]
    anonymous: NDArray[np.int32]
    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int32]
    history_tokens: NDArray[np.int64]
    category: NDArray[np.int32]
    parent: NDArray[np.int32]
    next_prompt_tokens: NDArray[np.int64]


def traffic(prompts: Prompts, definition: HitDefinition) -> Traffic:
    """The traffic of a trace as `definition` counts its hits."""
    steps = walk(prompts, definition)
    history = prompts.input_tokens.astype(np.int64) + prompts.output_tokens
    whole = Traffic(
        block_size=prompts.block_size,
        block_parent=prompts.block_parent,
        leaf=np.ascontiguousarray(steps.leaf, dtype=np.int32),
        length=np.ascontiguousarray(steps.length, dtype=np.int32),
        look=np.ascontiguousarray(steps.look, dtype=np.int32),
        anonymous=np.ascontiguousarray(steps.anonymous, dtype=np.int32),
        arrival_s=prompts.arrival_s,
        input_tokens=prompts.input_tokens,
        history_tokens=history,
        category=prompts.category,
        parent=prompts.parent,
        next_prompt_tokens=next_prompts(prompts.parent, prompts.input_tokens, history),
    )
    return _flattened(whole) if definition.flat else whole


def next_prompts(
    parent: NDArray[np.int32], input_tokens: NDArray[np.int32], history_tokens: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Tokens that each conversation's next turn really adds to its history; ENDS where it ends.

    Of several turns that continue one request the earliest counts. A history that was cut adds 0.
    """
    added = np.full(len(parent), ENDS, dtype=np.int64)
    later = np.flatnonzero(parent >= 0)[::-1]  # the earliest is written last and stays
    before = parent[later]
    added[before] = np.maximum(input_tokens[later] - history_tokens[before], 0)
    return added


def _flattened(whole: Traffic) -> Traffic:
    """Every access as a request of one block, for a cache that knows no prefixes."""
    accesses = whole.length + whole.anonymous
    of = np.repeat(np.arange(len(accesses), dtype=np.int32), accesses)
    depth = np.arange(len(of)) - np.repeat(np.cumsum(accesses) - accesses, accesses)
    named = depth < whole.length[of]
    leaf = np.zeros(len(of), dtype=np.int32)
    _, leaf[named] = paths(whole.block_parent, whole.leaf, whole.length)
    return whole._replace(
        block_parent=np.zeros_like(whole.block_parent),
        leaf=leaf,
        length=named.astype(np.int32),
        look=(depth < whole.look[of]).astype(np.int32),
        anonymous=(~named).astype(np.int32),
        arrival_s=whole.arrival_s[of],
        input_tokens=whole.input_tokens[of],
        history_tokens=whole.history_tokens[of],
        category=whole.category[of],
        parent=np.full(len(of), -1, dtype=np.int32),
        next_prompt_tokens=whole.next_prompt_tokens[of],
    )
