"""How long blocks live, from first to last touch: what the workload-aware policy calls life."""

from __future__ import annotations

import numpy as np

from kvscope.model.observations import Floats


def mean_lifetimes(
    waited_s: Floats, appeared: Floats, unknown_s: float, prior_blocks: float
) -> Floats:
    """Mean lifetime of each category (the last axis), in seconds.

    A lifetime is the sum of a block's waits, so its mean is the waits of all reuses (`waited_s`)
    over the blocks that `appeared`. Categories with few of them are drawn to the mean over all, as
    by `prior_blocks` more; where nothing is known that is `unknown_s`. Source: KVCache Cache in
    the Wild (ATC'25), section 4.2 (life).
    """
    all_waited, all_appeared = waited_s.sum(axis=-1), appeared.sum(axis=-1)
    known = (all_waited > 0) & (all_appeared > 0)
    overall = np.where(known, all_waited / np.where(known, all_appeared, 1.0), unknown_s)
    drawn: Floats = (waited_s + prior_blocks * overall[..., None]) / (appeared + prior_blocks)
    return drawn
