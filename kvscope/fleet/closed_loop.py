"""The closed loop: a conversation's next turn arrives its think time after the previous one's end.

Arrival times in a trace depend on the speed of the recorded engines: on a slower fleet, users would
send their next turns later. A think time does not: it is the gap between two turns less the time
that the first one took.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.errors import InputError
from kvscope.core.trace import Prompts
from kvscope.fleet.kernel import OPEN
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.lru import Lru
from kvscope.replay.costs import costs
from kvscope.replay.replay import replay
from kvscope.replay.traffic import Traffic


class ThinkTimes(Struct, frozen=True):
    """Think times of users and tools before each of R requests (s); -1 (OPEN) if it follows none.

    A think time begins at the end of request `after`: the previous turn, or one the trace names
    (-1: none). The trace states `stated` of these times; the others are a gap less a duration,
    `recorded` or `estimated` by the latency profile, and `floored` of them 0 instead of negative.
    """

    think_s: Float64s
    after: Int32s
    stated: int
    recorded: int
    estimated: int
    floored: int


def think_times(prompts: Prompts, traffic: Traffic, profile: LatencyProfile) -> ThinkTimes:
    """Return the think times of a trace: as stated, else derived.

    Derived: gap between arrivals - duration of the previous turn, at least 0. If the trace lacks
    that duration, it is estimated for an idle replica with an infinite cache. Raises InputError for
    a trace without follow-up turns.
    """
    duration_s = delay_s = np.full(len(traffic.leaf), np.nan)
    after = traffic.parent
    if (measured := prompts.measurements) is not None:
        duration_s, delay_s = measured.duration_s, measured.delay_s
        after = np.where(
            (measured.waits_for >= 0) & np.isfinite(delay_s), measured.waits_for, after
        )
    later = np.flatnonzero(after >= 0)
    if not len(later):
        raise InputError(
            "no request continues another, so there is no loop to close",
            where="--closed-loop",
            remedy="leave it out: requests then come at the times of the trace",
        )
    before = after[later]
    recorded = np.isfinite(duration_s[before])
    duration_s = np.where(np.isfinite(duration_s), duration_s, _alone_s(traffic, profile))
    think_s = np.full(len(traffic.leaf), OPEN)
    gap_s = traffic.arrival_s[later] - traffic.arrival_s[before]
    open_s = gap_s - duration_s[before]
    stated = np.isfinite(delay_s[later])
    think_s[later] = np.where(stated, delay_s[later], np.maximum(open_s, 0.0))
    return ThinkTimes(
        think_s,
        after,
        int(stated.sum()),
        int((recorded & ~stated).sum()),
        int((~recorded & ~stated).sum()),
        int((~stated & (open_s < 0)).sum()),
    )


def _alone_s(traffic: Traffic, profile: LatencyProfile) -> Float64s:
    """Return the seconds that each request takes on an idle replica with an infinite cache."""
    everything = len(traffic.block_parent) + int(traffic.anonymous.sum())
    hit_blocks = replay(traffic, Lru(), everything).hit_blocks.astype(np.int64)
    tokens = traffic.input_tokens.astype(np.int64)
    hit_tokens = np.minimum(hit_blocks * traffic.block_size, tokens)
    cost = costs(profile)
    token_s = cost.decode_base_s + cost.decode_token_s + cost.decode_context_token_s * tokens
    outputs = np.maximum(traffic.history_tokens - tokens - 1, 0)
    return np.asarray(profile.ttft_s(tokens - hit_tokens, hit_tokens) + outputs * token_s)
