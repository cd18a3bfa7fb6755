"""Coding agents: long shared heads, contexts that grow for hours, tools that answer in seconds."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from msgspec import Struct
from numpy.random import Generator

from kvscope.synth.base import Counts, Ids, Profile, Record, Skewed, Thread, arrivals, in_order


class _AgentThread(Struct):
    """An open session: its conversation, the blocks that compaction keeps, its number of turns."""

    thread: Thread
    head: range
    turns: int


@dataclass(frozen=True)
class Agent(Profile):
    """Sessions of coding agents on a few clients, each with its own system and tools prompt.

    Each turn adds a tool's answer, after seconds, or a user's, after minutes (`think_share` of the
    turns). When its history passes `context_limit_tokens` the next prompt is the head and a
    summary: same conversation, another path. `subagent_share` of the sessions' turns start a
    sub-agent, a conversation of its own, of type `subagent`. The trace continues sessions that
    began up to `lead_in_s` before time 0. Gaps are (median in s, sigma) of a lognormal.

    sample_traces/README.md has the figures to expect.

    Source: no published characterization; sizes and gaps are of the order seen in public traces
    of coding agents (weka format: heads of 15,000 tokens, median gap 19 s, steps of some
    hundred to some thousand tokens, compaction near 160,000).
    """

    name = "agent"

    lead_in_s: float = 14_400.0
    session_rate_per_s: float = 1 / 300
    head_tokens: tuple[int, ...] = (15_300, 14_800, 16_800)
    subagent_head_tokens: int = 6_400
    task_tokens: Counts = Skewed(5_000, 1.6, 90_000)
    turns: Counts = Skewed(52, 0.8, 400)
    step_tokens: Counts = Skewed(1_900, 1.45, 30_000)
    output_tokens: Counts = Skewed(370, 0.95, 8_000)
    tool_gap_s: tuple[float, float] = (20.0, 0.6)
    think_gap_s: tuple[float, float] = (130.0, 1.7)
    think_share: float = 0.15
    subagent_share: float = 0.004
    subagent_turns: Counts = Skewed(14, 0.5, 60)
    context_limit_tokens: int = 160_000
    summary_tokens: Counts = Skewed(25_000, 0.6, 80_000)
    users: int = 12
    block_size: int = 64

    def generate(self, *, requests: int, seed: int) -> Iterator[Record]:
        """Yield `requests` records, each with its `block_size`."""
        rng = np.random.default_rng(seed)
        ids = Ids()
        heads = [ids.blocks(tokens // self.block_size) for tokens in self.head_tokens]
        subagent_heads = [ids.blocks(self.subagent_head_tokens // self.block_size) for _ in heads]

        def start(user_id: int, kind: str, head: range, turns: Counts) -> _AgentThread:
            """Return a session before its first request; its history is the head."""
            tokens = len(head) * self.block_size
            thread = Thread(user_id, kind, self.block_size, list(head), tokens)
            return _AgentThread(thread, head, turns.draw(rng))

        def births() -> Iterator[tuple[float, _AgentThread]]:
            for time_s in arrivals(rng, self.session_rate_per_s, start_s=-self.lead_in_s):
                user_id = int(rng.integers(self.users))
                client = user_id % len(heads)
                yield time_s, start(user_id, "agent", heads[client], self.turns)

        def serve(
            time_s: float, session: _AgentThread
        ) -> tuple[Record | None, list[tuple[float, _AgentThread]]]:
            thread = session.thread
            new = self._new_tokens(session).draw(rng)
            output = self.output_tokens.draw(rng)
            record = thread.take_turn(ids, time_s, new, output)
            later = []
            if thread.turn < session.turns:
                later.append((time_s + self._gap_s(thread.type, rng), session))
            if thread.type == "agent" and rng.random() < self.subagent_share:
                head = subagent_heads[thread.user_id % len(heads)]
                helper = start(thread.user_id, "subagent", head, self.subagent_turns)
                later.append((time_s + self._gap_s(helper.thread.type, rng), helper))
            return record, later

        return in_order(births(), serve, requests)

    def _new_tokens(self, session: _AgentThread) -> Counts:
        """Return the distribution of the next turn's new tokens; compact a full context first."""
        if session.thread.history_tokens > self.context_limit_tokens:
            session.thread.restart(session.head)
            return self.summary_tokens
        return self.step_tokens if session.thread.turn else self.task_tokens

    def _gap_s(self, type_: str, rng: Generator) -> float:
        """Return the seconds until the tool's answer or, with `think_share`, the user's."""
        thinks = type_ == "agent" and rng.random() < self.think_share
        median_s, sigma = self.think_gap_s if thinks else self.tool_gap_s
        return median_s * float(rng.lognormal(0.0, sigma))
