"""What watches an engine's scheduler, and is silent for good after its first error."""

from __future__ import annotations

import logging
from typing import Any, TypeAlias

Request: TypeAlias = Any  # an engine's request; vLLM's names are those of vllm/v1/request.py

log = logging.getLogger("vllm.kvscope")  # below vLLM's own logger, which has the handlers

# How a line of the log begins where blocks leave by vLLM's own order though a policy was asked for.
NOTHING = "kvscope does nothing, and blocks leave by LRU"
UNFIT = "kvscope leaves the eviction order to vLLM"


class Observer:
    """Hears of everything that a scheduler does; an error inside ends it, never the engine.

    `tell` is all that the engine calls. The events, none of which may change the request: `arrived`
    (request), `stepping` before a step is planned, `admitted` (request id, hit tokens, its first
    time only), `updating` and `updated` before and after a step's outputs are taken in,
    `releasing` (request) before its blocks are freed, `put_off` (blocks) if that happens later
    only, `released` after that, and `closing`.
    """

    what = "kvscope"
    broken = False

    def tell(self, event: str, *of: Any) -> None:
        """Something happens. Never raises."""
        if self.broken:
            return
        try:
            getattr(self, event)(*of)
        except Exception as error:  # noqa: BLE001  (the engine goes on whatever this is)
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Give up, and say so once."""
        if self.broken:
            return
        self.broken = True
        log.error("%s; the engine goes on without. Please report this:", self.what, exc_info=error)
        try:
            self.give_up()
        except Exception:
            log.exception("%s could not be undone", self.what)

    def give_up(self) -> None:
        """Leave the engine as if this had never been there."""

    def arrived(self, request: Request) -> None:
        """A request is new."""

    def stepping(self) -> None:
        """A step is about to be planned."""

    def admitted(self, request_id: str, hit_tokens: int) -> None:
        """A request was let in for the first time, with so many tokens found in the cache."""

    def updating(self) -> None:
        """The outputs of a step are here."""

    def updated(self) -> None:
        """The outputs of a step have been taken in."""

    def releasing(self, request: Request) -> None:
        """A request's blocks are about to be freed: it has finished, or is preempted."""

    def put_off(self, blocks: list[Any]) -> None:
        """The blocks of the request being released will be freed later."""

    def released(self) -> None:
        """A request's blocks have been freed."""

    def closing(self) -> None:
        """The engine shuts down."""
