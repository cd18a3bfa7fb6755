"""Facts on what arrives, how large it is, and who contributes the hits."""

from __future__ import annotations

from dataclasses import dataclass

from kvscope.characterize.facts.numbers import Summary, Turns
from kvscope.facts import Quantiles


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
class RequestSize:
    """Size of requests, input and output, in tokens and in the blocks that hold them.

    `bytes` of the tokens are known once a model is named, `hbm_multiple` once its memory is.
    """

    turns: Turns
    requests: int
    blocks: Summary
    tokens: Summary
    bytes: Summary | None = None
    hbm_multiple: Summary | None = None


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
