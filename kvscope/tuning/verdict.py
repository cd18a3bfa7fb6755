"""The verdict: what to do, decided in one place from what was measured."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from kvscope.tuning.comparison import WindowTrial
from kvscope.tuning.target import Target

Verdict = Literal["switch", "keep-lru", "add-capacity", "unreachable", "overloaded"]


class Judged(Struct, frozen=True):
    """One policy at the present capacity, on the validation and on the held-out window."""

    validation: WindowTrial
    held_out: WindowTrial

    def meets(self, target: Target) -> bool:
        """Return whether the SLO is met on both windows."""
        return self.validation.meets(target) and self.held_out.meets(target)

    @property
    def keeps_up(self) -> bool:
        """Return whether the queue grows over neither window."""
        return self.validation.keeps_up and self.held_out.keeps_up


def decide(target: Target, lru: Judged, choice: Judged | None, infinite: WindowTrial) -> Verdict:
    """Return what to do with the present capacity.

    `choice` is the one contender chosen on the validation window, None if no contender may be
    recommended; the held-out window only accepts or rejects it. `infinite` is an infinite cache on
    the validation window.

    - overloaded: neither LRU nor the choice keeps up with the arrivals.
    - keep-lru: LRU meets the SLO on both windows.
    - switch: the choice meets it on both, and does no harm on either.
    - unreachable: even an infinite cache misses it.
    - add-capacity: otherwise.
    """
    accepted = choice is not None and not choice.held_out.harms and choice.keeps_up
    if not lru.keeps_up and not accepted:
        return "overloaded"
    if lru.keeps_up and lru.meets(target):
        return "keep-lru"
    if accepted and choice is not None and choice.meets(target):
        return "switch"
    if not infinite.meets(target):
        return "unreachable"
    return "add-capacity"
