"""A fit as the rows that the store keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kvscope.core.percentiles import Quantiles
from kvscope.core.trace import Trace
from kvscope.store import results
from kvscope.store.db import Store

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ModelFit:
    """One model of one category over one stretch of time.

    `params` are those of F in S(t) = 1 - p F(t), `reuse_probability` is p, `interval` has both at
    95 %, None where the data do not tell. `n` touched blocks were watched, `censored` of them not
    seen reused, in `runs` runs of reuse; `effective_n` independent blocks would tell as much. `ks`
    is the largest distance from Kaplan-Meier as a share of the reuse, `aic` is by `effective_n`.
    """

    category: str
    model: str
    start_s: float
    end_s: float
    params: Mapping[str, float]
    interval: Mapping[str, Interval | None]
    n: int
    censored: int
    runs: int
    effective_n: float
    reuse_probability: float
    ks: float
    aic: float
    converged: bool
    chosen: bool


@dataclass(frozen=True, slots=True)
class Curve:
    """Probability that a touched block is reused within a time: as observed, and by each model."""

    at_s: tuple[float, ...]
    observed: tuple[float, ...]
    by_model: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class CategoryFit:
    """Which model to use for a category, and why; without one where its gaps are too few."""

    category: str
    n: int
    censored: int
    runs: int
    effective_n: float
    model: str | None
    fits: bool | None
    tolerance: float | None
    verdict: str
    curve: Curve | None


@dataclass(frozen=True, slots=True)
class WindowFit:
    """A category in one window: the exponential, and the chosen model where it is another.

    `ks` is the exponential's distance from the window's own reuse, `next_ks` from that of the next
    window that shares no time with it; `distance` that of the two windows' observed curves.
    `observed` follows the grid of `Windows.at_s`. What a window cannot tell is None.
    """

    category: str
    start_s: float
    end_s: float
    n: int
    censored: int
    runs: int
    effective_n: float
    reuse_probability: float
    rate_per_s: float
    ks: float
    next_ks: float | None
    distance: float | None
    params: Mapping[str, float]
    observed: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StabilityFit:
    """How alike a category's windows are, `pairs` of them: neighbours, or a day apart.

    `distance` is that between the observed curves of the two, as a share of the reuse; `by_chance`
    what two samples of one distribution of that size would show; `next_ks` the distance of the
    exponential fitted to the one from what the other shows. The others are coefficients of
    variation between all windows. `stable` is None where chance alone differs by more than matters.
    """

    category: str
    between: Literal["window", "day"]
    pairs: int
    distance: float
    largest_distance: float
    by_chance: float
    next_ks: float
    reuse_probability_variation: float
    mean_gap_variation: float
    stable: bool | None


@dataclass(frozen=True, slots=True)
class Windows:
    """Fits over sliding windows of `length_s`, one every `step_s`; curves are given at `at_s`."""

    length_s: float
    step_s: float
    at_s: tuple[float, ...]
    fits: tuple[WindowFit, ...]
    stability: tuple[StabilityFit, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The conversation model: births a second, turns and deaths a second while alive.

    `ks` is how far the waits for a next turn are from it.
    """

    birth_rate_per_s: float
    death_rate_per_s: float
    turn_rate_per_s: float
    next_turn_probability: float
    turns: float
    births: int
    requests: int
    ks: float
    fits: bool
    interval: Mapping[str, Interval | None]


@dataclass(frozen=True, slots=True)
class NextTurnFit:
    """Probability that another turn follows, unseen ones included: of a category, or of a turn.

    `continued` of `requests` were seen to go on. The interval is at 95 %. With too few turns that
    were continued, the probability is None.
    """

    category: str | None
    turn: int | None
    requests: int
    continued: int
    probability: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class NextPromptFit:
    """Tokens that a next turn adds, after a category or (None) after any.

    `values` are equally likely.
    """

    category: str | None
    n: int
    mean: float
    tokens: Quantiles
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """All that was fitted to a trace; without hashes only conversations, if at all."""

    trace: Trace
    warmup: float
    start_s: float
    end_s: float
    categories: tuple[CategoryFit, ...]
    models: tuple[ModelFit, ...]
    windows: Windows | None
    conversation: Conversation | None
    next_turns: tuple[NextTurnFit, ...]
    next_prompts: tuple[NextPromptFit, ...]

    def model_of(self, category: str) -> ModelFit | None:
        """The model chosen for a category."""
        return next((m for m in self.models if m.chosen and m.category == category), None)


def keep(store: Store, fit: Fit) -> int:
    """Store `fit`; its number there."""
    windows = fit.windows
    about = {
        "warmup": fit.warmup,
        "window_s": windows.length_s if windows else None,
        "start_s": fit.start_s,
        "end_s": fit.end_s,
        "conversations": _conversation(fit),
    }
    parts: Mapping[str, results.Rows] = {
        "models": [_model(one) for one in fit.models],
        "windows": [_window(one) for one in windows.fits] if windows else [],
        "next_prompts": [
            {"category": one.category, "n": one.n, "mean": one.mean, "values": list(one.values)}
            for one in fit.next_prompts
        ],
        "next_turns": [_next_turn(one) for one in fit.next_turns],
    }
    return results.add_fit(store, fit.trace, about, parts)


def _conversation(fit: Fit) -> dict[str, Any] | None:
    if fit.conversation is None:
        return None
    row = asdict(fit.conversation)
    intervals = _intervals(row.pop("interval"))
    return row | {"intervals": {"key": list(intervals), "value": list(intervals.values())}}


def _model(one: ModelFit) -> dict[str, Any]:
    row = asdict(one)
    return row | {"intervals": _intervals(row.pop("interval"))}


def _window(one: WindowFit) -> dict[str, Any]:
    row = asdict(one)
    del row["observed"]
    return row


def _next_turn(one: NextTurnFit) -> dict[str, Any]:
    row = asdict(one)
    del row["interval"]
    return row


def _intervals(found: Mapping[str, Interval | None]) -> dict[str, dict[str, float] | None]:
    return {
        name: None if interval is None else {"low": interval[0], "high": interval[1]}
        for name, interval in found.items()
    }
