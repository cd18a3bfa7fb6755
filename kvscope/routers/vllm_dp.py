"""vLLM's own balancer between its data-parallel engines."""

from __future__ import annotations

from typing import Any, ClassVar

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import Prompt, Router, View

_FULL_PENALTY = 6.0
_RELAXED_USAGE = 0.5


class VllmDp(Router):
    """Send each request to the engine with the fewest requests; queues count more in full ones.

    score = max(in flight, waiting + running) + 6 * waiting * max(0, KV usage - 0.5), the lowest
    wins; of equals the first from engine k mod N on, for request k. In flight is the front-end's
    own count; waiting, running and KV usage are the coordinator's, published every scrape_s, and
    waiting grows by one with each request sent since. Caches play no part. One front-end process.
    Earlier releases took 4 * waiting + running.
    Source: vLLM 0.32.0, vllm/v1/engine/core_client.py (DPLBAsyncMPClient), coordinator.py.
    """

    name = "vllm-dp@0.32"
    aliases = ("vllm-dp",)
    summary = "fewest requests, waiting ones four times"
    source = "vLLM 0.32.0"
    sees = "load"
    counts_blocks = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("scrape_s", 0.1, "how often engines tell their load"),
    )

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the engine of the lowest score."""
        own, scraped = view.own, view.scraped
        best, lowest = 0, 0.0
        for turn in range(view.replicas):
            engine = (prompt.request + turn) % view.replicas
            sent = own.processed[engine] - scraped.processed[engine]
            waiting = scraped.waiting[engine] + sent
            usage = min(scraped.used_blocks[engine] / max(view.capacity_blocks, 1), 1.0)
            score = float(max(own.in_flight[engine], waiting + scraped.running[engine]))
            score += waiting * _FULL_PENALTY * max(0.0, usage - _RELAXED_USAGE)
            if turn == 0 or score < lowest:
                best, lowest = engine, score
        return best

    def flags(self) -> tuple[str, ...]:
        """Return the option of `vllm serve`, the number of engines left to fill in."""
        return ("--data-parallel-size N",)
