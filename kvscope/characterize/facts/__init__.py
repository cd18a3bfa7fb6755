"""What characterization finds: frozen, typed, JSON-friendly, and nothing else.

Times are seconds from the trace's start, rates and shares fractions (0–1), quantiles nearest-rank.
`None` means "this trace cannot say": a length-only trace says nothing of reuse, a trace without
users nothing of users. Where a `category` is None, the row speaks of all requests.

One file a theme; everybody else imports them from here.
"""

from __future__ import annotations

from kvscope.characterize.facts.characterization import Characterization
from kvscope.characterize.facts.gaps import GapDistribution, HazardCurve, ReuseGaps, ReuseHazard
from kvscope.characterize.facts.lifetimes import (
    LifetimeDistribution,
    Lifetimes,
    WindowLifetime,
    WorkingSet,
)
from kvscope.characterize.facts.numbers import HeatMap, Rates, Summary, Turns
from kvscope.characterize.facts.sources import HeatCell, Skew, Sources, TopShare, UserSkew
from kvscope.characterize.facts.spatial import PrefixDepth, Spatial
from kvscope.characterize.facts.stability import Quantity, Stability, Variation
from kvscope.characterize.facts.traffic import (
    Category,
    Contribution,
    Lengths,
    OverTime,
    RequestSize,
    TrafficWindow,
    TypeContribution,
)
from kvscope.characterize.facts.turns import (
    CategoryNextTurn,
    ConversationTurns,
    NextTurn,
    NextTurns,
    TurnCount,
    UserTurns,
    WindowNextTurn,
)

__all__ = [
    "Category",
    "CategoryNextTurn",
    "Characterization",
    "Contribution",
    "ConversationTurns",
    "GapDistribution",
    "HazardCurve",
    "HeatCell",
    "HeatMap",
    "Lengths",
    "LifetimeDistribution",
    "Lifetimes",
    "NextTurn",
    "NextTurns",
    "OverTime",
    "PrefixDepth",
    "Quantity",
    "Rates",
    "RequestSize",
    "ReuseGaps",
    "ReuseHazard",
    "Skew",
    "Sources",
    "Spatial",
    "Stability",
    "Summary",
    "TopShare",
    "TrafficWindow",
    "TurnCount",
    "Turns",
    "TypeContribution",
    "UserSkew",
    "UserTurns",
    "Variation",
    "WindowLifetime",
    "WindowNextTurn",
    "WorkingSet",
]
