"""T-LRU that predicts which conversations end."""

from __future__ import annotations

from kvscope.policies.base import TTL, Floats, Parameter, Turn
from kvscope.policies.gittins import REFIT_OFTEN
from kvscope.policies.tlru import (
    NEEDED,
    NEXT_PROMPT,
    NEXT_PROMPT_TOKENS,
    SAFE,
    XI,
    XI_TOKENS,
    TLru,
    first_safe_depth,
)

ENDS_SOON, GOES_ON = SAFE, NEEDED  # the first two classes; a table may have more
HORIZON = Parameter(
    "horizon_s",
    600.0,
    "seconds within which the next turn has to come for a conversation to go on",
    low=1.0,
    high=1e9,
)


class TLruLearned(TLru):
    """End-aware T-LRU whose End bit is predicted: no hindsight.

    A conversation whose next turn within `horizon_s` has less than some probability is predicted to
    end: all that its latest turn touched last is TEL-safe. Boosted trees estimate the probability
    from what is known when a request has been served (`kvscope.learning.ends.chances`), refitted
    every `refit_s` to the past. Each refit chooses the threshold by replaying the past in small
    caches, no threshold (plain T-LRU) among the choices; it applies to all conversations that wait
    then. A request's class, the thresholds between which its probability lies, takes the place of
    its category. The table has a row a class: 1 while it goes on, 0 while it is predicted to end,
    as ENDS_SOON always is.
    Source: Tail-Optimized Caching for LLM Inference, section 5 (End-aware T-LRU, which knows the
    ends); the prediction is our own.
    """

    name = "tlru-learned"
    summary = "T-LRU that learns from the past which conversations end"
    source = "T-LRU paper, section 5, with a learned end"
    adaptive = False
    by_category = True
    learner = "ends"
    parameters = (XI_TOKENS, NEXT_PROMPT_TOKENS, TTL, REFIT_OFTEN, HORIZON)

    @staticmethod
    def place(turn: Turn, block_size: int, p: Floats) -> tuple[int, int, int]:
        """Return the safe lane for what T-LRU calls safe, the lane of the class for the rest."""
        if turn.category == ENDS_SOON:
            return 0, SAFE, GOES_ON
        needed = turn.history_tokens + p[NEXT_PROMPT] - p[XI]
        return first_safe_depth(needed, block_size), SAFE, turn.category

    @staticmethod
    def score(lane: int, idle_s: float, p: Floats, table: Floats) -> float:
        """Return 0 for safe blocks and classes predicted to end, however recent, else 1."""
        return 0.0 if lane == SAFE else float(table[lane, 0])
