"""What policies are told of the traffic: numbers from its past alone, never from its future.

The estimators are those of `kvscope.reuse_models`; here the traffic is cut into windows for them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvscope.learning.ends.offline import end_tables
from kvscope.learning.offline.refits import categories_of, refits_of, seen_by
from kvscope.learning.returns.offline import return_tables
from kvscope.learning.reuse.formulas import WINDOW_REFITS, reuse_values
from kvscope.policies.base import REFIT, REFIT_S, Policy
from kvscope.replay.replay import NO_TABLES, Tables
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

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def parameters_from(traffic: Traffic, share: float = FIT_SHARE) -> Mapping[str, float]:
    """Values for the parameters that a policy leaves to the trace, from its first requests.

    `next_prompt_tokens`: the mean of the next prompts. `turn_rate_per_s` and `death_rate_per_s`:
    the conversation model, by maximum likelihood with deaths unseen. What `share` of the requests
    does not show keeps the policy's own default.
    Source: Tail-Optimized Caching for LLM Inference, section 4 (Q) and Definition 1.
    """
    seen = int(len(traffic.leaf) * share)
    parent, arrival_s = traffic.parent[:seen], traffic.arrival_s[:seen]
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


def tables_for(traffic: Traffic, policy: type[Policy], refit_s: float | None = None) -> Tables:
    """The tables that a policy wants, refitted every `refit_s`, or as often as its default says."""
    if policy.table is None:
        return NO_TABLES
    if refit_s is None:
        refit_s = policy().values.get(REFIT.name, REFIT_S)
    tables = {
        "reuse": reuse_tables,
        "next-prompts": next_prompt_tables,
        "returns": return_tables,
        "ends": end_tables,
    }
    return tables[policy.table](traffic, refit_s)


def reuse_tables(traffic: Traffic, refit_s: float = REFIT_S) -> Tables:
    """Reuse probability, rate and lifetime of each category, as `Wa` reads them.

    The defective exponential of the blocks touched within the window, right-censored at its end;
    and their mean lifetime. Each is drawn to that of all categories together as by some blocks
    more; before anything was seen all categories are alike.
    """
    refits = refits_of(traffic, refit_s)
    seen = seen_by(traffic, refits, refit_s)
    return Tables(refits.since, reuse_values(seen.waits, seen.taken))


def next_prompt_tables(traffic: Traffic, refit_s: float = REFIT_S) -> Tables:
    """Equally likely next prompts (tokens) of each category, as `Etlru` reads them.

    Those seen in the window after turns of the category; after turns of any category where it has
    fewer than the values asked for.
    """
    child = np.flatnonzero(traffic.parent >= 0)
    added, of = _added(traffic, child), traffic.category[traffic.parent[child]]
    refits = refits_of(traffic, refit_s)
    categories = categories_of(traffic)
    values = np.full((len(refits.number), categories, VALUES), _UNKNOWN_PROMPT_TOKENS)
    when = refits.bin[child]
    for row, number in enumerate(refits.number):
        window = slice(*np.searchsorted(when, (number - WINDOW_REFITS, number)))
        recent, whose = added[window], of[window]
        if len(recent):
            values[row] = NextPrompt().fit(recent).values_
        for category in np.flatnonzero(np.bincount(whose, minlength=categories) >= VALUES):
            values[row, category] = NextPrompt().fit(recent[whose == category]).values_
    return Tables(refits.since, values)


def _added(traffic: Traffic, child: Ints) -> Floats:
    """Tokens that each turn added to the history before it."""
    before = traffic.parent[child]
    return added_tokens(child, before, traffic.input_tokens, traffic.history_tokens)
