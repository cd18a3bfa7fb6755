"""Ctrl-C without losing what is finished."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event


@contextmanager
def stop_on_interrupt() -> Iterator[Event]:
    """An event that Ctrl-C sets while the block runs; a second Ctrl-C interrupts as usual."""
    stop = Event()
    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield stop
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        stop.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
