"""Conversations of two turns whose first answer is long: what a hybrid model keeps of it decides.

By vLLM's default, a window is kept before the end of each prompt, so the second turn hits the first
prompt alone; with another retention interval it hits the answer, too.
"""

from __future__ import annotations

from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import Request
from tests.small_traces import built, prompts
from tests.tuning.examples import BLOCK

GROUPS = "sliding/16/64/1+full/16/0/1@0"
PROMPT, ANSWER = 4, 16  # blocks
BLOCK_BYTES = 2**20
CONVERSATIONS = 300
EVERY_S, PAUSE = 2.0, 10  # between turns, and conversations between two turns of one


def turn(conversation: int, number: int, at: int) -> Request:
    """Return the first or the second turn of a conversation, the `at`th request of the trace."""
    blocks = PROMPT + number * (ANSWER + 1)
    return Request(
        input_tokens=blocks * BLOCK,
        output_tokens=1 if number else ANSWER * BLOCK + 1,
        arrival_s=at * EVERY_S,
        hash_ids=[conversation * 1_000 + depth for depth in range(blocks)],
        chat_id=2 * conversation + number,
        parent_chat_id=2 * conversation if number else -1,
    )


def turns_of(conversations: int = CONVERSATIONS) -> list[Request]:
    """Return the first turn of each conversation and, after PAUSE of others, its second."""
    first = [(2 * each, each, 0) for each in range(conversations)]
    second = [(2 * (each + PAUSE) + 1, each, 1) for each in range(conversations)]
    ordered = sorted([*first, *second])
    return [turn(who, number, at) for at, (_, who, number) in enumerate(ordered)]


def answered() -> Prompts:
    """Return all of them as replays walk them."""
    return prompts(built(turns_of(), BLOCK))
