"""How much memory the work on a trace takes, estimated from its shape before any of it is taken.

The coefficients are bytes an entry, fitted to peaks of resident memory (docs/reliability.md): of
requests, of distinct blocks, and of accesses, which are the blocks of all prompts together.
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
    """Return what an analysis takes in memory."""
    return 450 * trace.requests + 16 * trace.distinct_blocks


def fit_bytes(trace: Trace) -> int:
    """Return what a fit takes, with one or two runs of reuse a request."""
    return 340 * trace.requests


def replays_bytes(trace: Trace) -> int:
    """Return what the trace takes and what one replay of it does."""
    return int(
        _LOADED[0] * trace.requests
        + _LOADED[1] * trace.distinct_blocks
        + _replay_of_sample_bytes(trace, 1.0)
    )


def drawn_replays_bytes(trace: Trace, sample_rate: float, following_bytes: int) -> int:
    """Return what they take of a dataset, of which no more than the sample is loaded.

    It stays while shards are followed, which takes `following_bytes` or what a small trace does,
    and while it is replayed.
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
    """Return what the tables of this policy take while they are fitted, 0 if it learns nothing."""
    if not policy.reads_table:
        return 0
    fits = 0.0
    if policy.learner == Gittins.learner:
        refits = len(traffic.leaf) / policy.refit_every + 3  # two come early
        fits = refits * ROWS * (8 * AGES + _ROW_NUMBERS)
    return _TABLES * len(traffic.leaf) + int(fits)


def replay_bytes(traffic: Traffic) -> int:
    """Return what one more replay takes while it runs."""
    requests, blocks = _REPLAY
    return requests * len(traffic.leaf) + blocks * len(traffic.block_parent)


def fleet_bytes(traffic: Traffic, replicas: int, *, router_counts_blocks: bool = False) -> int:
    """Return what a replay of so many replicas takes: each has the state of a whole cache.

    Counted from the arrays of that state; peaks of whole fleets were not fitted.
    """
    blocks = (8 if router_counts_blocks else 4) * len(traffic.block_parent)
    return replicas * (blocks + 30 * len(traffic.leaf)) + replay_bytes(traffic)
