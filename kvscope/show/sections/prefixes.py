"""The prefixes that most prompts share: heads such as system prompts, and what follows them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvscope import units
from kvscope.characterize.prefixes import Prefix
from kvscope.show.section import Section
from kvscope.show.table import Table

_LISTED = 10


def section(found: Sequence[Prefix], block_size: int) -> Section:
    """The icicle, and the prefixes with most hits as a table."""
    from kvscope.show.charts import prefixes as charts

    if not found:
        return Section("Hottest prefixes", ("No prompt begins as an earlier one did.",))
    heads = [one for one in found if not one.parent]
    words = (
        f"{units.format_count(len(heads))} of the hottest prefixes begin a prompt; the most common"
        f" one was found written by {units.format_count(max(one.reuses for one in heads))} prompts."
    )
    ranked = sorted(found, key=lambda one: -one.hits)[:_LISTED]
    rows = tuple(
        (
            f"{one.hash_id & (2**64 - 1):x}",
            units.format_count(one.depth_blocks * block_size),
            units.format_count(one.blocks * block_size),
            units.format_count(one.reuses),
            units.format_count(one.branches),
            units.format_count(one.hits * block_size),
        )
        for one in ranked
    )
    return Section(
        "Hottest prefixes",
        (words,),
        tables=(
            Table(
                "Stretches with the most hits",
                ("hash of its end", "from token", "tokens", "prompts", "goes on in", "tokens hit"),
                rows,
                note="a stretch: blocks that the same prompts share, with no branch within; goes"
                " on in: so many reused continuations; many of them make a shared head, such as a"
                " system prompt",
            ),
        ),
        figures=(partial(charts.icicle, found, block_size),),
    )
