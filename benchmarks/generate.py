"""Generate the benchmarks' trace: `python -m benchmarks.generate PATH --requests 265002`.

Chats in the Qwen-Bailian format, 16-token blocks: one of a few dozen system prompts, then
turns that the next turn repeats. About 24 accesses per request, half of them reuse.
It does not use kvscope.synth, whose profiles may change: figures stay comparable for years.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

BLOCK_TOKENS = 16
REQUESTS_PER_S = 3.0
NEXT_TURN = 0.5
GAP_MEANS_S = (150.0, 3000.0)
LONG_GAPS = 0.2
PROMPT_TOKENS = (86.0, 0.8)
OUTPUT_TOKENS = (76.0, 0.7)
SYSTEM_PROMPTS = 40
SYSTEM_BLOCKS = (1, 7)
TYPES = ("text", "search", "file", "api")


@dataclass(slots=True)
class Chat:
    """An open conversation: the tokens and the full blocks that its next turn starts with."""

    type: str
    tokens: int
    blocks: list[int]
    turn: int = 0
    last_id: int = -1


@dataclass(slots=True)
class BlockIds:
    """Block ids in order of creation."""

    used: int = 0

    def take(self, count: int) -> range:
        """Return the next `count` ids."""
        self.used += count
        return range(self.used - count, self.used)


@dataclass(slots=True)
class Plan:
    """Time, conversation and lengths in tokens of every turn, one entry per request."""

    time_s: NDArray[np.float64]
    chat: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    last_turn: NDArray[np.bool_]
    system: NDArray[np.int64] = field(repr=False)


def plan(requests: int, seed: int, requests_per_s: float = REQUESTS_PER_S) -> Plan:
    """Sample the first `requests` turns of conversations that start at a constant rate."""
    rng = np.random.default_rng(seed)
    chats = int(requests * (1 - NEXT_TURN) * 1.05) + 100
    births = np.cumsum(rng.exponential(1 / (requests_per_s * (1 - NEXT_TURN)), chats))
    turns = rng.geometric(1 - NEXT_TURN, chats)
    chat = np.repeat(np.arange(chats), turns)
    first = np.cumsum(turns) - turns
    gaps = rng.exponential(np.where(rng.random(len(chat)) < LONG_GAPS, *GAP_MEANS_S[::-1]))
    gaps[first] = 0.0
    since = np.cumsum(gaps)
    time_s = births[chat] + since - np.repeat(since[first], turns)
    last_turn = np.zeros(len(chat), dtype=np.bool_)
    last_turn[first + turns - 1] = True
    order = np.argsort(time_s, kind="stable")[:requests]
    popularity = 1 / np.arange(1, SYSTEM_PROMPTS + 1)
    return Plan(
        time_s[order] - time_s[order[0]],
        chat[order],
        _lognormal(rng, PROMPT_TOKENS, requests),
        _lognormal(rng, OUTPUT_TOKENS, requests),
        last_turn[order],
        rng.choice(SYSTEM_PROMPTS, chats, p=popularity / popularity.sum()),
    )


def _lognormal(rng: np.random.Generator, law: tuple[float, float], count: int) -> NDArray[np.int64]:
    median, spread = law
    lengths = rng.lognormal(np.log(median), spread, count)
    return np.maximum(lengths.astype(np.int64), 1)


def records(
    requests: int, seed: int, requests_per_s: float = REQUESTS_PER_S
) -> Iterator[dict[str, Any]]:
    """Yield one record per request, in order of arrival."""
    planned = plan(requests, seed, requests_per_s)
    ids = BlockIds()
    low, high = SYSTEM_BLOCKS
    heads = [list(ids.take(low + which % high)) for which in range(SYSTEM_PROMPTS)]
    live: dict[int, Chat] = {}
    rows = zip(
        planned.time_s.round(3).tolist(),
        planned.chat.tolist(),
        planned.prompt_tokens.tolist(),
        planned.output_tokens.tolist(),
        planned.last_turn.tolist(),
        strict=True,
    )
    for request, (time_s, which, prompt, output, is_last) in enumerate(rows):
        chat = live.pop(which, None)
        if chat is None:
            head = heads[planned.system[which]]
            chat = Chat(TYPES[which % len(TYPES)], len(head) * BLOCK_TOKENS, list(head))
        yield _turn(chat, ids, request, time_s, prompt, output)
        if not is_last:
            live[which] = chat


def _turn(
    chat: Chat, ids: BlockIds, request: int, time_s: float, prompt: int, output: int
) -> dict[str, Any]:
    """Return the record of a turn; blocks that its answer fills get their ids in the next turn."""
    chat.tokens += prompt
    chat.turn += 1
    chat.blocks.extend(ids.take(chat.tokens // BLOCK_TOKENS - len(chat.blocks)))
    padded = list(ids.take(1)) if chat.tokens % BLOCK_TOKENS else []
    record = {
        "chat_id": request,
        "parent_chat_id": chat.last_id,
        "timestamp": time_s,
        "input_length": chat.tokens,
        "output_length": output,
        "type": chat.type,
        "turn": chat.turn,
        "hash_ids": chat.blocks + padded,
    }
    chat.tokens += output
    chat.last_id = request
    return record


def write(path: Path, requests: int, seed: int = 0, requests_per_s: float = REQUESTS_PER_S) -> None:
    """Write the trace to `path`; the file appears only when it is complete."""
    part = path.with_name(path.name + ".part")
    encode = msgspec.json.Encoder().encode
    with part.open("wb", buffering=1 << 20) as file:
        for record in records(requests, seed, requests_per_s):
            file.write(encode(record) + b"\n")
    part.replace(path)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--requests", type=int, default=265_002)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests-per-s", type=float, default=REQUESTS_PER_S)
    options = parser.parse_args()
    write(options.path, options.requests, options.seed, options.requests_per_s)


if __name__ == "__main__":
    main()
