"""Chats whose answers are longer than their prompts: what a hybrid model hits of them differs."""

from __future__ import annotations

import json
from pathlib import Path

BLOCK, PROMPT, ANSWER = 64, 10, 16  # tokens, and blocks that a turn and its answer add


def write_answers(folder: Path) -> Path:
    """Write 150 chats of three turns into a file of `folder`; return its path."""
    requests = []
    for chat in range(150):
        first = chat * 3 * (PROMPT + ANSWER)
        for turn in range(3):
            blocks = turn * (PROMPT + ANSWER) + PROMPT
            line = {
                "chat_id": 3 * chat + turn,
                "parent_chat_id": 3 * chat + turn - 1 if turn else -1,
                "timestamp": 10.0 * chat + 200.0 * turn,
                "input_length": blocks * BLOCK,
                "output_length": ANSWER * BLOCK + 1,
                "type": "text",
                "turn": turn + 1,
                "hash_ids": list(range(first, first + blocks)),
            }
            requests.append(line)
    requests.sort(key=lambda line: line["timestamp"])
    path = folder / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, requests)))
    return path
