"""Facts on where in the prompt reuse lies."""

from __future__ import annotations

from dataclasses import dataclass

from kvscope.characterize.facts.numbers import HeatMap, Rates, Summary, Turns


@dataclass(frozen=True, slots=True)
class PrefixDepth:
    """How deep an infinite cache hits: leading blocks, and the share of the prompt's tokens."""

    turns: Turns
    requests: int
    hit_blocks: Summary
    prompt_share: Summary


@dataclass(frozen=True, slots=True)
class Spatial:
    """Where in the prompt reuse lies: heat_map[offset][stride] is an ideal block hit rate.

    `None` maps: no full block was looked up by such requests.
    """

    offsets: Rates
    strides: Rates
    overall: HeatMap | None
    single_turn: HeatMap | None
    multi_turn: HeatMap | None
    prefix_depth: tuple[PrefixDepth, ...]
