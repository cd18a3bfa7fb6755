"""Questions about passages that a search found: popular passages, and no conversations."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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


class _SharedPrefix(NamedTuple):
    """What prompts begin with: full blocks, and tokens, which may reach into a further block."""

    blocks: list[int]
    tokens: int


@dataclass(frozen=True)
class Retrieval(Profile):
    """Prompts of one system prompt, `passages_a_request` passages, and a question of one's own.

    A passage is drawn by its rank r with a probability that falls as r^-exponent (Zipf). Every
    `drift_s` one passage moves: a random one to a rank drawn likewise, so that what is popular
    changes. Passages stand in the order of the draw, best match first. A block depends on all that
    precedes it, so only passages with the same passages before them are shared. Nobody asks
    twice: reuse follows popularity, and recency only through it. Expected (ranges over eight seeds
    at 5,000 requests):

    | quantity | expected |
    |---|---|
    | requests whose first passage is one of the 60 (3 %) most asked | 53-57 % |
    | input tokens, mean | 2,700-3,000 |
    | ideal hit rate, by tokens | 58-60 % |

    Source: RAGCache (arXiv 2404.12457), section 3: 3 % of the documents take 60 % of the requests.
    """

    name = "retrieval"

    request_rate_per_s: float = 2.0
    passages: int = 2_000
    passages_a_request: int = 2
    exponent: float = 1.0
    drift_s: float = 60.0
    system_tokens: int = 800
    passage_tokens: Counts = Skewed(1_000, 0.5, 4_000)
    question_tokens: Counts = Skewed(120, 0.6, 1_000)
    output_tokens: Counts = Skewed(250, 0.7, 2_000)
    block_size: int = BAILIAN_BLOCK_TOKENS

    def __post_init__(self) -> None:
        """Raise ValueError for a parameter out of range."""
        super().__post_init__()
        if self.passages_a_request > self.passages:
            raise ValueError(
                f"passages_a_request is {self.passages_a_request}; there are {self.passages}"
            )

    def generate(self, *, requests: int, seed: int) -> Iterator[Record]:
        """Yield `requests` records, each a conversation of its own; memory: all prefixes."""
        rng = np.random.default_rng(seed)
        ids = Ids()
        lengths = [self.passage_tokens.draw(rng) for _ in range(self.passages)]
        by_rank = rng.permutation(self.passages).tolist()
        upper = np.cumsum(np.arange(1.0, self.passages + 1) ** -self.exponent)
        moves = arrivals(rng, 1 / self.drift_s) if self.drift_s else iter(())
        next_move_s = next(moves, np.inf)
        system = ids.blocks(self.system_tokens // self.block_size)
        prefixes: dict[tuple[int, ...], _SharedPrefix] = {
            (): _SharedPrefix([*system], self.system_tokens)
        }

        def rank() -> int:
            return int(np.searchsorted(upper, rng.random() * upper[-1]))

        def prefix(passages: tuple[int, ...]) -> _SharedPrefix:
            if passages not in prefixes:
                before = prefix(passages[:-1])
                tokens = before.tokens + lengths[passages[-1]]
                more = ids.blocks(tokens // self.block_size - len(before.blocks))
                prefixes[passages] = _SharedPrefix([*before.blocks, *more], tokens)
            return prefixes[passages]

        def serve(time_s: float, user_id: int) -> tuple[Record, list[tuple[float, int]]]:
            nonlocal next_move_s
            while next_move_s <= time_s:
                passage = by_rank.pop(int(rng.integers(self.passages)))
                by_rank.insert(rank(), passage)
                next_move_s = next(moves, np.inf)
            best: dict[int, None] = {}  # in the order of the draw
            while len(best) < self.passages_a_request:
                best[by_rank[rank()]] = None
            shared = prefix(tuple(best))
            thread = Thread(user_id, "retrieval", self.block_size, shared.blocks, shared.tokens)
            question, output = self.question_tokens.draw(rng), self.output_tokens.draw(rng)
            return thread.request(ids, time_s, question, output), []

        births = (
            (time_s, user) for user, time_s in enumerate(arrivals(rng, self.request_rate_per_s))
        )
        return in_order(births, serve, requests)
