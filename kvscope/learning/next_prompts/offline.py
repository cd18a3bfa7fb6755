"""Learn from a trace how long next prompts are, and how often they come.

The estimators are those of `kvscope.reuse_models`, applied to windows of the traffic. Each number
rests on the past alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvscope.core.arrays import Float64s, Int64s
from kvscope.learning.offline.features import categories_of, refits_by_time
from kvscope.learning.offline.learners import OfflineLearner
from kvscope.learning.reuse.formulas import WINDOW_REFITS
from kvscope.policies.base import REFIT_S
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import Traffic
from kvscope.reuse_models.conversation import (
    VALUES,
    NextPrompt,
    added_tokens,
    next_turn_s,
    turn_and_death_rates,
    turn_waits,
)

FIT_SHARE = 0.2
_UNKNOWN_PROMPT_TOKENS = 256.0


class NextPromptsOffline(OfflineLearner):
    """Tables with 16 equally likely next-prompt lengths (tokens) for each category."""

    def tables(self, traffic: Traffic, every: float = REFIT_S) -> Tables:
        """Return a table for each refit, one every `every` seconds, fitted to six periods before.

        A row has the equally likely lengths (tokens) of the next prompts after turns of one
        category. If fewer than 16 of these came in the six periods, it has the lengths after turns
        of any category; without any next prompt, all lengths are 256 tokens.
        """
        child = np.flatnonzero(traffic.parent >= 0)
        added, category_of = _added(traffic, child), traffic.category[traffic.parent[child]]
        refits = refits_by_time(traffic, every)
        categories = categories_of(traffic)
        values = np.full((len(refits.number), categories, VALUES), _UNKNOWN_PROMPT_TOKENS)
        when = refits.bin[child]
        for row, number in enumerate(refits.number):
            window = slice(*np.searchsorted(when, (number - WINDOW_REFITS, number)))
            recent, own = added[window], category_of[window]
            if len(recent):
                values[row] = NextPrompt().fit(recent).values_
            for category in np.flatnonzero(np.bincount(own, minlength=categories) >= VALUES):
                values[row, category] = NextPrompt().fit(recent[own == category]).values_
        return Tables.of(refits.since, values)


LEARNER = NextPromptsOffline()


def conversation_parameters(traffic: Traffic, share: float = FIT_SHARE) -> Mapping[str, float]:
    """Return estimates of a policy's conversation parameters from the first `share` of requests.

    `next_prompt_tokens`: the mean of the next prompts. `turn_rate_per_s` and `death_rate_per_s`:
    rates of next turns and of ends of conversations, by maximum likelihood with ends unobserved.
    Empty if these requests do not determine them.
    Source: Tail-Optimized Caching for LLM Inference, section 4 (Q) and Definition 1.
    """
    first = int(len(traffic.leaf) * share)
    parent, arrival_s = traffic.parent[:first], traffic.arrival_s[:first]
    child = np.flatnonzero(parent >= 0)
    if not len(child):
        return {}
    next_s = next_turn_s(parent, arrival_s)
    end_s = float(np.nextafter(arrival_s[-1], np.inf))
    rates = turn_and_death_rates(turn_waits(arrival_s, next_s, end_s).merged())
    if rates is None or not np.any(next_s[parent[child]] > arrival_s[parent[child]]):
        return {}
    return {
        "next_prompt_tokens": NextPrompt().fit(_added(traffic, child)).mean_,
        "turn_rate_per_s": rates.turn_per_s,
        "death_rate_per_s": rates.death_per_s,
    }


def _added(traffic: Traffic, child: Int64s) -> Float64s:
    """Return the tokens, at least 0, that each turn in `child` added to the history before it.

    `child` has the numbers of requests that follow another turn.
    """
    before = traffic.parent[child]
    return added_tokens(child, before, traffic.input_tokens, traffic.history_tokens)
