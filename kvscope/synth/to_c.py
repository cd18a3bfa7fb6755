"""Consumer traffic: people chatting, asking about files, images and search results."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from kvscope.synth.base import BAILIAN_BLOCK_TOKENS, Ids, Record, Thread
from kvscope.synth.counts import Counts, Lognormal
from kvscope.synth.timeline import arrivals, in_order
from kvscope.synth.to_c_kinds import KINDS, Kind, bucket


@dataclass(frozen=True)
class ToC:
    """People using a chat product: half of the requests continue a conversation.
    """

    name: ClassVar[str] = "to-c"

    conversation_rate_per_s: float = 0.15
    daily_swing: float = 0.3
    lead_in_s: float = 86_400.0
    kinds: tuple[Kind, ...] = KINDS
    next_turn: tuple[float, ...] = (0.475, 0.39, 0.765, 0.76, 0.3)
    engaged_share: float = 0.004
    engaged_turns: Counts = Lognormal(38, 0.6, 232)
    max_turns: int = 232
    new_user_share: float = 0.72
    recent_users: int = 300
    personal_prompt_share: float = 0.5
    personal_prompt_tokens: Counts = Lognormal(320, 0.6)
    product_prompt_tokens: int = 64
    block_size: int = BAILIAN_BLOCK_TOKENS

    def generate(self, *, requests: int, seed: int) -> Iterator[Record]:
        """Yield `requests` records; memory grows with live conversations and with users."""
        rng = np.random.default_rng(seed)
        ids = Ids()
        people = _People(self, ids, rng)
        upper = np.cumsum([kind.share for kind in self.kinds])

        times = arrivals(
            rng,
            self.conversation_rate_per_s,
            start_s=-self.lead_in_s,
            daily_swing=self.daily_swing,
        )

        def births() -> Iterator[tuple[float, _Chat]]:
            for time_s in times:
                kind = self.kinds[int(np.searchsorted(upper, rng.random() * upper[-1]))]
                yield time_s, _Chat(people.open(kind), kind, self._draw_turns(kind, rng))

        def serve(time_s: float, chat: _Chat) -> tuple[Record | None, list[tuple[float, _Chat]]]:
            record = chat.answer(ids, time_s, rng)
            if chat.thread.turn >= chat.turns:
                return record, []
            gap_s = rng.exponential(chat.kind.gap_mean_s[bucket(chat.thread.turn)])
            return record, [(time_s + gap_s, chat)]

        return in_order(births(), serve, requests)

    def _draw_turns(self, kind: Kind, rng: Generator) -> int:
        """Turns that a new conversation will take, unless the trace ends first."""
        if rng.random() < self.engaged_share:
            return min(self.max_turns, self.engaged_turns.draw(rng))
        turn, go_on = 1, self.next_turn[0] * kind.second_turn_scale
        while turn < self.max_turns and rng.random() < go_on:
            turn += 1
            go_on = self.next_turn[min(turn, len(self.next_turn)) - 1]
        return turn


@dataclass(slots=True)
class _Chat:
    """A conversation under way and how many turns its person will take."""

    thread: Thread
    kind: Kind
    turns: int

    def answer(self, ids: Ids, time_s: float, rng: Generator) -> Record | None:
        """The next turn; None before the trace begins."""
        turn = self.thread.turn + 1
        closing = turn > 1 and turn == self.turns
        law = self.kind.closing_tokens if closing else self.kind.prompt_tokens[bucket(turn)]
        prompt, output = law.draw(rng), self.kind.output_tokens.draw(rng)
        return self.thread.take_turn(ids, time_s, prompt, output)


class _People:
    """Users and the system prompts in front of their conversations.

    Every conversation comes from a new user or, evenly, from one seen before. So the skew
    between users does not depend on how long the trace is, as it would with a fixed crowd.
    """

    def __init__(self, profile: ToC, ids: Ids, rng: Generator) -> None:
        self._profile, self._ids, self._rng = profile, ids, rng
        self._prompt_of_user: list[tuple[range, int]] = []
        self._product_prompts = {
            kind.type: ids.blocks(profile.product_prompt_tokens // profile.block_size)
            for kind in profile.kinds
        }

    def open(self, kind: Kind) -> Thread:
        """A new conversation: its user, and the system prompt that it starts with."""
        profile, rng = self._profile, self._rng
        user_id = len(self._prompt_of_user)
        if user_id == 0 or rng.random() < profile.new_user_share:
            self._prompt_of_user.append(self._new_prompt())
        else:
            user_id = int(rng.integers(max(0, user_id - profile.recent_users), user_id))
        blocks, tokens = self._prompt_of_user[user_id]
        if rng.random() < kind.product_prompt_share:
            blocks, tokens = self._product_prompts[kind.type], profile.product_prompt_tokens
        return Thread(user_id, kind.type, profile.block_size, list(blocks), tokens)

    def _new_prompt(self) -> tuple[range, int]:
        """A new user's own system prompt: its full blocks and its tokens, often none."""
        profile, rng = self._profile, self._rng
        if rng.random() >= profile.personal_prompt_share:
            return range(0), 0
        tokens = profile.personal_prompt_tokens.draw(rng)
        return self._ids.blocks(tokens // profile.block_size), tokens
