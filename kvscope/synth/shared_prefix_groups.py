"""Companies whose employees ask about one long context each: llm-d's published benchmark."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from msgspec import UNSET
from numpy.random import Generator

from kvscope.synth.base import BAILIAN_BLOCK_TOKENS, ROOT, Ids, Profile, Record, in_order

Stages = tuple[tuple[float, float], ...]

# Requests per second and seconds. The first stage sends every prompt once on average.
LLM_D_STAGES: Stages = (
    (15, 50),
    (3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21),
    (40, 38), (43, 36), (46, 33), (49, 30), (52, 29), (55, 27), (57, 26), (60, 25),
)  # fmt: skip


@dataclass(frozen=True)
class SharedPrefixGroups(Profile):
    """Groups of users with one long shared prefix a group and one question a user, asked again.

    All prompts are made once, shuffled, and then sent in turn, over and over. Arrivals are Poisson
    at each stage's rate for its duration, and go on at the last rate. Expected with the defaults:

    | quantity | expected |
    |---|---|
    | distinct prompts, tokens of all of them | 750, 1,800,000 |
    | input tokens of each | 7,200, the first 6,000 shared by 5 |
    | requests of all stages, seconds | about 17,100, 502 |

    Source: llm-d, "KV-Cache Wins You Can See" (2025), appendices A.1 and A.2; its benchmark report
    llm-d-kv-cache, benchmarking/73-capacity/README.md; kubernetes-sigs/inference-perf,
    SharedPrefixDataGenerator (shuffled, then in turn).
    """

    name = "shared-prefix-groups"

    groups: int = 150
    users_per_group: int = 5
    shared_tokens: int = 6_000
    question_tokens: int = 1_200
    output_tokens: int = 1_000
    stages: Stages = LLM_D_STAGES
    block_size: int = BAILIAN_BLOCK_TOKENS

    def generate(self, *, requests: int, seed: int) -> Iterator[Record]:
        """Yield `requests` records, each a conversation of its own; memory: all prompts."""
        rng = np.random.default_rng(seed)
        ids = Ids()
        prompts = self._prompts(ids)
        order = [int(number) for number in rng.permutation(len(prompts))]

        def serve(time_s: float, number: int) -> tuple[Record, list[tuple[float, int]]]:
            record = Record(
                chat_id=ids.chat(),
                parent_chat_id=ROOT,
                user_id=number,
                timestamp=round(time_s, 3),
                input_length=self.shared_tokens + self.question_tokens,
                output_length=self.output_tokens,
                type="api",
                turn=1,
                hash_ids=prompts[number],
                block_size=UNSET if self.block_size == BAILIAN_BLOCK_TOKENS else self.block_size,
            )
            return record, []

        return in_order(zip(self._times(rng), cycle(order), strict=False), serve, requests)

    def _prompts(self, ids: Ids) -> list[list[int]]:
        """Return the blocks of every prompt, the users of a group one after the other."""
        blocks = -(-(self.shared_tokens + self.question_tokens) // self.block_size)
        prompts = []
        for _ in range(self.groups):
            shared = ids.blocks(self.shared_tokens // self.block_size)
            for _ in range(self.users_per_group):
                prompts.append([*shared, *ids.blocks(blocks - len(shared))])
        return prompts

    def _times(self, rng: Generator) -> Iterator[float]:
        """Yield arrival times in s."""
        start_s = 0.0
        for stage, (rate_per_s, duration_s) in enumerate(self.stages):
            end_s = start_s + duration_s if stage + 1 < len(self.stages) else np.inf
            time_s = start_s + rng.exponential(1 / rate_per_s)
            while time_s < end_s:
                yield time_s
                time_s += rng.exponential(1 / rate_per_s)
            start_s = end_s
