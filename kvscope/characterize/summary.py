"""All facts of a trace, computed in one go."""

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
    """All facts of one trace. Reuse is None without block hashes, turns without a lineage."""

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
    """Characterize a trace: traffic, turns, reuse gaps, lifetimes, sources, prefixes, stability.

    `paths` are loaded unless given. `step` is called with the name of each of `STEPS` steps before
    it; what it raises ends the work. A length-only trace has only the facts of lengths.
    """

    def run(name: str, compute: Callable[..., T], *arguments: object) -> T:
        if step is not None:
            step(name)
        return compute(store, trace, *arguments)

    history = run("touches", load_history)
    # Facts of the history alone are computed meanwhile: they leave the store to the others.
    of_history = in_background(_of_history, store, trace, history)
    following = run("next turns", next_turns)
    places = run("places in the prompt", spatial, paths)
    changes = run("stability", stability, history)
    reuse_sources = run("sources of reuse", sources)
    reuse_skew = run("skew", skew)
    gaps, hazard, lives, alive = run("reuse gaps and lifetimes", lambda *_: of_history.result())
    return Characterization(
        trace=trace,
        lengths=run("lengths", lengths),
        request_sizes=run("sizes", request_sizes),
        over_time=run("traffic over time", over_time),
        contribution=run("contributions", contribution),
        categories=run("categories", assemble_categories, gaps, lives, following),
        turns=run("turns", turns),
        next_turns=following,
        sources=reuse_sources,
        skew=reuse_skew,
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
