"""A part of a trace that one engine can serve: whole conversations, at the times that they had."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvscope.core.errors import InputError
from kvscope.core.trace import Prompts
from kvscope.replay.derived_traces import select


@dataclass(frozen=True, slots=True)
class Part:
    """The requests to replay, and how many were left out for which reason.

    `requests` are their places in the trace; `too_long` those that the engine could not hold.
    """

    prompts: Prompts
    of: int
    not_drawn: int
    later: int
    too_long: int


def part(
    prompts: Prompts,
    *,
    share: float = 1.0,
    seconds: float | None = None,
    most: int | None = None,
    longest: int | None = None,
    seed: int = 0,
) -> Part:
    """The part of a trace: a `share` of its conversations, of these the requests of the first
    `seconds`, of these the first `most`, and of these those of at most `longest` tokens.

    Conversations are drawn whole, and times stay, so that the load keeps its pattern. Raises
    InputError where nothing is left.
    """
    every = len(prompts.leaf)
    kept = np.ones(every, dtype=bool)
    if share < 1:
        known, member = np.unique(prompts.conversation, return_inverse=True)
        drawn = np.random.default_rng(seed).random(len(known)) < share
        kept &= drawn[member]
    not_drawn = int(every - kept.sum())
    if seconds is not None:
        kept &= prompts.arrival_s <= prompts.arrival_s[0] + seconds
    if most is not None:
        kept &= np.cumsum(kept) <= most
    later = int(every - not_drawn - kept.sum())
    if longest is not None:
        tokens = prompts.input_tokens.astype(np.int64) + np.maximum(prompts.output_tokens, 1)
        kept &= tokens <= longest
    kept &= prompts.input_tokens > 0
    chosen = np.flatnonzero(kept)
    if not len(chosen):
        raise InputError(
            "no request is left to replay",
            where="--share, --minutes, --max-requests",
            remedy="take more of the trace, or a larger --max-model-len",
        )
    return Part(
        prompts=select(prompts, chosen),
        of=every,
        not_drawn=not_drawn,
        later=later,
        too_long=every - not_drawn - later - len(chosen),
    )
