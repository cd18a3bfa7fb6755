"""The replica with the fewest requests in flight."""

from __future__ import annotations

from typing import Any

from kvscope.core.arrays import Float64s, Int32s
from kvscope.routers.base import Prompt, Router, View, least_loaded


class LeastRequests(Router):
    """Send each request to the replica with the fewest in flight; of equals that with fewer so far.

    Source: Envoy, load balancing policies, weighted least request (all hosts compared).
    """

    name = "least-requests"
    summary = "the replica with the fewest requests in flight"
    source = "Envoy, NGINX least_conn"
    sees = "load"

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the least loaded replica."""
        return least_loaded(view.own.in_flight, view.own.processed)
