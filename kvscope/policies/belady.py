"""The optimum for hits."""

from __future__ import annotations

from kvscope.policies.base import NextUsePolicy


class Belady(NextUsePolicy):
    """What is needed again last, or never, leaves first; new blocks need not be kept.

    Key (-next request that could hit the block, r, -d). A touch that cannot hit, as beyond the
    last-token rule, brings the block back for nothing, so it is no reason to keep it. Which of the
    blocks that nobody hits again leaves first changes no hit.
    Source: Belady, IBM Systems Journal 1966, with bypass.
    """

    name = "belady"
    summary = "the optimum for hits: needed last, leaves first"
    source = "Belady 1966"
