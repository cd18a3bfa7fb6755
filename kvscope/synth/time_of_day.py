"""People chat by day, programs run by night."""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvscope.synth.base import (
    DAY_S,
    Chats,
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

CHATS = Chats(Skewed(1_500, 0.6, 8_000), Skewed(250), Skewed(300), 0.75, 120.0)
JOBS = Program(
    run_rate_per_s=0.000_8,
    calls=Geometric(100),
    call_gap_mean_s=4.0,
    system_tokens=Skewed(3_000, 0.5),
    own_tokens=Skewed(800, 0.8),
    output_tokens=Skewed(150, 0.8),
)


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

    chats: Chats = CHATS
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
