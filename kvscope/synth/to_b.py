"""Business traffic: programs that call an API with the same system prompt, over and over."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from kvscope.synth.base import (
    BAILIAN_BLOCK_TOKENS,
    Counts,
    Fixed,
    Geometric,
    Ids,
    Lognormal,
    Record,
    Thread,
    arrivals,
    check_parameters,
    in_order,
)


@dataclass(frozen=True)
class Program:
    """A kind of program: calls that share a system prompt, each fanned out over a document.

    Runs start at `run_rate_per_s` and make `calls` calls, exponential gaps of mean
    `call_gap_mean_s` apart. A call sends `fan_out` requests, lognormal gaps apart; they share the
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


@dataclass(frozen=True)
class Dialogue:
    """The rare multi-turn user of an API: few of them, with very long contexts."""

    rate_per_s: float
    turns: Counts
    gap_mean_s: float
    first_tokens: Counts
    next_tokens: Counts
    output_tokens: Counts


BATCH = Program(
    run_rate_per_s=0.035,
    calls=Lognormal(60, 0.4),
    call_gap_mean_s=6.0,
    system_tokens=Lognormal(500, 0.5),
    own_tokens=Lognormal(565, 0.8),
    output_tokens=Lognormal(150, 0.8),
    document_tokens=Lognormal(620, 0.8),
    fan_out=Geometric(4),
    fan_out_gap_median_s=0.22,
    fan_out_gap_sigma=1.2,
)
"""Many questions about each of many documents, as fast as answers come."""

ASSISTANT = Program(
    run_rate_per_s=0.0055,
    calls=Lognormal(90, 0.4),
    call_gap_mean_s=28.0,
    system_tokens=Lognormal(5_800, 0.2),
    own_tokens=Lognormal(600, 0.8),
    output_tokens=Lognormal(250, 0.8),
)
"""A product with long instructions that passes on what its own users ask."""

SCRIPT = Program(
    run_rate_per_s=0.16,
    calls=Geometric(15),
    call_gap_mean_s=15.0,
    system_tokens=Lognormal(220, 0.5),
    own_tokens=Lognormal(830, 0.8),
    output_tokens=Lognormal(200, 0.8),
)
"""A small job with short instructions."""

TRIAL = Program(
    run_rate_per_s=1.05,
    calls=Geometric(1.1),
    call_gap_mean_s=10.0,
    system_tokens=Lognormal(60, 0.5),
    own_tokens=Lognormal(830, 0.8),
    output_tokens=Lognormal(200, 0.8),
)
"""Somebody tries the API once."""

PROGRAMS = (BATCH, ASSISTANT, SCRIPT, TRIAL)

DIALOGUE = Dialogue(
    rate_per_s=0.002,
    turns=Lognormal(3, 0.4),
    gap_mean_s=20.0,
    first_tokens=Lognormal(40_000, 0.3),
    next_tokens=Lognormal(300, 0.8),
    output_tokens=Lognormal(300, 0.8),
)


@dataclass(slots=True)
class _Pending:
    """A request about to arrive: `thread` holds what it shares with others. And its later turns."""

    thread: Thread
    new_tokens: int
    output_tokens: Counts
    turns: int = 1


@dataclass(slots=True)
class _Run:
    """A program at work: whose it is, its system prompt, the calls it will still make."""

    program: Program
    user_id: int
    system_blocks: range
    system_tokens: int
    calls: int

    def call(
        self, time_s: float, ids: Ids, rng: Generator, block_size: int
    ) -> list[tuple[float, "_Run | _Pending"]]:
        """The requests of one call, sharing system prompt and document, and the next call."""
        program = self.program
        later: list[tuple[float, _Run | _Pending]] = []
        tokens = self.system_tokens + program.document_tokens.draw(rng)
        shared = [*self.system_blocks, *ids.blocks(tokens // block_size - len(self.system_blocks))]
        request_s = time_s
        for _ in range(program.fan_out.draw(rng)):
            thread = Thread(self.user_id, "api", block_size, shared, tokens)
            own = program.own_tokens.draw(rng)
            later.append((request_s, _Pending(thread, own, program.output_tokens)))
            request_s += program.fan_out_gap_median_s * rng.lognormal(0, program.fan_out_gap_sigma)
        self.calls -= 1
        if self.calls:
            later.append((request_s + rng.exponential(program.call_gap_mean_s), self))
        return later


@dataclass(frozen=True)
class ToB:
    """Programs calling an API: nearly every request is single-turn and shares a system prompt.

    Batch jobs fan questions out over documents, assistants repeat long instructions, scripts and
    trials share little; dialogues are rare. What was running before time 0 goes on in the trace.
    Expected (ranges over six seeds at 20,000 and two at 50,000 requests, none of them used to
    choose the parameters; ideal hit rate as in `ToC`):

    | quantity | published | this profile |
    |---|---|---|
    | ideal hit rate | 54 % | 53-56 % |
    | hits from single-turn requests | 97 % | 97-100 % |
    | multi-turn share of requests | < 0.1 % | 0.04 % on average, up to 0.08 % |
    | reuse gaps within 10 s | 80 % | 79-87 % |
    | blocks living at most 0.3 s / at most 97 s | 90 % / 99 % | 90-91 % / 98.9-99.4 % |
    | users making 90 % of hits | 4 % | 2.7-4.9 % |
    | users making 90 % of requests | 15 % | 14-19 % |
    | requests per second | > 10 | 11-15 |

    Lifetimes are better compared as these shares than as quantiles: next to nothing is reused
    after more than a fan-out (seconds) and before a program's end (minutes), so that a share that
    is half a point off moves p99 anywhere between 10 and 110 s, and p90 between 0.2 and 0.4 s.

    97 % of hits from 99.9 % of requests needs multi-turn requests that hit some 30 times as
    much as others: they start at about 40,000 tokens. Traces shorter than the programs that they
    show (half an hour) see too few of the users that come and go: at 2,000 requests 10-20 %
    of users make 90 % of hits, 33-39 % make 90 % of requests, and 95-98 % of blocks live at most
    97 s.

    Source: KVCache Cache in the Wild (ATC'25), Trace B, sections 3.2-3.5.
    """

    name: ClassVar[str] = "to-b"

    lead_in_s: float = 3_600.0
    programs: tuple[Program, ...] = PROGRAMS
    dialogue: Dialogue = DIALOGUE
    new_user_share: float = 0.85
    recent_users: int = 20
    block_size: int = BAILIAN_BLOCK_TOKENS

    def __post_init__(self) -> None:
        """Raise ValueError for a parameter out of range."""
        check_parameters(self)

    def generate(self, *, requests: int, seed: int) -> Iterator[Record]:
        """Yield `requests` records; memory grows with programs and requests under way."""
        rng = np.random.default_rng(seed)
        ids = Ids()
        rates = [program.run_rate_per_s for program in self.programs]
        upper = np.cumsum([*rates, self.dialogue.rate_per_s])
        crowd = _Crowd(self, ids, rng)

        def births() -> Iterator[tuple[float, _Run | _Pending]]:
            for time_s in arrivals(rng, float(upper[-1]), start_s=-self.lead_in_s):
                which = int(np.searchsorted(upper, rng.random() * upper[-1]))
                if which < len(self.programs):
                    yield time_s, crowd.start(which)
                else:
                    yield time_s, crowd.talk()

        def serve(
            time_s: float, state: _Run | _Pending
        ) -> tuple[Record | None, list[tuple[float, _Run | _Pending]]]:
            if isinstance(state, _Run):
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


class _Crowd:
    """Users: a run is a new user's or that of a recent one, who brings the system prompt again."""

    def __init__(self, profile: ToB, ids: Ids, rng: Generator) -> None:
        self._profile, self._ids, self._rng = profile, ids, rng
        self._users: list[list[tuple[int, range, int]]] = [[] for _ in profile.programs]
        self._seen = 0

    def start(self, which: int) -> _Run:
        """A program's run, about to make its first call."""
        profile, rng, users = self._profile, self._rng, self._users[which]
        program = profile.programs[which]
        if not users or rng.random() < profile.new_user_share:
            tokens = program.system_tokens.draw(rng)
            users.append((self._new_user(), self._ids.blocks(tokens // profile.block_size), tokens))
            del users[: -profile.recent_users]
        user_id, blocks, tokens = users[int(rng.integers(len(users)))]
        return _Run(program, user_id, blocks, tokens, program.calls.draw(rng))

    def talk(self) -> _Pending:
        """A dialogue over the API, about to start."""
        dialogue, rng = self._profile.dialogue, self._rng
        thread = Thread(self._new_user(), "api", self._profile.block_size, [], 0)
        first = dialogue.first_tokens.draw(rng)
        return _Pending(thread, first, dialogue.output_tokens, dialogue.turns.draw(rng))

    def _new_user(self) -> int:
        self._seen += 1
        return self._seen
