"""From judged figures to one of four words."""

from __future__ import annotations

from kvscope.tune.facts import Verdict


def decide(*, lru_meets: bool, best_meets: bool, best_is_sure: bool, reachable: bool) -> Verdict:
    """What to do, given whether LRU and the best policy keep the SLO on the judged part.

    `best_is_sure`: the interval of its gain over LRU lies above 0. `reachable`: some capacity keeps
    the SLO. A gain that is not sure is none, and where LRU keeps the SLO none is needed.
    """
    if lru_meets:
        return "keep-lru"
    if not reachable:
        return "unreachable"
    return "switch" if best_meets and best_is_sure else "add-capacity"
