"""Business traffic: programs that call an API with the same system prompt, over and over."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from kvscope.synth.base import BAILIAN_BLOCK_TOKENS, Ids, Record, Thread
from kvscope.synth.counts import Counts
from kvscope.synth.timeline import arrivals, in_order
from kvscope.synth.to_b_programs import DIALOGUE, PROGRAMS, Dialogue, Program


@dataclass(frozen=True)
class ToB:
    """Programs calling an API: nearly every request is single-turn and shares a system prompt.
    """

    name: ClassVar[str] = "to-b"

    lead_in_s: float = 3_600.0
    programs: tuple[Program, ...] = PROGRAMS
    dialogue: Dialogue = DIALOGUE
    new_user_share: float = 0.85
    recent_users: int = 20
    block_size: int = BAILIAN_BLOCK_TOKENS

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


@dataclass(slots=True)
class _Pending:
    """A request about to arrive (`thread` holds what it shares with others), and its later turns."""

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
    ) -> "list[tuple[float, _Run | _Pending]]":
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
