"""Time replays of generated chats of more and more accesses.

Arguments: LARGEST POLICY... Prints for each power of ten from 100,000 to LARGEST the accesses, the
CPU seconds that all replays share, and those of each policy's replay. The chats are those of
`benchmarks.generate`, built in memory.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.generate import BLOCK_TOKENS, SYSTEM_PROMPTS, plan
from kvscope.core.jit import kernel
from kvscope.learning.offline.learners import tables_for
from kvscope.policies.registry import by_name
from kvscope.replay.replay import replay, touch_history
from kvscope.replay.traffic import Traffic, next_prompts

SMALLEST = 100_000
ACCESSES_PER_REQUEST = 30
SYSTEM_BLOCKS = 4
SHARE = 0.1
PASSES = 2


def chats(requests: int) -> Traffic:
    """Return the traffic of `requests` turns; a prompt and answer become known in the next turn."""
    turns = plan(requests, seed=0)
    new_chat = np.ones(int(turns.chat.max()) + 1, dtype=np.int64)
    tokens = new_chat * SYSTEM_BLOCKS * BLOCK_TOKENS
    heads = SYSTEM_BLOCKS * SYSTEM_PROMPTS
    trie = np.zeros(
        1 + heads + int((turns.prompt_tokens + turns.output_tokens).sum()) // BLOCK_TOKENS,
        dtype=np.int32,
    )
    for head in range(SYSTEM_PROMPTS):
        first = 1 + head * SYSTEM_BLOCKS
        trie[first + 1 : first + SYSTEM_BLOCKS] = np.arange(first, first + SYSTEM_BLOCKS - 1)
    tips = (1 + turns.system) * SYSTEM_BLOCKS
    before = new_chat * -1
    leaf, length, anonymous, parent = np.zeros((4, requests), dtype=np.int32)
    inputs = np.zeros(requests, dtype=np.int64)
    used = grow(
        trie, heads + 1, turns.chat, turns.prompt_tokens, turns.output_tokens, tokens, tips,
        before, leaf, length, anonymous, parent, inputs,
    )  # fmt: skip
    return Traffic(
        block_size=BLOCK_TOKENS,
        block_parent=trie[:used],
        leaf=leaf,
        length=length,
        look=np.minimum(length, (inputs - 1) // BLOCK_TOKENS).astype(np.int32),
        anonymous=anonymous,
        arrival_s=turns.time_s,
        input_tokens=inputs.astype(np.int32),
        history_tokens=inputs + turns.output_tokens,
        category=np.zeros(requests, dtype=np.int32),
        parent=parent,
        next_prompt_tokens=next_prompts(
            parent, inputs.astype(np.int32), inputs + turns.output_tokens
        ),
    )


Longs = NDArray[np.int64]
Ints = NDArray[np.int32]


@kernel
def grow(
    trie: Ints,
    used: int,
    chat_of: Longs,
    prompt: Longs,
    output: Longs,
    tokens: Longs,
    tips: Longs,
    before: Longs,
    leaf: Ints,
    length: Ints,
    anonymous: Ints,
    parent: Ints,
    inputs: Longs,
) -> int:
    """Append the blocks of every turn to the trie; return the number of blocks."""
    for request in range(len(chat_of)):
        chat = chat_of[request]
        depth = 0 if before[chat] < 0 else length[before[chat]]
        if before[chat] < 0:
            depth = SYSTEM_BLOCKS
        tokens[chat] += prompt[request]
        tip = tips[chat]
        while depth < tokens[chat] // BLOCK_TOKENS:
            trie[used] = tip
            tip = used
            used += 1
            depth += 1
        inputs[request] = tokens[chat]
        leaf[request], length[request], parent[request] = tip, depth, before[chat]
        tokens[chat] += output[request]
        anonymous[request] = (tokens[chat] - 1) // BLOCK_TOKENS - depth
        tips[chat], before[chat] = tip, request
    return used


def measured(largest: int, policies: list[str]) -> Iterator[dict[str, Any]]:
    """Yield one document per size."""
    accesses = SMALLEST
    while accesses <= largest:
        work = chats(accesses // ACCESSES_PER_REQUEST)
        touch_history(work)
        started = time.process_time()
        past = touch_history(work)
        shared_s = time.process_time() - started
        capacity = int(len(work.block_parent) * SHARE)
        cpu_s = {}
        for name in policies:
            policy = by_name(name)
            tables = tables_for(work, policy)
            seconds = []
            for _ in range(PASSES):
                started = time.process_time()
                replay(work, policy(), capacity, history=past, tables=tables)
                seconds.append(time.process_time() - started)
            cpu_s[name] = min(seconds)
        yield {
            "accesses": int((work.length + work.anonymous).sum(dtype=np.int64)),
            "shared_s": shared_s,
            "cpu_s": cpu_s,
        }
        accesses *= 10


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("largest", type=int)
    parser.add_argument("policies", nargs="+")
    options = parser.parse_args()
    print(json.dumps(list(measured(options.largest, options.policies))))


if __name__ == "__main__":
    main()
