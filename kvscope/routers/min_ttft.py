"""The replica on which the first token comes soonest, known in truth: a reference."""

from __future__ import annotations

from typing import Any

from kvscope.core.arrays import Float64s, Int32s
from kvscope.routers.base import Prompt, Router, View


class MinTtft(Router):
    """Send each request where wait and prefill end first; of equals to the one with fewer so far.

    Knows every queue and every cache: a bound for routers that estimate either, greedy and so not
    the optimum.
    Source: Mooncake (FAST'25), Algorithm 1, without transfers and with true times.
    """

    name = "min-ttft"
    summary = "the soonest first token, queues and caches known"
    source = "Mooncake, FAST'25, Algorithm 1, with the truth"
    sees = "truth"
    reference = True

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the replica with the least wait and prefill."""
        truth, processed = view.truth, view.own.processed
        best, soonest = 0, truth.wait_s[0] + truth.prefill_s[0]
        for replica in range(1, view.replicas):
            ttft_s = truth.wait_s[replica] + truth.prefill_s[replica]
            sooner = ttft_s < soonest - 1e-12
            even = ttft_s <= soonest + 1e-12
            if sooner or (even and processed[replica] < processed[best]):
                best, soonest = replica, min(ttft_s, soonest)
        return best
