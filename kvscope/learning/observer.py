"""Watch an engine's scheduler; stop for good after the first error of its own."""

from __future__ import annotations

import logging
from typing import Any, TypeAlias

Request: TypeAlias = Any  # an engine's request; vLLM's names are those of vllm/v1/request.py

log = logging.getLogger("vllm.kvscope")  # below vLLM's own logger, which has the handlers

# How a line of the log begins where blocks leave by vLLM's own order though a policy is set.
NOTHING = "kvscope does nothing, and vLLM evicts by LRU"
UNFIT = "kvscope leaves the eviction order to vLLM"


class Observer:
    """Receives every event of a scheduler; an error inside ends it, never the engine.

    The engine calls `tell` alone, with the name of one of the events below. None of them may change
    the request.
    """

    what = "kvscope"
    broken = False

    def tell(self, event: str, *of: Any) -> None:
        """Handle an event. Never raises."""
        if self.broken:
            return
        try:
            getattr(self, event)(*of)
        except Exception as error:  # noqa: BLE001  (the engine goes on whatever this is)
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Stop observing, and log the error once."""
        if self.broken:
            return
        self.broken = True
        log.error("%s; the engine goes on without. Please report this:", self.what, exc_info=error)
        try:
            self.give_up()
        except Exception:
            log.exception("%s could not be undone", self.what)

    def give_up(self) -> None:
        """Leave the engine as if this observer had never been there."""

    def arrived(self, request: Request) -> None:
        """Take in a new request."""

    def stepping(self) -> None:
        """Prepare for a step that is about to be planned."""

    def admitted(self, request_id: str, hit_tokens: int) -> None:
        """Note a first admission, with the tokens found in the cache."""

    def updating(self) -> None:
        """Prepare for the outputs of a step."""

    def updated(self) -> None:
        """Note that the outputs of a step have been processed."""

    def releasing(self, request: Request) -> None:
        """Prepare for a request's blocks to be freed: it has finished, or is preempted."""

    def put_off(self, blocks: list[Any]) -> None:
        """Note that the blocks of the request being released will be freed later."""

    def released(self) -> None:
        """Note that a request's blocks have been freed."""

    def closing(self) -> None:
        """Close what is open: the engine shuts down."""
