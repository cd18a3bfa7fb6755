"""Which conversations are taken to end, by the trees that a file brings along."""

from __future__ import annotations

import numpy as np

from kvscope.engine.conversations import Told
from kvscope.engine.learning import Learner, computed_blocks
from kvscope.engine.observer import Request
from kvscope.engine.turns import Asked, Turns
from kvscope.policies.chances import chance
from kvscope.policies.fitted_ends import FittedEnds
from kvscope.policies.tlru_learned import ENDS_SOON, GOES_ON


class Ends(Learner):
    """For `tlru-learned`: whether a request's conversation goes on, by a table that stays."""

    def __init__(self, block_size: int, fitted: FittedEnds) -> None:
        self._block_size, self._fitted = block_size, fitted
        self._turns = Turns(fitted.window_s)
        self.table = np.array([[0.0], [1.0]])  # of ENDS_SOON and of GOES_ON
        self.in_words = (
            f"ends foreseen for {fitted.horizon_s:g} s ahead, taken below a chance of"
            f" {fitted.threshold:g}, fitted once to {fitted.requests} requests, not refitted,"
            " without the simulator's guard"
        )

    def arrive(self, request: Request, says: Told, arrival_s: float) -> tuple[bool, Asked]:
        """It touches its prompt."""
        full = request.num_prompt_tokens // self._block_size
        return False, self._turns.arrive(request.block_hashes[:full], arrival_s)

    def known(self, request: Request, of: Asked) -> tuple[float, ...]:
        """Its features by the output it has got until now, in the order of FEATURES."""
        full = request.num_prompt_tokens // self._block_size
        return (
            (full - of.known_blocks) * self._block_size,
            request.num_prompt_tokens,
            request.num_tokens - request.num_prompt_tokens,
            of.known_blocks / max(full, 1),
            of.turns,
            of.since_s,
            of.mean_gap_s,
            of.head_requests,
        )

    def category(self, request: Request, of: Asked) -> int:
        """Whether it is taken to end."""
        threshold = self._fitted.threshold
        if threshold > 0.0 and chance(self._fitted.trees, self.known(request, of)) < threshold:
            return ENDS_SOON
        return GOES_ON

    def end(self, request: Request, of: Asked) -> None:
        """It touches what it has been answered."""
        full = request.num_prompt_tokens // self._block_size
        more = request.block_hashes[full : computed_blocks(request, self._block_size)]
        self._turns.end(more, of.number)
