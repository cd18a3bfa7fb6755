"""Every block that a request fills, as one path of a trie, its own and the shared ones alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.replay.traffic import Traffic, traffic


def engine_traffic(prompts: Prompts, rate_scale: float = 1.0) -> Traffic:
    """The trace as an engine sees it: prompt and output of a request are one path.

    Blocks whose content the trace does not tell (outputs that no later turn repeats, prompts with
    too few hashes) become nodes of their own below the trie's, which only a request that starts
    over, having been preempted, finds again. `look` is vLLM's, at most floor((I - 1) / B), and ends
    where a prompt's hashes end.
    """
    known = traffic(prompts, standard())
    fresh = known.anonymous.astype(np.int64)
    nodes = len(known.block_parent)
    ends = np.cumsum(fresh)
    first = nodes + ends - fresh
    parent = np.arange(-1, nodes + int(fresh.sum()) - 1, dtype=np.int32)
    parent[:nodes] = known.block_parent
    grown = fresh > 0
    parent[first[grown]] = known.leaf[grown]
    return known._replace(
        block_parent=parent,
        leaf=np.where(grown, nodes + ends - 1, known.leaf).astype(np.int32),
        length=(known.length + fresh).astype(np.int32),
        anonymous=np.zeros_like(known.anonymous),
        arrival_s=known.arrival_s / rate_scale,
    )


def blocks_needed(known: Traffic) -> NDArray[np.int64]:
    """How many blocks each request fills at the end of its output, a partial one included.

    The last sampled token is never computed, so it takes no place; every request samples one.
    """
    tokens = np.maximum(known.history_tokens - 1, known.input_tokens)
    return np.asarray(-(-tokens // known.block_size))
