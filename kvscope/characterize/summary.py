"""Everything that characterization says of a trace, in one go."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

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
from kvscope.store.prompts import Paths

STEPS = 16
Step = Callable[[str], None]
T = TypeVar("T")


def characterize(
    store: Store, trace: Trace, paths: Paths | None = None, *, step: Step | None = None
) -> Characterization:
    """What is in the traffic: who reuses what, after how long, for how long, from where.

    `paths` spares loading them again where they are at hand. `step` is told what comes next,
    `STEPS` times; what it raises ends the work. A length-only trace gets what lengths can tell.
    """

    def ask(what: str, question: Callable[..., T], *given: object) -> T:
        if step is not None:
            step(what)
        return question(store, trace, *given)

    history = ask("who touched what when", load_history)
    gaps = ask("reuse gaps", reuse_gaps, history)
    lives = ask("lifetimes", lifetimes, history)
    followed = ask("next turns", next_turns)
    return Characterization(
        trace=trace,
        lengths=ask("lengths", lengths),
        request_sizes=ask("sizes", request_sizes),
        over_time=ask("traffic over time", over_time),
        contribution=ask("contributions", contribution),
        categories=ask("categories", assemble_categories, gaps, lives, followed),
        turns=ask("turns", turns),
        next_turns=followed,
        sources=ask("whose blocks are reused", sources),
        skew=ask("skew", skew),
        reuse_gaps=gaps,
        reuse_hazard=ask("chance of reuse", reuse_hazard, history),
        lifetimes=lives,
        spatial=ask("places in the prompt", spatial, paths),
        working_set=ask("working set", working_set, history),
        stability=ask("stability", stability, history),
    )
