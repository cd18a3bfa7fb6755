"""Belady: the offline optimum for hits."""

from __future__ import annotations

from kvscope.policies.base import NextUsePolicy


class Belady(NextUsePolicy):
    """Evict the block that is hit last or never; new blocks need not be cached.

    Key (-next request that could hit the block, r, -d). A touch that cannot hit, as beyond the
    last-token rule, is no reason to keep a block. The order among blocks that are never hit changes
    no hit.
    Source: Belady, IBM Systems Journal 1966, with bypass.
    """

    name = "belady"
    summary = "the optimum for hits: needed last, leaves first"
    source = "Belady 1966"
