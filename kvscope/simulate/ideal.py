"""What an infinite cache hits: all that was written before, under any definition of a hit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvscope.facts import HitDefinition
from kvscope.jit import kernel
from kvscope.simulate.curve import first_counted, total_weight
from kvscope.simulate.distances import walk
from kvscope.store.prompts import PromptPaths


def ideal_blocks(prompts: PromptPaths, definition: HitDefinition) -> NDArray[np.int32]:
    """The leading blocks of each prompt that earlier requests had written (R entries).

    Whether blocks are looked up as a prefix or one by one is all the same here: of a path that was
    written before, so was its head. The definition's weight and window do not matter.
    """
    steps = walk(prompts, definition)
    ideal = np.zeros(len(steps.leaf), dtype=np.int32)
    written = np.zeros(len(prompts.block_parent), dtype=np.bool_)
    _climb(prompts.block_parent, steps.leaf, steps.length, written, ideal)
    return np.minimum(ideal, steps.look)


def ideal_rate(
    prompts: PromptPaths, definition: HitDefinition, blocks: NDArray[np.int32] | None = None
) -> float:
    """The hit rate (0–1) of an infinite cache, without drawing the curve that leads there.

    `blocks` may be given where they are known: the `ideal_blocks` of a definition that differs in
    weight and window alone.
    """
    if blocks is None:
        blocks = ideal_blocks(prompts, definition)
    hits = blocks[first_counted(prompts, definition) :].astype(np.int64)
    if definition.weight == "token":
        # A partial last block holds fewer tokens than a block.
        inputs = prompts.input_tokens[len(prompts.leaf) - len(hits) :]
        hits = np.minimum(hits * prompts.block_size, inputs)
    elif definition.weight == "request":
        hits = np.minimum(hits, 1)
    total = total_weight(prompts, definition)
    return int(hits.sum()) / total if total else 0.0


@kernel
def _climb(
    block_parent: NDArray[np.int32],
    leaf: NDArray[np.int32],
    length: NDArray[np.int32],
    written: NDArray[np.bool_],
    ideal: NDArray[np.int32],
) -> None:
    """Climb each path from its end to the first block that was written before.

    So the work is one step a block of the trie, whatever was reused.
    """
    for request in range(len(leaf)):
        block, depth = leaf[request], length[request]
        while depth > 0 and not written[block]:
            written[block] = True
            block = block_parent[block]
            depth -= 1
        ideal[request] = depth
