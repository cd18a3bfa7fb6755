"""Where to measure: pairs of (uncached, cached) tokens that tell the profile's parameters apart."""

from __future__ import annotations

from typing import NamedTuple

from kvscope.core.errors import UsageError

LEAST = 64
ALIGNED = 256  # a multiple of every usual block size: only full blocks are cached
_CACHED_SHARES = (1 / 8, 1 / 2, 3 / 4)


class Cell(NamedTuple):
    """A prompt of `cached` tokens that are cached and `uncached` ones that are not."""

    uncached: int
    cached: int


def grid(longest: int) -> tuple[Cell, ...]:
    """The cells for prompts of up to `longest` tokens.

    Cold prompts double from 64 on, which tells b, a and the curvature; behind three cached prefixes
    every other of them, which tells the price of attending to what is cached. Raises UsageError
    where `longest` leaves no room for that.
    """
    if longest < 2 * ALIGNED:
        raise UsageError(
            f"prompts of {longest} tokens are too short to tell anything",
            where="--max-tokens",
            remedy=f"measure at least {2 * ALIGNED}",
        )
    cold = [LEAST]
    while 2 * cold[-1] < longest:
        cold.append(2 * cold[-1])
    cold.append(longest)
    prefixes = {int(longest * share) // ALIGNED * ALIGNED for share in _CACHED_SHARES} - {0}
    behind = [
        Cell(uncached, cached)
        for cached in sorted(prefixes)
        for uncached in cold[::2]
        if uncached + cached <= longest
    ]
    return (*(Cell(uncached, 0) for uncached in cold), *behind)
