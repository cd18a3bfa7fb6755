"""All facts of one trace."""

from __future__ import annotations

from dataclasses import dataclass

from kvscope.characterize.facts.gaps import ReuseGaps, ReuseHazard
from kvscope.characterize.facts.lifetimes import Lifetimes, WorkingSet
from kvscope.characterize.facts.sources import Skew, Sources
from kvscope.characterize.facts.spatial import Spatial
from kvscope.characterize.facts.stability import Stability
from kvscope.characterize.facts.traffic import (
    Category,
    Contribution,
    Lengths,
    OverTime,
    RequestSize,
)
from kvscope.characterize.facts.turns import ConversationTurns, NextTurns
from kvscope.facts import Trace


@dataclass(frozen=True, slots=True)
class Characterization:
    """All that characterization says of one trace. None: nothing to say it from.

    Reuse needs block hashes; turns need a lineage.
    """

    trace: Trace
    lengths: Lengths
    request_sizes: tuple[RequestSize, ...]
    over_time: OverTime
    contribution: Contribution
    categories: tuple[Category, ...]
    turns: ConversationTurns | None
    next_turns: NextTurns | None
    sources: Sources | None
    skew: Skew | None
    reuse_gaps: ReuseGaps | None
    reuse_hazard: ReuseHazard | None
    lifetimes: Lifetimes | None
    spatial: Spatial | None
    working_set: WorkingSet | None
    stability: Stability
