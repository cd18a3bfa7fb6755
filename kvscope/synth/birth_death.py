"""Traffic of the T-LRU paper's stochastic conversation model, for recovering its parameters."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvscope.synth.base import (
    BAILIAN_BLOCK_TOKENS,
    Counts,
    Geometric,
    Ids,
    Profile,
    Record,
    Thread,
    arrivals,
    in_order,
)


@dataclass(frozen=True)
class BirthDeath(Profile):
    """Conversations born at λ_conv, dying at μ, taking turns at λ while alive; nothing is shared.

    Births are a Poisson process of `birth_rate_per_s`, and the first turn comes with the birth
    (a conversation without a turn leaves no mark in a trace). From then on turns are a Poisson
    process of `turn_rate_per_s` that ends after an exponential lifetime of rate
    `death_rate_per_s`. Lengths are drawn independently a turn. The trace is the first requests
    of that process from an empty system: deaths are never visible, and the last conversations
    are cut off. Expected, with λ, μ for the turn and death rates and the defaults in brackets:

    | quantity | expected |
    |---|---|
    | births per second | λ_conv (0.2) |
    | turns of a conversation, geometric | mean 1 + λ/μ (3.5) |
    | probability of a next turn, any turn | λ/(λ+μ) (0.714) |
    | time between two turns, exponential | mean 1/(λ+μ) (42.9 s) |
    | requests per second once settled | λ_conv · (1 + λ/μ) (0.7) |
    | hits across conversations | 0 |

    Source: Tail-Optimized Caching for LLM Inference, section 5; the defaults have the turns and
    the prompt length of its ShareGPT experiment (3.5 turns, 100 tokens).
    """

    name = "birth-death"

    birth_rate_per_s: float = 0.2
    death_rate_per_s: float = 1 / 150
    turn_rate_per_s: float = 1 / 60
    prompt_tokens: Counts = Geometric(100)
    output_tokens: Counts = Geometric(250)
    block_size: int = BAILIAN_BLOCK_TOKENS

    def generate(self, *, requests: int, seed: int) -> Iterator[Record]:
        """Yield the first `requests` turns; every conversation is its own user."""
        rng = np.random.default_rng(seed)
        ids = Ids()

        def births() -> Iterator[tuple[float, tuple[Thread, float]]]:
            for user_id, time_s in enumerate(arrivals(rng, self.birth_rate_per_s)):
                death_s = time_s + rng.exponential(1 / self.death_rate_per_s)
                yield time_s, (Thread(user_id, "text", self.block_size, [], 0), death_s)

        def serve(
            time_s: float, state: tuple[Thread, float]
        ) -> tuple[Record, list[tuple[float, tuple[Thread, float]]]]:
            thread, death_s = state
            prompt, output = self.prompt_tokens.draw(rng), self.output_tokens.draw(rng)
            record = thread.request(ids, time_s, prompt, output)
            next_s = time_s + rng.exponential(1 / self.turn_rate_per_s)
            return record, [(next_s, state)] if next_s < death_s else []

        return in_order(births(), serve, requests)
