"""Traffic on which single policies do badly, beside the profiles of `kvscope synth`."""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.random import Generator

from benchmarks.sample_profiles import PROFILES as SAMPLED
from benchmarks.sample_profiles import RegimeChange
from kvscope.synth.base import (
    DAY_S,
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
from kvscope.synth.to_b import LaterRequest, Program, ProgramRun


class Chats(Struct, frozen=True):
    """Conversations that go on after any turn with `returning_share`, exponential gaps apart."""

    opening_tokens: Counts
    step_tokens: Counts
    output_tokens: Counts
    returning_share: float
    gap_mean_s: float

    def turn(
        self, rng: Generator, ids: Ids, time_s: float, thread: Thread
    ) -> tuple[Record, list[tuple[float, Thread]]]:
        """Return a turn of the conversation, and the next one if there is one."""
        prompt = (self.step_tokens if thread.turn else self.opening_tokens).draw(rng)
        record = thread.request(ids, time_s, prompt, self.output_tokens.draw(rng))
        if rng.random() >= self.returning_share:
            return record, []
        return record, [(time_s + float(rng.exponential(self.gap_mean_s)), thread)]


CHATS = Chats(Skewed(1_500, 0.6, 8_000), Skewed(250), Skewed(300), 0.8, 120.0)
JOBS = Program(
    run_rate_per_s=0.000_8,
    calls=Geometric(100),
    call_gap_mean_s=4.0,
    system_tokens=Skewed(3_000, 0.5),
    own_tokens=Skewed(800, 0.8),
    output_tokens=Skewed(150, 0.8),
)


@dataclass(frozen=True)
class Alternating(RegimeChange):
    """The chats and documents of `RegimeChange`, which swap roles every `change_s`, not once.

    A policy that learns from the last minutes is right in a long phase and wrong in a short one. In
    phases 1, 3, 5, ... chats continue and documents end; in the others it is the other way round.
    Expected (ranges over eight seeds at 5,000 requests):

    | quantity | expected |
    |---|---|
    | requests with a next turn, odd phases: chats / documents | 77-81 % / 8-11 % |
    | the same, even phases | 8-11 % / 77-83 % |

    Source: no published traffic; a test for policies that learn and for guards that choose.
    """

    name = "alternating"

    change_s: float = 600.0

    def _swapped(self, time_s: float) -> bool:
        return time_s // self.change_s % 2 == 1


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


@dataclass(frozen=True)
class TimeOfDay(Profile):
    """Chats whose rate peaks six hours after the beginning, and jobs that peak twelve hours later.

    Both rates follow a sine of period one day, `daily_swing` above and below their means. Each job
    is a user with a system prompt of its own that all its calls begin with. So what deserves the
    cache changes with the hour, slowly and for long. A day has some 13,000 requests. Expected
    (ranges over four seeds at 13,000 requests):

    | quantity | expected |
    |---|---|
    | requests of chats, hours 3 to 9 / hours 15 to 21 | 88-100 % / 8-18 % |
    | chat turns with a next turn | 74-76 % |

    Source: no published traffic; a test for policies and guards that go by the last minutes.
    """

    name = "time-of-day"

    chats: Chats = replace(CHATS, returning_share=0.75)
    conversation_rate_per_s: float = 0.02
    jobs: Program = JOBS
    daily_swing: float = 0.9
    block_size: int = 64

    def generate(self, *, requests: int, seed: int) -> Iterator[Record]:
        """Yield `requests` records; every chat and every job is its own user."""
        rng = np.random.default_rng(seed)
        chat_rng, job_rng = rng.spawn(2)
        ids, user_ids = Ids(), itertools.count()

        def chats() -> Iterator[tuple[float, Thread | ProgramRun | LaterRequest]]:
            for time_s in arrivals(
                chat_rng, self.conversation_rate_per_s, daily_swing=self.daily_swing
            ):
                yield time_s, Thread(next(user_ids), "chat", self.block_size, [], 0)

        def jobs() -> Iterator[tuple[float, Thread | ProgramRun | LaterRequest]]:
            half_s = DAY_S / 2  # half a day on, the sine is below its mean
            for time_s in arrivals(
                job_rng, self.jobs.run_rate_per_s, start_s=half_s, daily_swing=self.daily_swing
            ):
                tokens = self.jobs.system_tokens.draw(job_rng)
                blocks = ids.blocks(tokens // self.block_size)
                calls = self.jobs.calls.draw(job_rng)
                yield time_s - half_s, ProgramRun(self.jobs, next(user_ids), blocks, tokens, calls)

        def serve(
            time_s: float, state: Thread | ProgramRun | LaterRequest
        ) -> tuple[Record | None, list[tuple[float, Thread | ProgramRun | LaterRequest]]]:
            if isinstance(state, ProgramRun):
                return None, [*state.call(time_s, ids, rng, self.block_size)]
            if isinstance(state, LaterRequest):
                output = state.output_tokens.draw(rng)
                return state.thread.request(ids, time_s, state.new_tokens, output), []
            record, later = self.chats.turn(rng, ids, time_s, state)
            return record, [*later]

        births = heapq.merge(chats(), jobs(), key=lambda birth: birth[0])
        return in_order(births, serve, requests)


PROFILES: dict[str, Profile] = SAMPLED | {
    profile.name: profile for profile in (Alternating(), Scan(), TimeOfDay())
}
