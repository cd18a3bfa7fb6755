"""T-LRU that has learned which conversations end."""

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

GOES_ON, ENDS_SOON = 0, 1  # what a request's class says of its conversation
HORIZON = Parameter(
    "horizon_s",
    600.0,
    "seconds within which the next turn has to come for a conversation to go on",
    low=1.0,
    high=1e9,
)


class TLruLearned(TLru):
    """End-aware T-LRU whose End bit is predicted: no hindsight.

    A conversation whose next turn is expected within `horizon_s` with less than some probability is
    taken to end: all that its latest turn touched last is TEL-safe. The probability is that of
    boosted trees on what is known when a request has been served (`kvscope.policies.chances`),
    learned anew every `refit_s` from the past. Which probability is too low is chosen at each refit
    by replaying the past in small caches, none (plain T-LRU) among the choices. The class of a
    request, GOES_ON or ENDS_SOON, takes the place of its category.
    Source: Tail-Optimized Caching for LLM Inference, section 5 (End-aware T-LRU, which is told);
    the prediction is our own.
    """

    name = "tlru-learned"
    summary = "T-LRU that learns from the past which conversations end"
    source = "T-LRU paper, section 5, with a learned end"
    adaptive = False
    table = "ends"
    parameters = (XI_TOKENS, NEXT_PROMPT_TOKENS, TTL, REFIT_OFTEN, HORIZON)

    @staticmethod
    def place(turn: Turn, block_size: int, p: Floats) -> tuple[int, int, int]:
        """All of a conversation that is taken to end; of others what T-LRU calls safe."""
        if turn.category == ENDS_SOON:
            return 0, SAFE, NEEDED
        needed = turn.history_tokens + p[NEXT_PROMPT] - p[XI]
        return first_safe_depth(needed, block_size), SAFE, NEEDED
