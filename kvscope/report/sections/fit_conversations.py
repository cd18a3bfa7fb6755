"""What a fit says of conversations and of what their next turns bring."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvscope.core import units
from kvscope.report.section import Section, Table
from kvscope.report.words import interval_in_words
from kvscope.reuse_models.results import Conversation, Fit, NextPromptFit, NextTurnFit

_UNSEEN = (
    "The probability of another turn counts those too that come after the trace's end: by"
    " maximum likelihood with deaths unseen."
)


def conversations(found: Fit) -> Section:
    """Rates of the conversation model, and how likely another turn is."""
    from kvscope.report.charts import fit as charts

    tables = []
    if found.conversation is not None:
        tables.append(_rates(found.conversation))
    by_turn = [row for row in found.next_turns if row.turn is not None]
    by_category = [row for row in found.next_turns if row.category is not None]
    for title, first, rows in (
        ("After a turn", "turn", by_turn),
        ("After a category", "type, turn", by_category),
    ):
        tables.append(
            Table(
                title,
                (first, "requests", "seen to go on", "another turn", "at 95%"),
                tuple(_next_turn(row) for row in rows),
            )
        )
    return Section(
        "Conversations",
        (_UNSEEN,),
        tables=tuple(tables),
        figures=(partial(charts.next_turns, found),),
    )


def _rates(one: Conversation) -> Table:
    rows = (
        ("births", one.birth_rate_per_s, "birth_rate_per_s"),
        ("turns while alive", one.turn_rate_per_s, "turn_rate_per_s"),
        ("deaths while alive", one.death_rate_per_s, "death_rate_per_s"),
    )
    return Table(
        "Rates",
        ("", "rate", "at 95%", "one in"),
        tuple(
            (
                name,
                units.format_rate(value),
                interval_in_words(one.interval[key], units.format_rate),
                units.format_duration(1 / value) if value else "–",
            )
            for name, value, key in rows
        ),
    )


def _next_turn(row: NextTurnFit) -> tuple[str, ...]:
    told = ("–", "–")
    if row.probability is not None:
        told = (
            units.format_share(row.probability),
            interval_in_words(row.interval, units.format_share),
        )
    name = row.category if row.category is not None else str(row.turn)
    seen = units.format_share(row.continued / row.requests if row.requests else 0.0)
    return name, units.format_count(row.requests), seen, *told


def next_prompts(found: Sequence[NextPromptFit]) -> Section:
    """How much a next turn adds."""
    rows = tuple(
        (
            row.category or "all",
            *(
                units.format_count(value)
                for value in (
                    *(row.n, row.mean),
                    *(row.tokens.p50, row.tokens.p80, row.tokens.p90, row.tokens.p99),
                )
            ),
        )
        for row in found
    )
    return Section(
        "Next prompts",
        tables=(
            Table(
                "Tokens that the next turn adds to the history",
                ("type, turn", "prompts", "mean", "p50", "p80", "p90", "p99"),
                rows,
            ),
        ),
    )
