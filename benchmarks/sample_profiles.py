"""Profiles of traffic for tests and figures, beside those of `kvscope synth`, and sample_traces/.

`python -m benchmarks.sample_profiles FOLDER` writes sample_traces/ again.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import UNSET
from numpy.random import Generator

from kvscope.synth import profiles
from kvscope.synth.base import (
    BAILIAN_BLOCK_TOKENS,
    ROOT,
    Counts,
    Geometric,
    Ids,
    Profile,
    Record,
    Skewed,
    Thread,
    arrivals,
    in_order,
)
from kvscope.synth.profiles import write_jsonl


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


PROFILES: dict[str, Profile] = profiles.PROFILES | {
    profile.name: profile
    for profile in (BirthDeath(), RegimeChange(), Retrieval(), SharedPrefixGroups())
}


class SampleTrace(NamedTuple):
    """A trace file that can be generated again, byte for byte, from its profile and seed."""

    profile: str
    requests: int
    seed: int

    @property
    def file(self) -> str:
        """The name in sample_traces/."""
        return f"{self.profile}.jsonl.gz"


# Sized to stay below 1 MB each. At this size the rare, heavy conversations and programs make or
# break the shares, so the seeds of to-c and to-b are picked: of 1-40, among the nearest to target.
SAMPLES = (
    SampleTrace("to-c", 2_000, 3),
    SampleTrace("to-b", 5_000, 39),
    SampleTrace("agent", 700, 7),
    SampleTrace("birth-death", 10_000, 7),
    SampleTrace("regime-change", 4_000, 7),
)


def write_sample(sample: SampleTrace, folder: Path) -> Path:
    """Generate one sample into `folder`; return the file's path."""
    path = folder / sample.file
    profile = PROFILES[sample.profile]
    write_jsonl(profile.generate(requests=sample.requests, seed=sample.seed), path)
    return path


def main(arguments: list[str]) -> int:
    """Write every sample into the folder named on the command line; return the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m benchmarks.sample_profiles FOLDER\n")
        return 2
    for sample in SAMPLES:
        path = write_sample(sample, Path(arguments[0]))
        sys.stderr.write(f"{path}: {sample.requests} requests, {path.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
