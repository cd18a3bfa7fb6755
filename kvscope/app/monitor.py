"""How a use case reports progress, says what it notes, and is stopped: given by its caller."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Event
from typing import Literal, Protocol

Advance = Callable[[int], None]
Unit = Literal["bytes", "steps"]


class Monitor(Protocol):
    """What a use case is watched by: a terminal, a job of the dashboard, or nothing.

    `steps` opens a stretch of work, of `total` units where that is known; its callable counts them.
    `note` takes a sentence for the user. Once `stop` is set, no further work begins.
    """

    @property
    def stop(self) -> Event:
        """Set by the caller to end the work early."""

    def steps(
        self, label: str, total: int | None = None, *, unit: Unit = "steps"
    ) -> AbstractContextManager[Advance]:
        """Return a context in which the work called `label` advances."""

    def note(self, text: str) -> None:
        """Take a sentence for the user."""


class Silent:
    """A monitor that shows nothing."""

    def __init__(self) -> None:
        self.stop = Event()

    def steps(
        self, label: str, total: int | None = None, *, unit: Unit = "steps"
    ) -> AbstractContextManager[Advance]:
        """Return a context whose steps are not counted."""
        return nullcontext(_ignore)

    def note(self, text: str) -> None:
        """Drop the sentence."""


def _ignore(amount: int) -> None:
    """Count nothing."""
