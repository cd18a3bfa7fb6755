"""One row a category: its requests, what they reuse, after how long and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from kvscope.characterize.gaps import ReuseGaps
from kvscope.characterize.lifetimes import Lifetimes
from kvscope.characterize.traffic import share
from kvscope.characterize.turns import NextTurns
from kvscope.core.percentiles import Quantiles
from kvscope.core.trace import Trace
from kvscope.store.db import Store


@dataclass(frozen=True, slots=True)
class Category:
    """One category's row in the summary. Gaps and lifetimes are None where it has none."""

    category: str
    type: str
    turn_bucket: str
    requests: int
    share: float
    multi_turn_share: float
    mean_input_tokens: float
    mean_output_tokens: float
    reuse_gap_s: Quantiles | None
    lifetime_s: Quantiles | None
    next_turn_probability: float | None
    hit_share: float | None


def assemble_categories(
    store: Store,
    trace: Trace,
    gaps: ReuseGaps | None,
    lives: Lifetimes | None,
    next_turns: NextTurns | None,
) -> tuple[Category, ...]:
    """Return one row a category, ordered by type and turn, from facts computed before.

    Gaps belong to the category that touched the block last before the reuse, lifetimes to the one
    that touched it first. `next_turn_probability` is the settled one where there is one. A category
    is one of first or of later turns, so its `multi_turn_share` is 0 or 1.
    """
    rows = store.rows("characterize/categories", trace_id=trace.trace_id)
    requests = sum(row["requests"] for row in rows)
    hits = sum(row["ideal_blocks"] for row in rows)
    gap_of = {g.category: g.gap_s.quantiles for g in gaps.by_category} if gaps else {}
    life_of = {g.category: g.lifetime_s.quantiles for g in lives.by_category} if lives else {}
    next_of = {g.category: g.next_turn for g in next_turns.by_category} if next_turns else {}

    def next_turn_probability(category: str) -> float | None:
        next_turn = next_of.get(category)
        if next_turn is None:
            return None
        settled = next_turn.settled_probability
        return next_turn.probability if settled is None else settled

    return tuple(
        Category(
            category=row["category"],
            type=row["type"],
            turn_bucket=row["turn_bucket"],
            requests=row["requests"],
            share=row["requests"] / requests,
            multi_turn_share=row["multi_turn_requests"] / row["requests"],
            mean_input_tokens=row["input_tokens"] / row["requests"],
            mean_output_tokens=row["output_tokens"] / row["requests"],
            reuse_gap_s=gap_of.get(row["category"]),
            lifetime_s=life_of.get(row["category"]),
            next_turn_probability=next_turn_probability(row["category"]),
            hit_share=share(row["ideal_blocks"], hits),
        )
        for row in rows
    )
