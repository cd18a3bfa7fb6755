"""Random conversations that share no blocks: what the theorem on tail excess latency is about."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from kvscope.policies.base import ENDS
from kvscope.replay.traffic import Traffic, uncut
from tests.policies.traffics import CATEGORIES


@dataclass
class _Chat:
    """One conversation so far: its blocks, its last turn, and the history L after it."""

    blocks: list[int] = field(default_factory=list)
    last: int = -1
    history: int = 0


@st.composite
def conversations(draw: st.DrawFn, *, chats: int, turns: int, tokens: int) -> Traffic:
    """Return interleaved turns of conversations; one token per block, outputs carried.

    Every prompt repeats the whole history, of which all but the last sampled token has been cached.
    The last-token rule holds or not, turn by turn.
    """
    order = draw(st.lists(st.integers(0, chats - 1), min_size=1, max_size=turns))
    talks = [_Chat() for _ in range(chats)]
    block_parent = [0]
    rows: list[tuple[int, int, int, int, int, int]] = []
    added = np.full(len(order), ENDS, dtype=np.int64)
    parent = np.full(len(order), -1, dtype=np.int32)
    for at, number in enumerate(order):
        chat = talks[number]
        asked = draw(st.integers(int(chat.last < 0), tokens))
        if chat.last >= 0:
            added[chat.last] = asked
            parent[at] = chat.last
        prompt = chat.history + asked
        chat.last, chat.history = at, prompt + draw(st.integers(1, tokens))
        filled = chat.history - 1
        while len(chat.blocks) < filled:
            block_parent.append(chat.blocks[-1] if chat.blocks else 0)
            chat.blocks.append(len(block_parent) - 1)
        length = filled if number in order[at + 1 :] else prompt
        look = min(length, prompt - draw(st.integers(0, 1)))
        rows.append((chat.blocks[length - 1], length, look, filled - length, prompt, chat.history))
    leaf, lengths, looks, anonymous, prompts, histories = np.array(rows, dtype=np.int64).T
    return Traffic(
        block_size=1,
        block_parent=np.array(block_parent, dtype=np.int32),
        leaf=leaf.astype(np.int32),
        length=lengths.astype(np.int32),
        look=looks.astype(np.int32),
        anonymous=anonymous.astype(np.int32),
        arrival_s=np.arange(len(rows), dtype=np.float64),
        input_tokens=prompts.astype(np.int32),
        history_tokens=histories.copy(),
        category=np.array(order, dtype=np.int32) % CATEGORIES,
        parent=parent,
        next_prompt_tokens=added,
        cuts=uncut(len(leaf)),
    )
