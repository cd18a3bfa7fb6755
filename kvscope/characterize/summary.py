"""Everything that characterization says of a trace, in one go."""

from __future__ import annotations

from kvscope.characterize.categories import assemble_categories
from kvscope.characterize.facts import Characterization
from kvscope.characterize.gaps import reuse_gaps, reuse_hazard
from kvscope.characterize.history import load_history
from kvscope.characterize.lifetimes import lifetimes, working_set
from kvscope.characterize.sources import skew, sources
from kvscope.characterize.spatial import spatial
from kvscope.characterize.stability import stability
from kvscope.characterize.traffic import contribution, lengths, over_time, request_sizes
from kvscope.characterize.turns import next_turns, turns
from kvscope.facts import Trace
from kvscope.store.db import Store
from kvscope.store.prompts import Prompts


def characterize(store: Store, trace: Trace, prompts: Prompts | None = None) -> Characterization:
    """What is in the traffic: who reuses what, after how long, for how long, from where.

    `prompts` spares loading them again where they are at hand. A length-only trace gets what
    lengths can tell.
    """
    history = load_history(store, trace)
    gaps = reuse_gaps(store, trace, history)
    lives = lifetimes(store, trace, history)
    followed = next_turns(store, trace)
    return Characterization(
        trace=trace,
        lengths=lengths(store, trace),
        request_sizes=request_sizes(store, trace),
        over_time=over_time(store, trace),
        contribution=contribution(store, trace),
        categories=assemble_categories(store, trace, gaps, lives, followed),
        turns=turns(store, trace),
        next_turns=followed,
        sources=sources(store, trace),
        skew=skew(store, trace),
        reuse_gaps=gaps,
        reuse_hazard=reuse_hazard(store, trace, history),
        lifetimes=lives,
        spatial=spatial(store, trace, prompts),
        working_set=working_set(store, trace, history),
        stability=stability(store, trace, history),
    )
