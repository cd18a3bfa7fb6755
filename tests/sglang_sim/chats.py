"""Generated chats in tokens, for SGLang's prefix tree and for what simulates it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int64s
from kvscope.ingest.trie import Trie
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.policies.registry import by_name
from kvscope.replay.traffic import Traffic, uncut
from tests.sglang_sim.in_order import FINISH, START


class Priority(Lru):
    """SGLang's policy of this name, where no request states a priority: outputs leave first."""

    name = "priority"


def policy_of(name: str, values: dict[str, float]) -> Policy:
    """Return a policy that SGLang has."""
    return Priority() if name == Priority.name else by_name(name)(values)


class Chat(NamedTuple):
    """One request: the tokens of its prompt and of its outputs."""

    prompt: list[int]
    outputs: list[int]


def chats(
    requests: int, seed: int, *, longest: int = 300, going: int = 12, answer: int = 12
) -> list[Chat]:
    """Return requests of chats that share a head, go on with their outputs, and are edited.

    Now and then a chat repeats its last prompt, cuts it, or starts over from its middle. Outputs
    have up to `answer` tokens.
    """
    rng = np.random.default_rng(seed)
    head, live, made, fresh = list(range(1, 14)), [], [], 100

    def new(most: int) -> list[int]:
        nonlocal fresh
        fresh += most
        return list(range(fresh - int(rng.integers(1, most + 1)), fresh))

    while len(made) < requests:
        if live and rng.random() < 0.8:
            chat = live[-going:][rng.integers(min(going, len(live)))]
        else:
            chat = head[: int(rng.integers(0, len(head) + 1))]
            live.append(chat)
        kind = rng.random()
        if kind < 0.1 and len(chat) > 2:
            del chat[int(rng.integers(1, len(chat))) :]
        if kind < 0.75 or not chat:
            chat += new(40)
        outputs = new(answer)
        made.append(Chat(list(chat), outputs))
        if rng.random() < 0.8:
            chat += outputs
        if len(chat) > longest - 48 - answer:
            live.remove(chat)
    return made


def in_flight(requests: int, at_once: int) -> Int64s:
    """Return the order in which so many requests at once start and finish, the oldest first."""
    starts = 2 * np.arange(requests) + START
    order = np.concatenate((starts, starts - START + FINISH))
    times = np.concatenate((np.arange(requests), np.arange(requests) + at_once - 0.5))
    return order[np.argsort(times, kind="stable")].astype(np.int64)


def traffic_of(requests: Sequence[Chat], block_size: int) -> Traffic:
    """Return the traffic of requests in blocks of so many tokens, outputs included."""
    numbers: dict[tuple[int, ...], int] = {}
    paths = []
    for each in requests:
        tokens = each.prompt + each.outputs[:-1]
        whole = range(0, len(tokens) // block_size * block_size, block_size)
        blocks = (tuple(tokens[at : at + block_size]) for at in whole)
        paths.append([numbers.setdefault(block, len(numbers) + 1) for block in blocks])
    length = np.array([len(path) for path in paths], dtype=np.int32)
    starts = np.concatenate(([0], np.cumsum(length, dtype=np.int64)))
    trie = Trie()
    leaf = trie.intern(starts, np.concatenate(paths).astype(np.int64))
    prompt = np.array([len(each.prompt) for each in requests], dtype=np.int32)
    outputs = np.array([len(each.outputs) for each in requests], dtype=np.int64)
    nothing = np.zeros_like(length)
    return Traffic(
        block_size=block_size,
        block_parent=trie.parent,
        leaf=leaf,
        length=length,
        look=(prompt - 1) // block_size,
        anonymous=nothing,
        arrival_s=np.arange(len(length), dtype=np.float64),
        input_tokens=prompt,
        history_tokens=prompt + outputs,
        category=nothing,
        parent=nothing - 1,
        next_prompt_tokens=nothing.astype(np.int64) - 1,
        cuts=uncut(len(leaf)),
    )
