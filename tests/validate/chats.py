"""A small trace of chats with short answers: turns carry the output of the one before."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

BLOCK = 16


def write_chats(
    path: Path,
    requests: int,
    *,
    seed: int = 0,
    gap_s: float = 0.3,
    alive: int = 12,
    longest_output: int = 40,
) -> Path:
    """Write a bailian trace: shared heads, turns, and outputs of 1 to so many tokens.

    A turn goes on with one of the `alive` chats that went on last: the more, the longer the waits.
    """
    rng = np.random.default_rng(seed)
    heads = [[10 * (head + 1) + at for at in range(3 * head)] for head in range(3)]
    chats: list[tuple[int, list[int], int, int, int]] = []  # id, blocks, tokens, turn, head
    lines, fresh, at_s = [], 1000, 0.0
    for number in range(requests):
        at_s += float(rng.exponential(gap_s))
        if not chats or rng.random() < 0.35:
            head = heads[int(rng.integers(3))]
            before, history, parent, turn = head, len(head) * BLOCK, -1, 1
        else:
            place = int(rng.integers(max(0, len(chats) - alive), len(chats)))
            parent, before, history, turn, _ = chats.pop(place)
            turn += 1
        prompt = history + int(rng.integers(5, 120))
        output = int(rng.integers(1, longest_output + 1))
        kept = before[: history // BLOCK]  # the last block may have been partial: it is new
        blocks = kept + list(range(fresh, fresh + -(-prompt // BLOCK) - len(kept)))
        fresh += 1000
        after = blocks[: prompt // BLOCK]
        total = prompt + output
        after = after + list(range(fresh, fresh + -(-total // BLOCK) - len(after)))
        fresh += 1000
        lines.append(
            {
                "chat_id": number,
                "parent_chat_id": parent,
                "timestamp": round(at_s, 3),
                "input_length": prompt,
                "output_length": output,
                "type": "text",
                "turn": turn,
                "hash_ids": blocks,
            }
        )
        if total < 700:
            chats.append((number, after, total, turn, 0))
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path
