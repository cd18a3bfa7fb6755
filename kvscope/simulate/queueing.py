"""Time to first token with waiting: what an idle engine's latency becomes under the trace's load.

One prefill server takes requests in order of arrival, each to its end (FCFS). The wait is
measured without a loop over requests: with S the sum of all service times before a request, the
server gets to it at S plus the largest arrival - S so far.

Source: KVCache Cache in the Wild, evaluation (queued time to first token, QTTFT); Lindley,
Mathematical Proceedings of the Cambridge Philosophical Society 1952 (the recursion).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvscope.errors import UsageError


def waiting_s(
    arrival_s: NDArray[np.float64], service_s: NDArray[np.float64], rate_scale: float = 1.0
) -> NDArray[np.float64]:
    """Seconds that each request waits until its prefill starts.

    `arrival_s` ascends; at `rate_scale` 2 requests come twice as fast. Raises UsageError for a
    `rate_scale` that is not a number above 0.
    """
    if not (math.isfinite(rate_scale) and rate_scale > 0):
        raise UsageError(f"rate scale {rate_scale}", remedy="give a number above 0, such as 2")
    before = np.concatenate([[0.0], np.cumsum(service_s)[:-1]]) if len(service_s) else service_s
    slack = arrival_s / rate_scale - before
    return np.asarray(np.maximum.accumulate(slack) - slack)


def queued_ttft_s(
    arrival_s: NDArray[np.float64], service_s: NDArray[np.float64], rate_scale: float = 1.0
) -> NDArray[np.float64]:
    """Seconds from each request's arrival to its first token: its wait and its service."""
    return waiting_s(arrival_s, service_s, rate_scale) + service_s
