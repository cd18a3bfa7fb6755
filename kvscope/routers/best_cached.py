"""The replica that holds the longest prefix, known in truth: a reference."""

from __future__ import annotations

from typing import Any

from kvscope.core.arrays import Float64s, Int32s
from kvscope.routers.base import Prompt, Router, View


class BestCached(Router):
    """Send each request to the replica that holds most of its prefix; of equals to the least busy.

    Knows every cache and forgets load, so it may queue everything on one replica.
    """

    name = "best-cached"
    summary = "the longest prefix held, every cache known"
    source = "kvscope"
    sees = "truth"
    reference = True

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the replica with most leading blocks cached."""
        cached, own = view.truth.cached_blocks, view.own
        best = 0
        for replica in range(1, view.replicas):
            if cached[replica] != cached[best]:
                better = cached[replica] > cached[best]
            elif own.in_flight[replica] != own.in_flight[best]:
                better = own.in_flight[replica] < own.in_flight[best]
            else:
                better = own.processed[replica] < own.processed[best]
            if better:
                best = replica
        return best
