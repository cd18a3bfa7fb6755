"""The facts that cross from one room to another: frozen, typed, and nothing else.

Names carry their units. Rates are fractions (0–1); `None` means "this trace cannot say".
The JSON documents of `--json` are these dataclasses, field by field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Lineage = Literal["given", "inferred", "none"]
Weight = Literal["token", "block", "request"]
Outputs = Literal["carried", "ignored"]


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace in a store. `trace_id` is the store's key, `name` the user's."""

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

    @property
    def has_hashes(self) -> bool:
        """False for traces that only tell lengths: nothing about reuse can be said of them."""
        return self.accesses > 0


@dataclass(frozen=True, slots=True)
class HitDefinition:
    """What exactly a hit rate counts: the same trace has as many hit rates as definitions.

    `warmup` is the share of the requests, the first ones, that fill the cache and are not counted.
    `partial` keeps a partial last block cacheable; `last_token_rule` recomputes the last token as
    vLLM does, so at most floor((I - 1) / B) blocks hit; `flat` treats every block as an object of
    its own, hit or not whatever became of the blocks before it.
    """

    name: str
    weight: Weight = "token"
    warmup: float = 0.0
    partial: bool = False
    last_token_rule: bool = True
    outputs: Outputs = "carried"
    flat: bool = False


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Nearest-rank quantiles of some quantity; the field that holds them names the unit."""

    p50: float
    p80: float
    p90: float
    p99: float
