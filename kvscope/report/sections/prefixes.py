"""The prefixes that most prompts share: heads such as system prompts, and what follows them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvscope.characterize.prefixes import Prefix
from kvscope.core import units
from kvscope.report.section import Section, Table

_LISTED = 10
_HEAD = 4  # continuations that make a stretch a head that prompts share, and no turn

_COLUMNS = ("hash of its end", "from token", "tokens", "prompts", "goes on in", "tokens hit")


def section(found: Sequence[Prefix], block_size: int) -> Section:
    """The icicle, and the prefixes with most hits as a table."""
    from kvscope.report.charts import prefixes as charts

    if not found:
        return Section("Hottest prefixes", ("No prompt begins as an earlier one did.",))
    heads = [one for one in found if not one.parent]
    words = (
        f"{units.format_count(len(heads))} of the hottest prefixes begin a prompt; the most common"
        f" one was found written by {units.format_count(max(one.reuses for one in heads))} prompts."
    )
    shared = sorted((one for one in found if one.branches >= _HEAD), key=lambda one: -one.reuses)
    tables = [
        Table(
            "Stretches with the most hits",
            _COLUMNS,
            _rows(sorted(found, key=lambda one: -one.hits), block_size),
            note="a stretch: blocks that the same prompts share, with no branch within; goes"
            " on in: so many reused continuations",
        )
    ]
    if shared:
        told = Table(
            "Shared heads, such as system prompts",
            _COLUMNS,
            _rows(shared, block_size),
            note=f"stretches that go on in at least {_HEAD} reused ways, most prompts first",
        )
        tables.append(told)
    return Section(
        "Hottest prefixes",
        (words,),
        tables=tuple(tables),
        figures=(partial(charts.icicle, found, block_size),),
    )


def _rows(ranked: Sequence[Prefix], block_size: int) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            f"{one.hash_id & (2**64 - 1):x}",
            units.format_count(one.depth_blocks * block_size),
            units.format_count(one.blocks * block_size),
            units.format_count(one.reuses),
            units.format_count(one.branches),
            units.format_count(one.hits * block_size),
        )
        for one in ranked[:_LISTED]
    )
