"""Steps of decoding: the time of one token for each request of a batch, and a fit to it.

    seconds = decode_base_s + decode_request_s x batch + decode_context_token_s x batch x context

The terms, parameters of a latency profile, are the cost of a step (reading the weights), of each
request, and of reading the keys and values of each request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s

BATCHES = (1, 8, 32, 128)
_SHORT = 256  # a multiple of every usual block size: only full blocks are cached
_LONG = 2048  # enough to tell what a token of context costs; filling the cache takes longer
PARAMETERS = ("decode_base_s", "decode_request_s", "decode_context_token_s")


class Step(NamedTuple):
    """A step in which `batch` requests with `context` earlier tokens each get one token."""

    batch: int
    context: int


def steps(longest: int, free_tokens: int, most: int = BATCHES[-1]) -> tuple[Step, ...]:
    """Return the steps to measure, whose contexts fit in `free_tokens` of KV memory together.

    Steps have up to `most` requests. Contexts have 256 tokens, or about half of `longest` tokens
    (the longest prompt; at most 2,048), and room for 256 more.
    """
    contexts = sorted({_SHORT, max(min(longest // 2, _LONG) // _SHORT, 1) * _SHORT})
    every = (Step(batch, context) for batch in BATCHES if batch <= most for context in contexts)
    return tuple(step for step in every if step.batch * (step.context + _SHORT) <= free_tokens)


class StepFit(Struct, frozen=True):
    """One step of decoding: `n` measurements, their median, and the time by the parameters, in s.

    `off` is (fitted - median) / median.
    """

    DOCUMENT: ClassVar[str] = "batch context_tokens=context n step_ms=median_s fitted_ms off"
    batch: int
    context: int
    n: int
    median_s: float
    fitted_s: float
    off: float


class DecodingFit(Struct, frozen=True):
    """Fitted parameters by their names in a profile, in seconds, and the measured steps."""

    parameters: Mapping[str, float]
    steps: tuple[StepFit, ...]

    @property
    def worst(self) -> StepFit:
        """Return the step with the largest relative error of the fit."""
        return max(self.steps, key=lambda step: abs(step.off))


def fit_steps(step_s: Mapping[Step, Sequence[float]]) -> DecodingFit | None:
    """Return the fit to the medians (s); None for one batch size or context, or a base of 0."""
    times = {step: float(np.median(each)) for step, each in step_s.items() if len(each)}
    if len({step.batch for step in times}) < 2 or len({step.context for step in times}) < 2:
        return None
    batch, context = np.array(list(times), dtype=float).T
    medians = np.array(list(times.values()))
    terms = np.column_stack((np.ones_like(batch), batch, batch * context))
    values = least_squares(terms, medians)
    if not values[0]:
        return None  # a profile without a base decodes like a prompt
    fitted = terms @ values
    return DecodingFit(
        dict(zip(PARAMETERS, values.tolist(), strict=True)),
        tuple(
            StepFit(
                *step,
                n=len(step_s[step]),
                median_s=median_s,
                fitted_s=float(fitted_s),
                off=float(fitted_s / median_s - 1),
            )
            for (step, median_s), fitted_s in zip(times.items(), fitted, strict=True)
        ),
    )


def least_squares(terms: Float64s, times: Float64s) -> Float64s:
    """Return the parameters, none below 0, with the least sum of squared relative errors."""
    from scipy.optimize import nnls

    scaled = terms / times[:, None]
    size = np.linalg.norm(scaled, axis=0)  # terms differ by millions
    solution, _ = nnls(scaled / size, np.ones(len(times)))
    return np.asarray(solution / size)
