"""Memory that the work on a trace needs, estimated from the trace's shape before allocating it.

The coefficients are bytes per request, per distinct block and per access (block of a prompt),
fitted to peaks of resident memory (docs/reliability.md).
"""

from __future__ import annotations

from kvscope.core.trace import Trace
from kvscope.learning.returns.formulas import ROWS
from kvscope.policies.base import Policy
from kvscope.policies.gittins import AGES, Gittins
from kvscope.replay.traffic import Traffic

_LOADED = 300, 4  # the store's rows of a trace, and its prompts
_DRAWN = 60  # of a dataset from which a sample is drawn: the ends of all paths
_SHARED = 150, 2, 4  # what all replays of a trace share: the order of touches
_TABLES = 300  # what learners know of each request
_ROW_NUMBERS = 12  # of a class at a refit
_REPLAY = 80, 10  # each replay's own


def analysis_bytes(trace: Trace) -> int:
    """Return the bytes that an analysis needs."""
    return 450 * trace.requests + 16 * trace.distinct_blocks


def fit_bytes(trace: Trace) -> int:
    """Return the bytes that `kvscope fit` needs if a request reuses blocks of one or two others."""
    return 340 * trace.requests


def replays_bytes(trace: Trace) -> int:
    """Return the bytes of the loaded trace and of one replay of it."""
    return int(
        _LOADED[0] * trace.requests
        + _LOADED[1] * trace.distinct_blocks
        + _replay_of_sample_bytes(trace, 1.0)
    )


def drawn_replays_bytes(trace: Trace, sample_rate: float, following_bytes: int) -> int:
    """Return the bytes that replays of a dataset's sample need; only the sample is loaded.

    Besides the loaded sample, the largest of three stages counts: drawing the sample; the exact LRU
    curve of all shards, which needs `following_bytes`; replays. The result is capped at the bytes
    of the whole loaded trace and the replays of the sample.
    """
    loaded = _LOADED[0] * trace.requests + _LOADED[1] * trace.distinct_blocks
    replays = _replay_of_sample_bytes(trace, sample_rate)
    needed = loaded * sample_rate + max(_DRAWN * trace.requests, following_bytes, replays)
    return min(int(needed), int(loaded + replays))


def _replay_of_sample_bytes(trace: Trace, sample_rate: float) -> float:
    requests, blocks, accesses = _SHARED
    own_requests, own_blocks = _REPLAY
    return sample_rate * (
        (requests + own_requests) * trace.requests
        + (blocks + own_blocks) * trace.distinct_blocks
        + accesses * trace.accesses
    )


def tables_bytes(traffic: Traffic, policy: Policy) -> int:
    """Return the bytes needed to fit a policy's tables to `traffic`, 0 for one without tables."""
    if not policy.reads_table:
        return 0
    fits = 0.0
    if policy.learner == Gittins.learner:
        refits = len(traffic.leaf) / policy.refit_every + 3  # two come early
        fits = refits * ROWS * (8 * AGES + _ROW_NUMBERS)
    return _TABLES * len(traffic.leaf) + int(fits)


def replay_bytes(traffic: Traffic) -> int:
    """Return the bytes that one more replay needs while it runs."""
    requests, blocks = _REPLAY
    return requests * len(traffic.leaf) + blocks * len(traffic.block_parent)


def fleet_bytes(traffic: Traffic, replicas: int, *, router_counts_blocks: bool = False) -> int:
    """Return the bytes of a replay of a fleet, each of `replicas` with the state of a whole cache.

    `router_counts_blocks`: the router sees the blocks in use at each replica, so that the requests
    using a block are counted per replica. Bytes are those of the state's arrays, not fitted peaks.
    """
    blocks = (8 if router_counts_blocks else 4) * len(traffic.block_parent)
    return replicas * (blocks + 30 * len(traffic.leaf)) + replay_bytes(traffic)
