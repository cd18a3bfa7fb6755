"""The replica of the conversation."""

from __future__ import annotations

from typing import Any

from kvscope.core.arrays import Float64s, Int32s
from kvscope.routers.base import Prompt, Router, View, mix32


class Session(Router):
    """Send all turns of a conversation to one replica, drawn by a hash of its key.

    The key is the number of the conversation's first request, so it stays the same when the trace
    grows. Real routers hash a header; which replica that gives differs, how evenly does not.
    Source: vLLM production-stack a6c01db0, src/vllm_router/routers/routing_logic.py
    (SessionRouter).
    """

    name = "session"
    aliases = ("session-affinity",)
    summary = "all turns of a conversation to one replica"
    source = "session affinity by header or cookie"
    sees = "order"
    needs = "keys"

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the replica that the conversation's key falls on."""
        return (mix32(prompt.key) * view.replicas) >> 32
