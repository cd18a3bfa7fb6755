"""Chats that return, and now and then a job that reads many documents once."""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvscope.synth.base import (
    Chats,
    Counts,
    Ids,
    Profile,
    Record,
    Skewed,
    Thread,
    arrivals,
    in_order,
)

CHATS = Chats(Skewed(1_500, 0.6, 8_000), Skewed(250), Skewed(300), 0.8, 120.0)


@dataclass(frozen=True)
class Scan(Profile):
    """Steady chats, and every `scan_every_s` a scan: long prompts, one a document, never again.

    A scan sends its documents at `scan_rate_per_s`. One brings more blocks than all open chats have
    together, so a cache that keeps what came last loses the chats to documents that nobody asks for
    again. Expected (ranges over eight seeds at 5,000 requests):

    | quantity | expected |
    |---|---|
    | requests of scans | 20-31 % |
    | their share of the input tokens | 31-43 % |
    | chat turns with a next turn | 78-81 % |

    Source: no published traffic; a test for policies that must not give a cache away.
    """

    name = "scan"

    chats: Chats = CHATS
    conversation_rate_per_s: float = 0.1
    scan_every_s: float = 1_800.0
    scan_documents: Counts = Skewed(300, 0.3, 2_000)
    scan_rate_per_s: float = 2.0
    document_tokens: Counts = Skewed(6_000, 0.5, 30_000)
    answer_tokens: Counts = Skewed(100, 0.5, 1_000)
    block_size: int = 64

    def generate(self, *, requests: int, seed: int) -> Iterator[Record]:
        """Yield `requests` records; every chat and every document is its own user's."""
        rng = np.random.default_rng(seed)
        chat_rng, scan_rng = rng.spawn(2)
        ids, user_ids = Ids(), itertools.count()

        def thread(kind: str) -> Thread:
            return Thread(next(user_ids), kind, self.block_size, [], 0)

        def chats() -> Iterator[tuple[float, Thread]]:
            for time_s in arrivals(chat_rng, self.conversation_rate_per_s):
                yield time_s, thread("chat")

        def scans() -> Iterator[tuple[float, Thread]]:
            for begins in itertools.count(1):
                documents = arrivals(
                    scan_rng, self.scan_rate_per_s, start_s=begins * self.scan_every_s
                )
                for time_s in itertools.islice(documents, self.scan_documents.draw(scan_rng)):
                    yield time_s, thread("scan")

        def serve(time_s: float, state: Thread) -> tuple[Record, list[tuple[float, Thread]]]:
            if state.type == "chat":
                return self.chats.turn(rng, ids, time_s, state)
            tokens = self.document_tokens.draw(rng), self.answer_tokens.draw(rng)
            return state.request(ids, time_s, *tokens), []

        births = heapq.merge(chats(), scans(), key=lambda birth: birth[0])
        return in_order(births, serve, requests)
