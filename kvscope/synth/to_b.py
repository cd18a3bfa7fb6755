"""Business traffic: programs that call an API repeatedly with the same system prompt."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from msgspec import Struct
from numpy.random import Generator

from kvscope.synth.base import (
    BAILIAN_BLOCK_TOKENS,
    Counts,
    Fixed,
    Geometric,
    Ids,
    Profile,
    Record,
    Skewed,
    Thread,
    arrivals,
    in_order,
)


class Program(Struct, frozen=True):
    """A kind of program: calls that share a system prompt, each fanned out over a document.

    Runs start at `run_rate_per_s` and make `calls` calls, separated by exponential gaps of mean
    `call_gap_mean_s`. A call sends `fan_out` requests, separated by lognormal gaps, which share the
    user's system prompt and the call's document, and add `own_tokens` each.
    """

    run_rate_per_s: float
    calls: Counts
    call_gap_mean_s: float
    system_tokens: Counts
    own_tokens: Counts
    output_tokens: Counts
    document_tokens: Counts = Fixed(0)
    fan_out: Counts = Fixed(1)
    fan_out_gap_median_s: float = 0.0
    fan_out_gap_sigma: float = 0.0


class Dialogue(Struct, frozen=True):
    """Multi-turn use of an API: rare dialogues with very long contexts."""

    rate_per_s: float
    turns: Counts
    gap_mean_s: float
    first_tokens: Counts
    next_tokens: Counts
    output_tokens: Counts


BATCH = Program(
    run_rate_per_s=0.035,
    calls=Skewed(60, 0.4),
    call_gap_mean_s=6.0,
    system_tokens=Skewed(500, 0.5),
    own_tokens=Skewed(565, 0.8),
    output_tokens=Skewed(150, 0.8),
    document_tokens=Skewed(620, 0.8),
    fan_out=Geometric(4),
    fan_out_gap_median_s=0.22,
    fan_out_gap_sigma=1.2,
)
"""Many questions about each of many documents, as fast as answers arrive."""

ASSISTANT = Program(
    run_rate_per_s=0.0055,
    calls=Skewed(90, 0.4),
    call_gap_mean_s=28.0,
    system_tokens=Skewed(5_800, 0.2),
    own_tokens=Skewed(600, 0.8),
    output_tokens=Skewed(250, 0.8),
)
"""A product with long instructions that forwards the questions of its own users."""

SCRIPT = Program(
    run_rate_per_s=0.16,
    calls=Geometric(15),
    call_gap_mean_s=15.0,
    system_tokens=Skewed(220, 0.5),
    own_tokens=Skewed(830, 0.8),
    output_tokens=Skewed(200, 0.8),
)
"""A small job with short instructions."""

TRIAL = Program(
    run_rate_per_s=1.05,
    calls=Geometric(1.1),
    call_gap_mean_s=10.0,
    system_tokens=Skewed(60, 0.5),
    own_tokens=Skewed(830, 0.8),
    output_tokens=Skewed(200, 0.8),
)
"""A single try of the API."""

PROGRAMS = (BATCH, ASSISTANT, SCRIPT, TRIAL)

DIALOGUE = Dialogue(
    rate_per_s=0.002,
    turns=Skewed(3, 0.4),
    gap_mean_s=20.0,
    first_tokens=Skewed(40_000, 0.3),
    next_tokens=Skewed(300, 0.8),
    output_tokens=Skewed(300, 0.8),
)


class LaterRequest(Struct):
    """A future request and its later turns; `thread` begins with a prefix shared with others."""

    thread: Thread
    new_tokens: int
    output_tokens: Counts
    turns: int = 1


class ProgramRun(Struct):
    """A running program: its user, its system prompt, and its remaining calls."""

    program: Program
    user_id: int
    system_blocks: range
    system_tokens: int
    calls: int

    def call(
        self, time_s: float, ids: Ids, rng: Generator, block_size: int
    ) -> list[tuple[float, "ProgramRun | LaterRequest"]]:
        """Return times (s) and requests of one call, which share a document, and the next call."""
        program = self.program
        later: list[tuple[float, ProgramRun | LaterRequest]] = []
        tokens = self.system_tokens + program.document_tokens.draw(rng)
        shared = [*self.system_blocks, *ids.blocks(tokens // block_size - len(self.system_blocks))]
        request_s = time_s
        for _ in range(program.fan_out.draw(rng)):
            thread = Thread(self.user_id, "api", block_size, shared, tokens)
            own = program.own_tokens.draw(rng)
            later.append((request_s, LaterRequest(thread, own, program.output_tokens)))
            request_s += program.fan_out_gap_median_s * rng.lognormal(0, program.fan_out_gap_sigma)
        self.calls -= 1
        if self.calls:
            later.append((request_s + rng.exponential(program.call_gap_mean_s), self))
        return later


@dataclass(frozen=True)
class ToB(Profile):
    """Programs calling an API: nearly every request is single-turn and shares a system prompt.

    Batch jobs fan questions out over documents, assistants repeat long instructions, scripts and
    trials share little; dialogues are rare. The trace continues programs that began before time 0.
    As single-turn requests, 99.9 % of all, have only 97 % of hits, multi-turn requests must hit
    some 30 times as much: they start at about 40,000 tokens.

    sample_traces/README.md compares this profile with the published figures.
    Source: KVCache Cache in the Wild (ATC'25), Trace B, sections 3.2-3.5.
    """

    name = "to-b"

    lead_in_s: float = 3_600.0
    programs: tuple[Program, ...] = PROGRAMS
    dialogue: Dialogue = DIALOGUE
    new_user_share: float = 0.85
    recent_users: int = 20
    block_size: int = BAILIAN_BLOCK_TOKENS

    def generate(self, *, requests: int, seed: int) -> Iterator[Record]:
        """Yield `requests` records; memory grows with open programs and requests."""
        rng = np.random.default_rng(seed)
        ids = Ids()
        rates = [program.run_rate_per_s for program in self.programs]
        upper = np.cumsum([*rates, self.dialogue.rate_per_s])
        user_ids = itertools.count(1)
        # The recent users of each program: id, system prompt, its tokens.
        recent: list[list[tuple[int, range, int]]] = [[] for _ in self.programs]

        def run(program: Program, users: list[tuple[int, range, int]]) -> ProgramRun:
            """Return a run before its first call, of a new or a recent user of the program.

            `users` are the recent ones: user id, blocks and tokens of the system prompt. A new user
            is appended, and the oldest leaves the list when it is full.
            """
            if not users or rng.random() < self.new_user_share:
                tokens = program.system_tokens.draw(rng)
                users.append((next(user_ids), ids.blocks(tokens // self.block_size), tokens))
                del users[: -self.recent_users]
            user_id, blocks, tokens = users[int(rng.integers(len(users)))]
            return ProgramRun(program, user_id, blocks, tokens, program.calls.draw(rng))

        def talk() -> LaterRequest:
            """Return a new dialogue, before its first turn."""
            dialogue = self.dialogue
            thread = Thread(next(user_ids), "api", self.block_size, [], 0)
            first = dialogue.first_tokens.draw(rng)
            return LaterRequest(thread, first, dialogue.output_tokens, dialogue.turns.draw(rng))

        def births() -> Iterator[tuple[float, ProgramRun | LaterRequest]]:
            for time_s in arrivals(rng, float(upper[-1]), start_s=-self.lead_in_s):
                which = int(np.searchsorted(upper, rng.random() * upper[-1]))
                is_program = which < len(self.programs)
                yield time_s, run(self.programs[which], recent[which]) if is_program else talk()

        def serve(
            time_s: float, state: ProgramRun | LaterRequest
        ) -> tuple[Record | None, list[tuple[float, ProgramRun | LaterRequest]]]:
            if isinstance(state, ProgramRun):
                return None, state.call(time_s, ids, rng, self.block_size)
            if time_s < 0:
                return None, []
            record = state.thread.request(
                ids, time_s, state.new_tokens, state.output_tokens.draw(rng)
            )
            if record.turn >= state.turns:
                return record, []
            state.new_tokens = self.dialogue.next_tokens.draw(rng)
            return record, [(time_s + rng.exponential(self.dialogue.gap_mean_s), state)]

        return in_order(births(), serve, requests)
