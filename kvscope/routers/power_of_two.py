"""The less busy of two replicas drawn."""

from __future__ import annotations

from kvscope.core.arrays import Float64s, Int32s
from kvscope.routers.base import Dice, Prompt, Router, View, draw


class PowerOfTwo(Router):
    """Draw two replicas, and send the request to the one with fewer in flight; if equal, the first.

    Source: smg 1.13 (lightseekorg/smg), model_gateway/src/policies/power_of_two.rs, with
    `--power-of-two-load-metric requests` of its launcher, wheel 1.13.0. Under this policy the older
    sglang-router 0.3.2 counts no requests: it draws, unless workers report tokens.
    """

    name = "power-of-two@1.13"
    aliases = ("power-of-two", "p2c")
    summary = "the less busy of two replicas drawn"
    source = "smg 1.13, power_of_two"
    sees = "load"
    draws = True

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Dice, p: Float64s) -> int:
        """Return the less busy of two different replicas."""
        if view.replicas == 1:
            return 0
        load = view.own.in_flight
        first = draw(memory.dice, view.replicas)
        second = (first + 1 + draw(memory.dice, view.replicas - 1)) % view.replicas
        return first if load[first] <= load[second] else second

    def flags(self) -> tuple[str, ...]:
        """Return the options of `python -m smg.launch_router`."""
        return ("--policy power_of_two", "--power-of-two-load-metric requests")
