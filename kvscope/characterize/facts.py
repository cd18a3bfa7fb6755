"""What characterization finds: frozen, typed, JSON-friendly, and nothing else.

Times are seconds from the trace's start, rates and shares fractions (0–1), quantiles nearest-rank.
`None` means "this trace cannot say": a length-only trace says nothing of reuse, a trace without
users nothing of users. Where a `category` is None, the row speaks of all requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvscope.facts import Quantiles, Trace

Rates = tuple[float, ...]
HeatMap = tuple[Rates, ...]
Turns = Literal["all", "single", "multi"]
Quantity = Literal["ideal_hit_rate", "reuse_gap_p50_s", "reuse_gap_p80_s", "next_turn_probability"]


@dataclass(frozen=True, slots=True)
class Summary:
    """One distribution in six numbers; the field that holds it names the unit."""

    mean: float
    p50: float
    p80: float
    p90: float
    p99: float
    max: float

    @property
    def quantiles(self) -> Quantiles:
        """The four quantiles alone, as the JSON documents carry them."""
        return Quantiles(self.p50, self.p80, self.p90, self.p99)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths and arrivals; rates are None for a trace whose requests all arrive at once.

    `inter_arrival_cv` is the coefficient of variation of the time between arrivals: 1 for a Poisson
    process, more where requests come in bursts.
    """

    requests: int
    input_tokens: Summary
    output_tokens: Summary
    arrival_rate_per_s: float | None
    inter_arrival_cv: float | None
    single_turn_mean_tokens: float | None  # input and output
    multi_turn_mean_tokens: float | None


@dataclass(frozen=True, slots=True)
class TrafficWindow:
    """One window of time. Hit rates are ideal: those of an infinite cache."""

    start_s: float
    requests: int
    input_tokens: int
    output_tokens: int
    arrival_rate_per_s: float
    token_hit_rate: float | None
    block_hit_rate: float | None


@dataclass(frozen=True, slots=True)
class OverTime:
    """Traffic and ideal hits over time, in windows of `window_s`."""

    window_s: float
    windows: tuple[TrafficWindow, ...]


@dataclass(frozen=True, slots=True)
class TypeContribution:
    """What the single-turn (turn 1) or multi-turn (turn > 1) requests of one type contribute."""

    type: str
    multi_turn: bool
    requests: int
    request_share: float
    hit_tokens: int
    hit_blocks: int
    hit_share: float | None


@dataclass(frozen=True, slots=True)
class Contribution:
    """Ideal hit rates of the whole trace, and who contributes the hits."""

    token_hit_rate: float | None
    block_hit_rate: float | None
    multi_turn_request_share: float
    multi_turn_hit_share: float | None
    rows: tuple[TypeContribution, ...]


@dataclass(frozen=True, slots=True)
class HeatCell:
    """Blocks that one user reuses after another's touch; users ranked from 1 by what they reuse.

    `source_rank` and `source_user` are None for the touches of all users beyond the top ones.
    """

    source_rank: int | None
    reuser_rank: int
    source_user: int | None
    reuser_user: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Sources:
    """Whose touch reuse goes back to: shares of the reused blocks, which add up to 1.

    `same_user_share` is the same user in another conversation. `other_share` is cross-user reuse
    where users are known.
    """

    reused_blocks: int
    same_conversation_share: float | None
    same_user_share: float | None
    other_share: float
    heat_map: tuple[HeatCell, ...]


@dataclass(frozen=True, slots=True)
class TopShare:
    """The top `top_share` of blocks or users has `share` of the reuse or hits."""

    top_share: float
    share: float


@dataclass(frozen=True, slots=True)
class UserSkew:
    """How unevenly ideal hits and requests spread over users."""

    users: int
    hits: tuple[TopShare, ...]
    share_making_90_percent_of_hits: float | None
    share_making_90_percent_of_requests: float


@dataclass(frozen=True, slots=True)
class Skew:
    """How unevenly reuse spreads over cacheable blocks, and over users where they are known."""

    cacheable_blocks: int
    reused_block_share: float
    reuse: tuple[TopShare, ...]
    reuse_from_top_10_percent: float | None
    users: UserSkew | None


@dataclass(frozen=True, slots=True)
class TurnCount:
    """So many conversations have so many turns."""

    turns: int
    conversations: int


@dataclass(frozen=True, slots=True)
class UserTurns:
    """Each user's mean turns per conversation, and their standard deviation, over the users."""

    users: int
    mean: Summary
    deviation: Summary | None


@dataclass(frozen=True, slots=True)
class ConversationTurns:
    """Turns per conversation."""

    conversations: int
    turns: Summary
    single_turn_share: float
    histogram: tuple[TurnCount, ...]
    users: UserTurns | None


@dataclass(frozen=True, slots=True)
class NextTurn:
    """How often a request is followed by another turn.

    `probability` takes all requests, so the last ones pull it down: their next turn lies beyond the
    trace's end. `settled_probability` takes only requests old enough.
    """

    requests: int
    probability: float | None
    settled_requests: int
    settled_probability: float | None


@dataclass(frozen=True, slots=True)
class CategoryNextTurn:
    """The next turn after requests of one category."""

    category: str
    next_turn: NextTurn


@dataclass(frozen=True, slots=True)
class WindowNextTurn:
    """The next turn after requests of one category in one window; `settled`: old enough whole."""

    start_s: float
    category: str
    requests: int
    probability: float
    settled: bool


@dataclass(frozen=True, slots=True)
class NextTurns:
    """Probability of a next turn. A request is settled `settle_s` before the trace's end."""

    settle_s: float
    window_s: float
    overall: NextTurn
    after_first_turn: NextTurn
    after_later_turns: NextTurn
    by_category: tuple[CategoryNextTurn, ...]
    over_time: tuple[WindowNextTurn, ...]


@dataclass(frozen=True, slots=True)
class GapDistribution:
    """Reuse gaps of blocks last touched by one category; `cdf` runs along the grid."""

    category: str | None
    reused_blocks: int
    gap_s: Summary
    cdf: Rates


@dataclass(frozen=True, slots=True)
class ReuseGaps:
    """Reuse gaps, weighted by blocks, on the grid `at_s`; categories without reuse are absent."""

    at_s: Rates
    overall: GapDistribution | None
    by_category: tuple[GapDistribution, ...]


@dataclass(frozen=True, slots=True)
class HazardCurve:
    """Probability along the grid that a block is reused in the next second; None: none at risk."""

    category: str | None
    probability: tuple[float | None, ...]
    at_risk_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReuseHazard:
    """Reuse in the next second of blocks untouched for `at_s`."""

    at_s: Rates
    overall: HazardCurve | None
    by_category: tuple[HazardCurve, ...]


@dataclass(frozen=True, slots=True)
class LifetimeDistribution:
    """Lifetimes of the blocks first touched by one category, those never reused included as 0."""

    category: str | None
    blocks: int
    never_reused_share: float
    lifetime_s: Summary
    cdf: Rates


@dataclass(frozen=True, slots=True)
class WindowLifetime:
    """Mean lifetime of the blocks that one category first touched in one window."""

    start_s: float
    category: str
    blocks: int
    mean_s: float


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Lifetimes of cacheable blocks on the grid `at_s`, and over time."""

    at_s: Rates
    window_s: float
    overall: LifetimeDistribution | None
    by_category: tuple[LifetimeDistribution, ...]
    over_time: tuple[WindowLifetime, ...]


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


@dataclass(frozen=True, slots=True)
class RequestSize:
    """Size of requests, input and output, in tokens and in the blocks that hold them."""

    turns: Turns
    requests: int
    blocks: Summary
    tokens: Summary


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Blocks that will be reused, over time: the capacity that would lose none of them.

    `blocks[i]` is the peak between `at_s[i]` and `at_s[i + 1]` (the last: the trace's end).
    """

    peak_blocks: int
    mean_blocks: float
    p99_blocks: int
    at_s: Rates
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Category:
    """One category's row in the summary. Gaps and lifetimes are None where it has none."""

    category: str
    type: str
    turn_bucket: str
    requests: int
    share: float
    multi_turn_share: float
    mean_input_tokens: float
    mean_output_tokens: float
    reuse_gap_s: Quantiles | None
    lifetime_s: Quantiles | None
    next_turn_probability: float | None
    hit_share: float | None


@dataclass(frozen=True, slots=True)
class Variation:
    """How much one quantity varies between windows that have a value for it.

    `variation` is the coefficient of variation, deviation / mean; None where the mean is 0.
    """

    quantity: Quantity
    category: str | None
    windows: int
    mean: float
    deviation: float
    variation: float | None


@dataclass(frozen=True, slots=True)
class Stability:
    """Variation between equal windows; between days where the trace spans several."""

    window_s: float
    between_windows: tuple[Variation, ...]
    between_days: tuple[Variation, ...]


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
