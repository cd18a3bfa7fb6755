"""Consumer traffic: chats, and questions about files, images and search results."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct
from numpy.random import Generator

from kvscope.synth.base import (
    BAILIAN_BLOCK_TOKENS,
    Counts,
    Ids,
    Profile,
    Record,
    Skewed,
    Thread,
    arrivals,
    in_order,
)

FIRST_TURN_OF_BUCKET = (1, 2, 3, 4, 7)


def bucket(turn: int) -> int:
    """Return the index of the turn bucket (1, 2, 3, 4-6, 7+) of a turn, which counts from 1."""
    return sum(turn >= first for first in FIRST_TURN_OF_BUCKET) - 1


class Kind(Struct, frozen=True):
    """A request type: its share of conversations, the gaps between turns, and the tokens of a turn.

    Tuples have an entry per turn bucket (1, 2, 3, 4-6, 7+): `gap_mean_s` is the mean time from a
    turn in the bucket to the next turn, `prompt_tokens` the tokens that a turn in it adds. The last
    of several turns adds `closing_tokens` instead. `second_turn_scale` multiplies the probability
    of a second turn. `product_prompt_share` is the share of conversations that begin with the
    product's own system prompt.
    """

    type: str
    share: float
    gap_mean_s: Sequence[float]
    prompt_tokens: Sequence[Counts]
    closing_tokens: Counts
    output_tokens: Counts
    second_turn_scale: float = 1.0
    product_prompt_share: float = 0.0


def gaps(scale: float) -> tuple[float, ...]:
    """Return the mean time (s) to the next turn by bucket, `scale` times that of a text chat."""
    return tuple(scale * mean_s for mean_s in (130.0, 145.0, 165.0, 200.0, 490.0))


def prompts(first: float, follow_up: float) -> tuple[Counts, ...]:
    """Return new tokens by bucket: mean `first` (turn 1), `follow_up` (2-6), 340 (small talk)."""
    middle = Skewed(follow_up, 1.0)
    return (Skewed(first, 0.6), middle, middle, middle, Skewed(340, 0.8))


# The order of the gaps is as published (see ToC): multimodal < text < search < file.
KINDS = (
    Kind(
        "text", 0.775, gaps(1.0), prompts(450, 500), Skewed(3_750, 0.9), Skewed(330, 0.7),
        product_prompt_share=0.15,
    ),
    Kind("search", 0.08, gaps(1.25), prompts(840, 560), Skewed(4_000, 0.9), Skewed(380, 0.7)),
    Kind("file", 0.06, gaps(1.5), prompts(1_400, 640), Skewed(4_500, 0.9), Skewed(380, 0.7)),
    Kind(
        "multimodal", 0.07, gaps(0.6), prompts(560, 350), Skewed(2_500, 0.9),
        Skewed(200, 0.7), second_turn_scale=0.5, product_prompt_share=0.15,
    ),
    Kind("api", 0.015, gaps(0.5), prompts(650, 440), Skewed(3_000, 0.9), Skewed(250, 0.7)),
)  # fmt: skip


class _Chat(Struct):
    """An open conversation that will have `turns` turns."""

    thread: Thread
    kind: Kind
    turns: int

    def answer(self, ids: Ids, time_s: float, rng: Generator) -> Record | None:
        """Return the next turn's record, None before time 0."""
        turn = self.thread.turn + 1
        closing = turn > 1 and turn == self.turns
        law = self.kind.closing_tokens if closing else self.kind.prompt_tokens[bucket(turn)]
        prompt, output = law.draw(rng), self.kind.output_tokens.draw(rng)
        return self.thread.take_turn(ids, time_s, prompt, output)


@dataclass(frozen=True)
class ToC(Profile):
    """People using a chat product: half of the requests continue a conversation.

    The trace is a window of traffic that began `lead_in_s` earlier: some parents lie before it. The
    published figures cannot all hold at once: 47-51 % of requests with a parent, but probabilities
    of a next turn of 0.5 after turn 1 and 0.8 later, which imply 71 % with a parent. The profile
    meets the shares, the turns and 0.46 after turn 1 (54 % single-turn conversations); 77 % of
    reuse from a tenth of the blocks needs few conversations that last for hours: `engaged_share` of
    all, with `engaged_turns`. These come at even intervals and vary little in turns, or chance
    would decide every figure. A share `new_user_share` of conversations has a new user, the others
    one of the last `recent_users`; a share `personal_prompt_share` of users has a system prompt.

    sample_traces/README.md compares this profile with the published figures.

    Source: KVCache Cache in the Wild (ATC'25), Trace A, sections 3.2-3.5.
    """

    name = "to-c"

    conversation_rate_per_s: float = 0.15
    daily_swing: float = 0.3
    lead_in_s: float = 86_400.0
    kinds: tuple[Kind, ...] = KINDS
    # Probability of a further turn after turns 1, 2, 3, 4, and after any later one.
    next_turn: tuple[float, ...] = (0.475, 0.39, 0.765, 0.76, 0.3)
    # Conversations that do not follow `next_turn`: few, long, and most of the reuse.
    engaged_share: float = 0.005
    engaged_turns: Counts = Skewed(37, 0.35, 232)
    max_turns: int = 232
    new_user_share: float = 0.72
    recent_users: int = 300
    personal_prompt_share: float = 0.5
    personal_prompt_tokens: Counts = Skewed(320, 0.6)
    product_prompt_tokens: int = 64
    block_size: int = BAILIAN_BLOCK_TOKENS

    def generate(self, *, requests: int, seed: int) -> Iterator[Record]:
        """Yield `requests` records; memory grows with open conversations and with users."""
        rng = np.random.default_rng(seed)
        ids = Ids()
        product_prompts = {
            kind.type: ids.blocks(self.product_prompt_tokens // self.block_size)
            for kind in self.kinds
        }
        # The system prompt of each user: its full blocks and its tokens, often none.
        users: list[tuple[range, int]] = []
        upper = np.cumsum([kind.share for kind in self.kinds])
        times = arrivals(
            rng, self.conversation_rate_per_s, start_s=-self.lead_in_s, daily_swing=self.daily_swing
        )

        def start(kind: Kind) -> Thread:
            """Return a conversation of a new user, or of a recent user drawn uniformly.

            With a fixed set of users, the skew between users would depend on the trace's length.
            """
            user_id = len(users)
            if user_id == 0 or rng.random() < self.new_user_share:
                has_prompt = rng.random() < self.personal_prompt_share
                tokens = self.personal_prompt_tokens.draw(rng) if has_prompt else 0
                users.append((ids.blocks(tokens // self.block_size), tokens))
            else:
                user_id = int(rng.integers(max(0, user_id - self.recent_users), user_id))
            blocks, tokens = users[user_id]
            if rng.random() < kind.product_prompt_share:
                blocks, tokens = product_prompts[kind.type], self.product_prompt_tokens
            return Thread(user_id, kind.type, self.block_size, list(blocks), tokens)

        def births() -> Iterator[tuple[float, _Chat]]:
            for number, time_s in enumerate(times):
                kind = self.kinds[int(np.searchsorted(upper, rng.random() * upper[-1]))]
                turns = self._draw_turns(number, kind, rng)
                yield time_s, _Chat(start(kind), kind, turns)

        def serve(time_s: float, chat: _Chat) -> tuple[Record | None, list[tuple[float, _Chat]]]:
            record = chat.answer(ids, time_s, rng)
            if chat.thread.turn >= chat.turns:
                return record, []
            gap_s = rng.exponential(chat.kind.gap_mean_s[bucket(chat.thread.turn)])
            return record, [(time_s + gap_s, chat)]

        return in_order(births(), serve, requests)

    def _draw_turns(self, number: int, kind: Kind, rng: Generator) -> int:
        """Return the turns of conversation `number`, which spreads the engaged ones evenly."""
        # Evenly spread, not drawn: see the class.
        if int((number + 1) * self.engaged_share) > int(number * self.engaged_share):
            return min(self.max_turns, self.engaged_turns.draw(rng))
        turn, probability = 1, self.next_turn[0] * kind.second_turn_scale
        while turn < self.max_turns and rng.random() < probability:
            turn += 1
            probability = self.next_turn[min(turn, len(self.next_turn)) - 1]
        return turn
