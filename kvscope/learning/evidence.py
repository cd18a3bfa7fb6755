"""The evidence on a guard's candidates, and the guard's decision, request by request.

The same functions run in a kernel over a whole trace and, with lists, in an engine's process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s
from kvscope.core.jit import callable_in_kernels
from kvscope.policies.base import SLO_TOKENS, TOKENS_PER_S

FALLBACK = 0  # the candidate in force without evidence for another: LRU

CHANCE = 1 / 3  # of ever taking up one candidate that is no better: see `sure_gain`
GAIN_TURNOVERS, LOSS_TURNOVERS = 4.0, 2.0  # of the cache, after which evidence counts half
LEAST_REQUESTS = 128  # a turnover has no fewer
DEVIATIONS_LOST = 1.5
BETTER = 1.02  # times the gain of the one in force: what another one needs
_SURE = -2.0 * math.log(CHANCE)


class Goal(NamedTuple):
    """Thresholds by which a guard compares candidates, for a cache of `capacity_blocks`.

    A guard counts each request's computed tokens beyond `xi_tokens`, which is half of `slo_tokens`
    for policies without a xi, and late requests. A request is late if the tokens that it computes,
    and those before it that it waits for, are more than `slo_tokens`. It waits for tokens of
    earlier requests that an engine which computes `tokens_per_s` has not finished when it arrives.
    With 0 `tokens_per_s` no request waits; with 0 `slo_tokens` none is late.
    """

    capacity_blocks: float
    xi_tokens: float
    slo_tokens: float
    tokens_per_s: float

    @classmethod
    def of(cls, values: Mapping[str, float], capacity_blocks: float, share: float = 1.0) -> Goal:
        """Return the thresholds for a policy's parameter `values`, any of which may be missing.

        `share` (0-1) of the requests are counted: it scales `tokens_per_s`, and nothing else.
        """
        slo_tokens = values.get(SLO_TOKENS.name, 0.0)
        return cls(
            capacity_blocks,
            values.get("xi_tokens", slo_tokens / 2),
            slo_tokens,
            share * values.get(TOKENS_PER_S.name, 0.0),
        )


class GuardEvidence(NamedTuple):
    """The evidence on C candidates, LRU the first; every sequence has C entries.

    A request's saving is the tokens beyond xi that LRU computed minus the candidate's. `gain` is
    the sum of savings, `square` that of their squares, `largest` the largest square, `loss` the
    fall of `gain` since its best. `late` counts requests late under LRU alone, less those late
    under the candidate alone; `late_square` is the sum of both. All are discounted with age.
    `backlog` are the tokens that the latest request computed and waited for.
    """

    gain: Float64s
    square: Float64s
    largest: Float64s
    loss: Float64s
    late: Float64s
    late_square: Float64s
    backlog: Float64s

    @classmethod
    def none(cls, candidates: int) -> GuardEvidence:
        """Return empty evidence on this number of `candidates`."""
        return cls(*np.zeros((len(cls._fields), candidates)))

    def discounted(self) -> GuardEvidence:
        """Return evidence to begin a new run with: sums halved, squares quartered, no backlog."""
        gain, square, largest, loss, late, late_square, backlog = map(np.asarray, self)
        return GuardEvidence(
            gain / 2, square / 4, largest / 4, loss / 2, late / 2, late_square / 4, backlog * 0
        )

    def each(self, of: Callable[[Float64s], Any]) -> Any:
        """Return the evidence with the function `of` applied to every sequence."""
        return GuardEvidence(*map(of, self))


@callable_in_kernels
def note_request(
    evidence: GuardEvidence, goal: Goal, passed_s: float, blocks: Any, tokens: Any
) -> None:
    """Add a request that arrived `passed_s` after the previous one.

    `blocks` and prompt `tokens` are those of the request that each candidate has to compute.
    """
    most = 0
    for count in blocks:
        most = max(most, count)
    turnovers = min(most / goal.capacity_blocks, 1.0 / LEAST_REQUESTS)
    keep, keep_loss = 0.5 ** (turnovers / GAIN_TURNOVERS), 0.5 ** (turnovers / LOSS_TURNOVERS)
    keep_square, late_tokens = keep * keep, goal.slo_tokens if goal.slo_tokens > 0.0 else math.inf
    done = passed_s * goal.tokens_per_s if goal.tokens_per_s > 0.0 else math.inf
    lru_beyond, lru_late = max(tokens[FALLBACK] - goal.xi_tokens, 0.0), 0.0
    for at in range(len(evidence.gain)):
        evidence.backlog[at] = max(evidence.backlog[at] - done, 0.0) + tokens[at]
        late = 1.0 if evidence.backlog[at] > late_tokens else 0.0
        if at == FALLBACK:
            lru_late = late
            continue
        more = lru_beyond - max(tokens[at] - goal.xi_tokens, 0.0)
        evidence.gain[at] = keep * evidence.gain[at] + more
        evidence.square[at] = keep_square * evidence.square[at] + more * more
        evidence.largest[at] = max(keep_square * evidence.largest[at], more * more)
        evidence.loss[at] = max(keep_loss * evidence.loss[at] - more, 0.0)
        evidence.late[at] = keep * evidence.late[at] + lru_late - late
        evidence.late_square[at] = keep_square * evidence.late_square[at] + abs(lru_late - late)


@callable_in_kernels
def decided(evidence: GuardEvidence, now: int) -> int:
    """Return the number of the candidate in force from now on; `now` is that of the present one."""
    if now != FALLBACK and gives_up(evidence, now):
        now = FALLBACK
    best = FALLBACK
    for at in range(1, len(evidence.gain)):
        gain = evidence.gain[at]
        if gain > evidence.gain[best] and gain > sure_gain(evidence, at):
            lost = evidence.loss[at] > largest_loss(evidence, at) / 2
            if at == now or not (lost or evidence.late[at] < 0.0):
                best = at
    if best != FALLBACK and (now == FALLBACK or evidence.gain[best] > BETTER * evidence.gain[now]):
        return best
    return now


@callable_in_kernels
def gives_up(evidence: GuardEvidence, at: int) -> bool:
    """Return whether LRU must replace candidate `at`: worse, much lost, or more requests late."""
    if evidence.gain[at] < 0.0 or evidence.loss[at] > largest_loss(evidence, at):
        return True
    return bool(evidence.late[at] < -math.sqrt(evidence.late_square[at] + 1.0))


@callable_in_kernels
def sure_gain(evidence: GuardEvidence, at: int) -> float:
    """Return the gain (tokens) above which candidate `at` counts as better than LRU.

    The bound of a mixture of sequential probability ratio tests. Where gains are as likely as equal
    losses and nothing is discounted, sums ever exceed it with probability `CHANCE` at most, if the
    mixture's spread is fixed beforehand. Here the spread is the largest square so far: a guide.
    Source: Howard, Ramdas, McAuliffe and Sekhon, Time-uniform, nonparametric, nonasymptotic
    confidence sequences (2021): the normal mixture, which is Robbins's. For symmetric differences
    squares stand for variances: de la Pena, A general class of exponential inequalities (1999).
    """
    largest = evidence.largest[at]
    if largest <= 0.0:
        return math.inf
    spread = evidence.square[at] + largest
    return math.sqrt(spread * (_SURE + math.log(spread / largest)))


@callable_in_kernels
def largest_loss(evidence: GuardEvidence, at: int) -> float:
    """Return the tokens that candidate `at` may lose since its best gain and stay in force."""
    return DEVIATIONS_LOST * math.sqrt(evidence.square[at] + evidence.largest[at])
