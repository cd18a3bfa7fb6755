"""Exponential: waits without memory, the model that the workload-aware policy reads."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from kvscope.model.base import Interval, ReuseModel
from kvscope.model.likelihood import logit
from kvscope.model.observations import Floats, Observations

_ROUNDS = 300
_SETTLED = 1e-6  # relative change of a round that ends the search


class Exponential(ReuseModel):
    """S(t) = 1 - p (1 - exp(-r t)).

    Hazard: p r exp(-r t) / S(t). Log-likelihood: the sum over reused blocks of log(p r) - r t, and
    over waiting ones of log S(t). `rate_per_s` r, one over the mean wait of those that are reused.
    Source: KVCache Cache in the Wild (ATC'25), sections 3.4 and 4.2.
    """

    name: ClassVar[str] = "exponential"
    parameters: ClassVar[tuple[str, ...]] = ("rate_per_s",)
    bounds: ClassVar[tuple[Interval, ...]] = ((-25.0, 15.0),)

    def log_density(self, t: Floats, free: Floats) -> tuple[Floats, Floats]:
        """See `ReuseModel`."""
        rt = np.exp(free[0]) * t
        return free[0] - rt, (1.0 - rt)[None]

    def wait_survival(self, t: Floats, free: Floats) -> tuple[Floats, Floats]:
        """See `ReuseModel`."""
        rt = np.exp(free[0]) * t
        left = np.exp(-rt)
        return left, (-rt * left)[None]

    def start(self, of: Observations) -> Floats:
        """From where expectation and maximization have settled."""
        found = exponentials(
            Sums(
                reused=np.array([of.total_reused]),
                waited_s=np.array([of.weight[of.reused] @ of.waited_s[of.reused]]),
                waiting=of.weight[~of.reused][None],
                since_s=of.waited_s[~of.reused][None],
            )
        )
        return np.array([logit(float(found.p[0])), np.log(found.rate_per_s[0])])

    def natural(self, free: Floats) -> Floats:
        """See `ReuseModel`."""
        return np.exp(free)


class Sums(NamedTuple):
    """All that an exponential needs to know, of any number of cells (leading axes `...`).

    `reused` blocks took `waited_s` seconds together; `waiting` (`...` × B) blocks were still
    unused `since_s` (the same) seconds after their touch.
    """

    reused: Floats
    waited_s: Floats
    waiting: Floats
    since_s: Floats


class Fitted(NamedTuple):
    """Reuse probability and rate of each cell."""

    p: Floats
    rate_per_s: Floats


def exponentials(of: Sums, prior: Fitted | None = None, prior_blocks: float = 0.0) -> Fitted:
    """The defective exponential of every cell at once, by expectation and maximization.

    A waiting block will be reused with probability q = p e / (1 - p + p e), e = exp(-r since);
    then p = (reused + sum of q) / all, r = reused / (waited + sum of q since). `prior` adds
    `prior_blocks` that behave as it says, to draw cells with few blocks towards it. A cell without
    anything has p = 0 and r = 1.
    Source: Dempster, Laird and Rubin, Maximum likelihood from incomplete data (1977).
    """
    before = prior or Fitted(np.zeros_like(of.reused), np.ones_like(of.reused))
    extra_reused = prior_blocks * before.p
    extra_s = extra_reused / before.rate_per_s
    all_blocks = of.reused + of.waiting.sum(axis=-1) + prior_blocks
    events = of.reused + extra_reused
    seconds = np.maximum(of.waited_s + extra_s, 1e-9)
    known = events > 0
    p = np.where(known, events / np.maximum(all_blocks, 1e-300), 0.0)
    rate = np.where(known, events / seconds, 1.0)
    active = np.flatnonzero(known.ravel() & (of.waiting.sum(axis=-1) > 0).ravel())
    flat_p, flat_rate = p.ravel(), rate.ravel()
    waiting = of.waiting.reshape(flat_p.size, -1)
    since = of.since_s.reshape(waiting.shape)
    n, d, s = all_blocks.ravel(), events.ravel(), seconds.ravel()
    for _ in range(_ROUNDS):
        if not len(active):
            break
        a = active
        to_come = flat_p[a, None] * np.exp(-flat_rate[a, None] * since[a])
        expected = waiting[a] * to_come / ((1.0 - flat_p[a, None]) + to_come + 1e-300)
        new_p = np.minimum((d[a] + expected.sum(axis=1)) / n[a], 1.0)
        new_rate = d[a] / (s[a] + (expected * since[a]).sum(axis=1))
        moved = np.maximum(np.abs(new_p / flat_p[a] - 1.0), np.abs(new_rate / flat_rate[a] - 1.0))
        flat_p[a], flat_rate[a] = new_p, new_rate
        active = a[moved > _SETTLED]
    return Fitted(flat_p.reshape(p.shape), flat_rate.reshape(p.shape))
