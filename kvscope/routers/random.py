"""Any replica."""

from __future__ import annotations

from kvscope.core.arrays import Float64s, Int32s
from kvscope.routers.base import Dice, Prompt, Router, View, draw


class Random(Router):
    """Send each request to a replica drawn evenly.

    Source: sglang-router 0.3.2, `--policy random`.
    """

    name = "random"
    summary = "any replica, drawn evenly"
    source = "every load balancer"
    sees = "order"
    draws = True

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Dice, p: Float64s) -> int:
        """Return a replica drawn from all."""
        return draw(memory.dice, view.replicas)
