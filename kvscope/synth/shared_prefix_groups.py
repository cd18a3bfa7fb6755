"""Companies whose employees ask about one long context each: llm-d's published benchmark."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, cycle, repeat

import numpy as np
from msgspec import UNSET
from numpy.random import Generator

from kvscope.synth.base import BAILIAN_BLOCK_TOKENS, ROOT, Ids, Profile, Record, in_order

Stages = tuple[tuple[float, float], ...]

# Requests per second and seconds. The first stage sends every prompt once.
LLM_D_STAGES: Stages = (
    (15, 50),
    (3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21),
    (40, 38), (43, 36), (46, 33), (49, 30), (52, 29), (55, 27), (57, 26), (60, 25),
)  # fmt: skip


@dataclass(frozen=True)
class SharedPrefixGroups(Profile):
    """Groups of users with one long shared prefix a group and one question a user, asked again.

    All prompts are made once and shuffled. Each stage sends them in that order from the first on,
    over and over: as many as its rate times its duration, at random times of it, which is a Poisson
    process of known count. Further requests repeat the last stage. The benchmark's tool also waits
    for all answers before the next stage; a trace cannot. With the defaults:

    | quantity | expected |
    |---|---|
    | distinct prompts, tokens of all of them | 750, 1,800,000 |
    | input tokens of each | 7,200, the first 6,000 shared by 5 |
    | requests of all stages, seconds | 17,084, 502 |

    Source: llm-d, "KV-Cache Wins You Can See" (2025), appendices A.1 and A.2; its benchmark report
    llm-d-kv-cache, benchmarking/73-capacity/README.md; kubernetes-sigs/inference-perf,
    SharedPrefixDataGenerator, LoadGenerator.mp_run (exactly rate times duration, from prompt 0).
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

        return in_order(self._births(rng, order), serve, requests)

    def _prompts(self, ids: Ids) -> list[list[int]]:
        """Return the blocks of every prompt, the users of a group one after the other."""
        blocks = -(-(self.shared_tokens + self.question_tokens) // self.block_size)
        prompts = []
        for _ in range(self.groups):
            shared = ids.blocks(self.shared_tokens // self.block_size)
            for _ in range(self.users_per_group):
                prompts.append([*shared, *ids.blocks(blocks - len(shared))])
        return prompts

    def _births(self, rng: Generator, order: list[int]) -> Iterator[tuple[float, int]]:
        """Yield the time in s and the prompt of every request."""
        start_s = 0.0
        for rate_per_s, duration_s in chain(self.stages, repeat(self.stages[-1])):
            count = int(rate_per_s * duration_s)
            times = start_s + np.sort(rng.random(count)) * duration_s
            yield from zip(times.tolist(), cycle(order), strict=False)
            start_s += duration_s
