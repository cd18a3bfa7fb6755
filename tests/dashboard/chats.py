"""A small trace in which there is something to see on every page."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path


def write_chats(path: Path) -> Path:
    """600 requests in conversations of three turns, all with the same two blocks first."""
    rows: list[tuple[float, str]] = []
    ids = count(100)
    for chat in range(200):
        hashes = [1, 2]
        for turn in range(3):
            hashes = [*hashes, next(ids), next(ids)]
            at, number = chat * 2.0 + turn * 37.0, chat * 3 + turn
            row = {
                "chat_id": number,
                "parent_chat_id": number - 1 if turn else -1,
                "timestamp": at,
                "input_length": 16 * len(hashes),
                "output_length": 8,
                "type": "text",
                "turn": turn + 1,
                "hash_ids": hashes,
            }
            rows.append((at, json.dumps(row)))
    path.write_text("".join(f"{text}\n" for _, text in sorted(rows)))
    return path
