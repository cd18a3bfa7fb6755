"""LRU's hit rate at every capacity, the landmarks of its curve, and the causes of misses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.core.hits import HitDefinition, side_by_side, standard
from kvscope.core.records import Beside
from kvscope.ingest.clocks import SessionStarts
from kvscope.replay.curve import HitCurve
from kvscope.replay.misses import MissReasons, at_capacity
from kvscope.replay.path_facts import PathFacts

LANDMARKS = (0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
CURVE_POINTS = 48


class HitRate(Struct, frozen=True):
    """A definition of a hit, and the hit rate (`ideal`, 0-1) of an infinite cache under it.

    `definition` is its name; `window` says which requests count: "whole" or, after a warm-up, such
    as "last 50%". `partial`: partial last blocks are cacheable; `last_token_rule`: the last token
    is always computed; `flat`: a block may hit even if blocks before it miss.
    """

    definition: str
    weight: str
    window: str
    partial: bool
    last_token_rule: bool
    outputs: str
    flat: bool
    ideal: float


class CurvePoint(Struct, frozen=True):
    """LRU's hit rates at one capacity; a size is None where the model or HBM size is unknown."""

    capacity_blocks: int
    capacity_tokens: int
    capacity_bytes: int | None
    hbm_multiple: float | None
    token_hit_rate: float
    block_hit_rate: float


class Landmark(Struct, frozen=True):
    """The least capacity with which LRU reaches a share of the ideal hit rate.

    `gpus` is the fewest GPUs, in whole replicas, whose pools hold that capacity, None without a
    deployment. `price_hour` is the price of all these GPUs for an hour, in the currency of the
    stated GPU price; None if that is unknown.
    """

    share_of_ideal: float
    point: CurvePoint
    gpus: int | None = None
    price_hour: float | None = None


class Caching(Struct, frozen=True):
    """LRU's hit rates at every capacity: the exact curve `lru` in the weight of `definition`.

    `asked` are capacities that the user named. `misses` at these and at the landmarks count tokens
    under `misses_definition`, as does the exact curve `lru_by_token`. The fields marked `Beside`
    are not in the JSON document.
    """

    definition: HitDefinition
    ideal_hit_rate: float
    hit_rates: tuple[HitRate, ...]
    curve: tuple[CurvePoint, ...]
    landmarks: tuple[Landmark, ...]
    asked: tuple[CurvePoint, ...]
    misses: tuple[MissReasons, ...]
    misses_definition: Beside[HitDefinition]
    lru: Beside[HitCurve]
    lru_by_token: Beside[HitCurve]

    @property
    def ideal(self) -> float:
        """The hit rate of an infinite cache, in the weight of `definition`."""
        return self.ideal_hit_rate

    def misses_at(self, capacity_blocks: int) -> MissReasons:
        """Return the hits and misses under LRU at any capacity, exact, in input tokens."""
        return at_capacity(self.misses[-1], self.lru_by_token, capacity_blocks)

    def rate(self, point: CurvePoint) -> float:
        """Return the hit rate at `point`, in the weight of `definition`."""
        return point.block_hit_rate if self.definition.weight == "block" else point.token_hit_rate


class LayoutCapacity(SessionStarts, frozen=True):
    """Other start times of sessions, and the blocks with which LRU gets 90 % of the ideal hits.

    Where sessions have no common clock, their start times are assumed: the range of
    `capacity_blocks` over several of these records shows how much depends on that assumption.
    """

    capacity_blocks: int


def caching(paths: PathFacts, definition: HitDefinition, named: Sequence[int]) -> Caching:
    """Return LRU's curve, ideal rates by definition, and the causes of misses at some capacities.

    The capacities reach a share of the ideal rate (`LANDMARKS`), or are `named` (blocks).
    """
    block_size = paths.block_size
    # Why tokens missed is told of whole prompts of the whole trace, whatever is counted elsewhere.
    explained = standard(outputs=definition.outputs)
    compared = side_by_side(definition)
    followed = paths.follow([definition, explained], compared)

    by_token = followed.curve(replace(definition, weight="token"))
    by_block = followed.curve(replace(definition, weight="block"))
    headline = by_block if definition.weight == "block" else by_token

    def points(capacities: NDArray[np.int64]) -> tuple[CurvePoint, ...]:
        rates = zip(capacities, by_token.rate(capacities), by_block.rate(capacities), strict=True)
        return tuple(
            CurvePoint(
                int(blocks), int(blocks) * block_size, None, None, float(token), float(block)
            )
            for blocks, token, block in rates
        )

    at = [headline.capacity_for(share * headline.ideal) for share in LANDMARKS]
    largest = max(int(headline.knots[-1]), 1)
    grid = np.unique(np.geomspace(1, largest, CURVE_POINTS).round().astype(np.int64))
    return Caching(
        definition=definition,
        ideal_hit_rate=headline.ideal,
        hit_rates=tuple(_hit_rate(each, followed.ideal_rate(each)) for each in compared),
        curve=points(grid),
        landmarks=tuple(map(Landmark, LANDMARKS, points(np.array(at)))),
        asked=points(np.array(named, dtype=np.int64)),
        misses=followed.misses(explained, sorted({*at, *named})),
        misses_definition=explained,
        lru=headline,
        lru_by_token=by_token if definition == explained else followed.curve(explained),
    )


def _hit_rate(definition: HitDefinition, ideal: float) -> HitRate:
    return HitRate(
        definition=definition.name,
        weight=definition.weight,
        window="whole" if not definition.warmup else f"last {1 - definition.warmup:.0%}",
        partial=definition.partial,
        last_token_rule=definition.last_token_rule,
        outputs=definition.outputs,
        flat=definition.flat,
        ideal=ideal,
    )
