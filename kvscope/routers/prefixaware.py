"""The `prefixaware` router of the vLLM production stack."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import MemorySizes, Prompt, Router, View, draw, new_dice

Uint8s: TypeAlias = NDArray[np.uint8]

_CHUNK = 128  # characters
_PASSED, _ENDED = 1, 2  # prompts sent to a replica have a block, or end with it in a short chunk
_OLDEST, _NEXT = 0, 1  # entries of `window`


class Sent(NamedTuple):
    """The prompts sent to each replica, and the requests of the recent past.

    `had` (blocks x replicas) has two flags: 1 if whole chunks of a prompt sent to the replica reach
    into or beyond the block, 2 if such a prompt ends in the block with a chunk that is not whole.
    `arrivals_s` and `replicas` have the time and the replica of every request so far. `window`: the
    first recent request, and the number of the next one; `recent` counts the requests between these
    by replica. `dice` is the state of random numbers.
    """

    had: Uint8s
    arrivals_s: Float64s
    replicas: Int32s
    window: Int64s
    recent: Int64s
    dice: Int64s


class Prefixaware(Router):
    """Send a prompt to a random one of the replicas that got its longest prefix; forget no prompt.

    Prefixes are compared in chunks of 128 characters, the last one shorter. If fewer than
    `prefix_min_match_length` characters match, the replica with the fewest requests of the last
    `request_stats_window_s` gets it; with the default of 0, load plays no part.

    A token is `characters_per_token` characters. Prompts that differ within a block of the trace
    count as different from its first character on.
    Source: vllm-project/production-stack, vllm-stack-0.1.12, src/vllm_router/prefix/hashtrie.py and
    routers/routing_logic.py (PrefixAwareRouter), stats/request_stats.py, parsers/parser.py.
    """

    name = "production-stack-prefixaware@0.1.12"
    aliases = ("production-stack-prefixaware", "prefixaware")
    summary = "longest prefix sent before, however busy"
    source = "vLLM production stack 0.1.12, prefixaware"
    sees = "history"
    needs = "text"
    draws = True
    parameters = (
        Parameter(
            "prefix_min_match_length",
            0,
            "characters that have to match",
            search=(0, 1024, 8192),
        ),
        Parameter("request_stats_window_s", 60, "seconds over which requests count as load"),
        Parameter("characters_per_token", 4, "characters of a token", low=0.1, high=1000),
    )

    def memory(self, sizes: MemorySizes, seed: int) -> Sent:
        """Return a memory without requests."""
        return Sent(
            had=np.zeros((sizes.blocks, sizes.replicas), dtype=np.uint8),
            arrivals_s=np.zeros(sizes.requests),
            replicas=np.zeros(sizes.requests, dtype=np.int32),
            window=np.zeros(2, dtype=np.int64),
            recent=np.zeros(sizes.replicas, dtype=np.int64),
            dice=new_dice(seed),
        )

    def among(self, memory: Sent, replicas: int, seed: int) -> Sent:
        """Forget the prompts of replicas that left."""
        memory.had[:, replicas:] = 0
        return memory

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Sent, p: Float64s) -> int:
        """Return a replica that had the longest prefix, or the one with the fewest requests."""
        characters = int(prompt.input_tokens * p[2] + 1e-6)
        width = view.block_size * p[2]  # characters of a block
        chunks = characters // _CHUNK
        while _blocks_of(chunks, width) > prompt.blocks:
            chunks -= 1  # in a tail that is in no block, so matches nothing
        ends_on_path = prompt.blocks > 0 and prompt.input_tokens <= prompt.blocks * view.block_size
        has_short = ends_on_path and characters % _CHUNK > 0
        matching = _matching_chunks(memory.had, path, chunks, width)
        depth, flag = _blocks_of(matching, width), _PASSED
        if (
            has_short
            and matching == chunks
            and _having(memory.had, path[prompt.blocks - 1], _ENDED) > 0
        ):
            matching, depth, flag = matching + 1, prompt.blocks, _ENDED
        if matching * _CHUNK < p[0]:
            choice = _fewest_recent(memory, view, prompt.now_s - p[1])
        elif matching == 0:
            choice = draw(memory.dice, view.replicas)
        else:
            block = path[depth - 1]
            skipped = draw(memory.dice, _having(memory.had, block, flag))
            choice = _one_having(memory.had, block, flag, skipped)
        depth = _blocks_of(chunks, width)
        while depth and not memory.had[path[depth - 1], choice] & _PASSED:
            memory.had[path[depth - 1], choice] |= _PASSED
            depth -= 1
        if has_short:
            memory.had[path[prompt.blocks - 1], choice] |= _ENDED
        _count_arrival(memory, prompt.now_s, choice)
        return choice

    def flags(self) -> tuple[str, ...]:
        """Return the options of `vllm-router`."""
        length, window_s, _ = self.settings()
        return (
            "--routing-logic prefixaware",
            f"--prefix-min-match-length {length:.10g}",
            f"--request-stats-window {window_s:.10g}",
        )


def _blocks_of(chunks: int, block_characters: float) -> int:
    """Return the number of blocks that `chunks` chunks need, the last one perhaps in part."""
    return int(np.ceil(chunks * _CHUNK / block_characters - 1e-9))


def _matching_chunks(had: Uint8s, path: Int32s, chunks: int, width: float) -> int:
    """Return how many of a prompt's leading `chunks` were sent to any replica.

    `had` is that of `Sent`; `width` is the number of characters in a block.
    """
    low, high = 0, chunks
    while low < high:
        middle = (low + high + 1) // 2
        if _having(had, path[_blocks_of(middle, width) - 1], _PASSED) > 0:
            low = middle
        else:
            high = middle - 1
    return low


def _having(had: Uint8s, block: int, flag: int) -> int:
    """Return how many replicas have this flag of `Sent.had` for a block."""
    count = 0
    for replica in range(had.shape[1]):
        count += int(had[block, replica] & flag > 0)
    return count


def _one_having(had: Uint8s, block: int, flag: int, skipped: int) -> int:
    """Return the replica number `skipped`, from 0, among those with this flag for a block."""
    for replica in range(had.shape[1]):
        if had[block, replica] & flag > 0:
            if skipped == 0:
                return replica
            skipped -= 1
    return 0


def _count_arrival(memory: Sent, now_s: float, replica: int) -> None:
    number = memory.window[_NEXT]
    memory.arrivals_s[number] = now_s
    memory.replicas[number] = replica
    memory.recent[replica] += 1
    memory.window[_NEXT] = number + 1


def _fewest_recent(memory: Sent, view: View, since_s: float) -> int:
    """Return the first replica never sent a request, else that with fewest since `since_s`."""
    oldest = memory.window[_OLDEST]
    while oldest < memory.window[_NEXT] and memory.arrivals_s[oldest] < since_s:
        memory.recent[memory.replicas[oldest]] -= 1
        oldest += 1
    memory.window[_OLDEST] = oldest
    fewest = 0
    for replica in range(view.replicas):
        if view.own.processed[replica] == 0:
            return replica
        if memory.recent[replica] < memory.recent[fewest]:
            fewest = replica
    return fewest
