"""One trace as the store keeps it.

Names carry their units; `None` means "this trace cannot say".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Lineage = Literal["given", "inferred", "none"]


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace in a store. `trace_id` is the store's key, `name` the user's.

    Either may come to stand for something else once the trace is removed. `content_hash` never
    does: it digests what was read, and how.
    """

    trace_id: int
    name: str
    source: str
    format: str
    block_size: int
    requests: int
    accesses: int
    distinct_blocks: int
    span_s: float
    input_tokens: int
    output_tokens: int
    lineage: Lineage
    has_users: bool
    lines: int
    bad_lines: int
    out_of_order: int
    notes: tuple[str, ...]
    content_hash: str = ""

    @property
    def has_hashes(self) -> bool:
        """False for traces that only tell lengths: nothing about reuse can be said of them."""
        return self.accesses > 0
