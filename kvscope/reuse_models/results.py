"""Results of a fit, and their rows in the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from kvscope.core.percentiles import Quantiles
from kvscope.core.trace import Trace
from kvscope.store import results
from kvscope.store.db import Store

Interval = tuple[float, float]


class ModelFit(Struct, frozen=True):
    """One model of one category in one span of time; `chosen` if it is the one to use (`choose`).

    `params` are those of F in S(t) = 1 - p F(t), `reuse_probability` is p, `interval` has both by
    name at 95 %, None if the data leave it open. `n` touched blocks, `censored` of them not seen
    reused, in `runs` runs; `effective_n` is the equivalent in independent blocks. `ks` is the
    largest distance from Kaplan-Meier as a share of the reuse, `aic` is by `effective_n`.
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


class Curve(Struct, frozen=True):
    """Probability that a touched block is reused within each time: observed, and by model."""

    at_s: tuple[float, ...]
    observed: tuple[float, ...]
    by_model: Mapping[str, tuple[float, ...]]


class CategoryFit(Struct, frozen=True):
    """The model to use for a category, None if its gaps are too few, and the reason (`verdict`).

    `n` touched blocks, `censored` of them not seen reused, in `runs` runs of reuse; `effective_n`
    is the equivalent in independent blocks. `fits`: the model's KS distance from the observed reuse
    is at most `tolerance`, a share of the reuse. Both, and `curve`, are None without a model.
    """

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


class WindowFit(Struct, frozen=True):
    """A category in one window: fit of the exponential, and `params` of the chosen model.

    `ks` is the exponential's distance from the window's own reuse, `next_ks` from that of the next
    window without overlap, `distance` that between the two observed curves; both are None without
    such a window with enough evidence. `observed` follows the grid of `WindowFits.at_s`.
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


class StabilityFit(Struct, frozen=True):
    """The similarity of a category's windows in `pairs` of neighbours, or of windows a day apart.

    Mean distances, as shares of the reuse: `distance` between the two observed curves, `next_ks`
    from the exponential fitted to the first to the curve of the second, `by_chance` as expected
    between two samples of one distribution. The `..._variation` fields are coefficients of
    variation between all windows. `stable` is None if chance may explain a distance that is large.
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


class WindowFits(Struct, frozen=True):
    """Fits over sliding windows of `length_s`, one every `step_s`; curves are given at `at_s`."""

    length_s: float
    step_s: float
    at_s: tuple[float, ...]
    fits: tuple[WindowFit, ...]


class Conversation(Struct, frozen=True):
    """The conversation model: births per second, and turns and deaths per second while alive.

    `next_turn_probability` is that of another turn after any turn, and `turns` the mean number of
    turns of a conversation that follows from it. The fit is to `births` conversations begun and
    to `requests`, the waits of which for their next turn are at a distance of `ks` from the model;
    `fits` says whether that is within the tolerance. `interval` has 95 % intervals by field.
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


class NextTurnFit(Struct, frozen=True):
    """Probability that another turn follows, even after the trace's end: by category or by turn.

    One of `category` and `turn` is None. `continued` of `requests` have a next turn in the trace.
    `probability` and its `interval` (95 %) are None if too few are continued, `interval` also if
    the data leave it open.
    """

    category: str | None
    turn: int | None
    requests: int
    continued: int
    probability: float | None
    interval: Interval | None


class NextPromptFit(Struct, frozen=True):
    """Tokens that a next turn adds, after a turn of a category, or of any category (None).

    `values` are sixteen equally likely numbers of tokens.
    """

    category: str | None
    n: int
    mean: float
    tokens: Quantiles
    values: tuple[float, ...]


class Fit(Struct, frozen=True):
    """The results of `kvscope fit`. Fields on reuse are empty for a trace of lengths."""

    trace: Trace
    notes: tuple[str, ...]
    warmup: float
    start_s: float
    end_s: float
    categories: tuple[CategoryFit, ...]
    models: tuple[ModelFit, ...]
    windows: WindowFits | None
    stability: tuple[StabilityFit, ...]
    conversation: Conversation | None
    next_turns: tuple[NextTurnFit, ...]
    next_prompt_tokens: tuple[NextPromptFit, ...]

    def model_of(self, category: str) -> ModelFit | None:
        """Return the model chosen for a category."""
        return next((m for m in self.models if m.chosen and m.category == category), None)


def keep(store: Store, fit: Fit) -> int:
    """Store `fit` and return its number in the store."""
    windows = fit.windows
    conversation = None
    if fit.conversation is not None:
        intervals = _intervals(fit.conversation.interval)
        conversation = _without("interval", fit.conversation) | {
            "intervals": {"key": list(intervals), "value": list(intervals.values())}
        }
    about = {
        "warmup": fit.warmup,
        "window_s": windows.length_s if windows else None,
        "start_s": fit.start_s,
        "end_s": fit.end_s,
        "conversations": conversation,
    }
    parts: Mapping[str, results.Rows] = {
        "models": [
            _without("interval", model) | {"intervals": _intervals(model.interval)}
            for model in fit.models
        ],
        "windows": [_without("observed", window) for window in windows.fits] if windows else [],
        "next_prompts": [
            _without("tokens", prompt) | {"values": list(prompt.values)}
            for prompt in fit.next_prompt_tokens
        ],
        "next_turns": [_without("interval", turn) for turn in fit.next_turns],
    }
    return results.add_fit(store, fit.trace, about, parts)


def _without(name: str, row: Any) -> dict[str, Any]:
    return {field: value for field, value in asdict(row).items() if field != name}


def _intervals(
    by_parameter: Mapping[str, Interval | None],
) -> dict[str, dict[str, float] | None]:
    return {
        name: interval and dict(zip(("low", "high"), interval, strict=True))
        for name, interval in by_parameter.items()
    }
