"""Traffic in which the conversations that continue and those that end swap roles half-way."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvscope.synth.base import Counts, Ids, Profile, Record, Skewed, Thread, arrivals, in_order


@dataclass(frozen=True)
class RegimeChange(Profile):
    """Chats and documents: up to `change_s` chats continue and documents end, then the reverse.

    A conversation is a document with `document_share`: it begins with a long prompt, a chat with a
    short one; what follows is short. Until `change_s` a chat's turn is followed by another one with
    `returning_share`, a document's with `leaving_share`; from then on it is the other way round,
    also for open conversations. So what a policy has learned of one kind is wrong until it learns
    again. Expected (ranges over eight seeds at 5,000 requests):

    | quantity | expected |
    |---|---|
    | requests with a next turn, before: chats / documents | 78-81 % / 8-11 % |
    | the same, after | 8-11 % / 78-81 % |
    | input tokens, mean | 6,300-7,000 |

    Source: no published traffic; a test for policies that learn, with rates of return as far
    apart as those of chats and single questions in KVCache Cache in the Wild (ATC'25), section 3.
    """

    name = "regime-change"

    change_s: float = 3_600.0
    conversation_rate_per_s: float = 0.18
    document_share: float = 0.4
    returning_share: float = 0.8
    leaving_share: float = 0.1
    gap_mean_s: float = 120.0
    chat_tokens: Counts = Skewed(600, 0.6, 2_000)
    document_tokens: Counts = Skewed(10_000, 0.5, 40_000)
    step_tokens: Counts = Skewed(250, 0.8, 4_000)
    output_tokens: Counts = Skewed(300, 0.7, 4_000)
    block_size: int = 512

    def generate(self, *, requests: int, seed: int) -> Iterator[Record]:
        """Yield the first `requests` turns; every conversation is its own user."""
        rng = np.random.default_rng(seed)
        ids = Ids()

        def births() -> Iterator[tuple[float, Thread]]:
            for user_id, time_s in enumerate(arrivals(rng, self.conversation_rate_per_s)):
                kind = "document" if rng.random() < self.document_share else "chat"
                yield time_s, Thread(user_id, kind, self.block_size, [], 0)

        def serve(time_s: float, thread: Thread) -> tuple[Record, list[tuple[float, Thread]]]:
            opening = self.chat_tokens if thread.type == "chat" else self.document_tokens
            prompt = (self.step_tokens if thread.turn else opening).draw(rng)
            record = thread.request(ids, time_s, prompt, self.output_tokens.draw(rng))
            returns = (thread.type == "chat") != self._swapped(time_s)
            if rng.random() >= (self.returning_share if returns else self.leaving_share):
                return record, []
            return record, [(time_s + float(rng.exponential(self.gap_mean_s)), thread)]

        return in_order(births(), serve, requests)

    def _swapped(self, time_s: float) -> bool:
        """Return whether documents, not chats, continue at this time."""
        return time_s >= self.change_s
