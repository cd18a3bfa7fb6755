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
    """Receives every event of a scheduler; an error of its own stops it, never the engine.

    The engine only calls `tell`, with the name of an event; an observer has a method for each event
    that it handles. No method may change the request. Events: `arrived` (request), `stepping`
    before a step is planned, `admitted` (request id, hit tokens; the first time only), `updating`
    and `updated` before and after a step's outputs are processed, `releasing` (request) before its
    blocks are freed, `put_off` (blocks) if freed later, `released` after freeing, and `closing`.
    """

    what = "kvscope"
    broken = False

    def tell(self, event: str, *of: Any) -> None:
        """Pass an event to the method of its name, if there is one. Never raises."""
        if self.broken:
            return
        try:
            if (handle := getattr(self, event, None)) is not None:
                handle(*of)
        except Exception as error:  # noqa: BLE001  (the engine goes on whatever this is)
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Stop observing, and log the error once."""
        if self.broken:
            return
        self.broken = True
        log.error(
            "%s; the engine continues without. Please report this:", self.what, exc_info=error
        )
        try:
            self.give_up()
        except Exception:
            log.exception("%s could not be undone", self.what)

    def give_up(self) -> None:
        """Leave the engine as if this observer had never been there."""
