"""One replica after the other."""

from __future__ import annotations

from typing import Any

from kvscope.core.arrays import Float64s, Int32s
from kvscope.routers.base import Prompt, Router, View


class RoundRobin(Router):
    """Send request k to replica k modulo N.

    Source: NGINX, ngx_http_upstream_module, the default of equal weights.
    """

    name = "round-robin"
    aliases = ("rr",)
    summary = "one replica after the other"
    source = "every load balancer"
    sees = "order"

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the next replica in turn."""
        return prompt.request % view.replicas
