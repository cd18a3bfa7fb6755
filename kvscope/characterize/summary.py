"""Everything that characterization says of a trace, in one go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from kvscope.characterize.categories import Category, assemble_categories
from kvscope.characterize.gaps import ReuseGaps, ReuseHazard, reuse_gaps, reuse_hazard
from kvscope.characterize.history import History, load_history
from kvscope.characterize.lifetimes import Lifetimes, WorkingSet, lifetimes, working_set
from kvscope.characterize.sources import Skew, Sources, skew, sources
from kvscope.characterize.spatial import Spatial, spatial
from kvscope.characterize.stability import Stability, stability
from kvscope.characterize.traffic import (
    Contribution,
    Lengths,
    OverTime,
    RequestSize,
    contribution,
    lengths,
    over_time,
    request_sizes,
)
from kvscope.characterize.turns import ConversationTurns, NextTurns, next_turns, turns
from kvscope.core.background import in_background
from kvscope.core.trace import PromptPaths, Trace
from kvscope.store.db import Store


@dataclass(frozen=True, slots=True)
class Characterization:
    """All that characterization says of one trace. None: nothing to say it from.

    Reuse needs block hashes; turns need a lineage.
    """

    trace: Trace
    lengths: Lengths
    request_sizes: tuple[RequestSize, ...]
    over_time: OverTime
    contribution: Contribution
    categories: tuple[Category, ...]
    turns: ConversationTurns | None
    next_turns: NextTurns | None
    sources: Sources | None
    skew: Skew | None
    reuse_gaps: ReuseGaps | None
    reuse_hazard: ReuseHazard | None
    lifetimes: Lifetimes | None
    spatial: Spatial | None
    working_set: WorkingSet | None
    stability: Stability


STEPS = 13
Step = Callable[[str], None]
T = TypeVar("T")


def characterize(
    store: Store, trace: Trace, paths: PromptPaths | None = None, *, step: Step | None = None
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
    # What history alone answers leaves the store to the others meanwhile.
    of_history = in_background(_of_history, store, trace, history)
    followed = ask("next turns", next_turns)
    places = ask("places in the prompt", spatial, paths)
    changes = ask("stability", stability, history)
    touched_by = ask("whose blocks are reused", sources)
    skewed = ask("skew", skew)
    gaps, hazard, lives, alive = ask("reuse gaps and lifetimes", lambda *_: of_history.result())
    return Characterization(
        trace=trace,
        lengths=ask("lengths", lengths),
        request_sizes=ask("sizes", request_sizes),
        over_time=ask("traffic over time", over_time),
        contribution=ask("contributions", contribution),
        categories=ask("categories", assemble_categories, gaps, lives, followed),
        turns=ask("turns", turns),
        next_turns=followed,
        sources=touched_by,
        skew=skewed,
        reuse_gaps=gaps,
        reuse_hazard=hazard,
        lifetimes=lives,
        spatial=places,
        working_set=alive,
        stability=changes,
    )


def _of_history(
    store: Store, trace: Trace, history: History
) -> tuple[ReuseGaps | None, ReuseHazard | None, Lifetimes | None, WorkingSet | None]:
    return (
        reuse_gaps(store, trace, history),
        reuse_hazard(store, trace, history),
        lifetimes(store, trace, history),
        working_set(store, trace, history),
    )
