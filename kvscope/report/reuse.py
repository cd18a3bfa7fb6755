"""Which requests reuse what: categories, first and follow-up turns, users, hot blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from kvscope.characterize.categories import Category
from kvscope.characterize.sources import Skew, Sources
from kvscope.characterize.summary import Characterization
from kvscope.characterize.traffic import Contribution
from kvscope.characterize.turns import NextTurns
from kvscope.core import units
from kvscope.report import style
from kvscope.report.section import Section, Table
from kvscope.report.text_plots import bar
from kvscope.report.words import DEFAULT_HITS, FEWEST, counted, share, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go


def sections(facts: Characterization) -> list[Section]:
    """Return the sections on what reuses what; for lengths alone, the categories."""
    made = [Section("Categories", tables=(category_table(facts),))]
    if facts.trace.has_hashes:
        made.append(_contribution(facts.contribution))
        if facts.sources is not None:
            made.append(_sources(facts.sources))
        if facts.skew is not None:
            made.append(_skew(facts.skew))
    return made


def category_table(facts: Characterization, rows: int | None = None) -> Table:
    """Return a row a category, most requests first.

    With `rows`, at most so many: categories below FEWEST requests, and the last ones that would be
    too many, are pooled as "other". No quantile can be pooled.
    """
    hashed = facts.trace.has_hashes
    shown = sorted(facts.categories, key=lambda row: -row.requests)
    pooled: list[Category] = []
    if rows is not None:
        large = [row for row in shown if row.requests >= FEWEST]
        large = large[: rows - (len(large) != len(shown) or len(large) > rows)]
        if len(shown) - len(large) > 1:  # pooled, one category would only lose its name
            shown, pooled = large, shown[len(large) :]
    gap_s = {row.category: row.reuse_gap_s.p80 for row in shown if row.reuse_gap_s}
    life_s = {row.category: row.lifetime_s.p90 for row in shown if row.lifetime_s}
    gaps, lives = time_unit(gap_s.values()), time_unit(life_s.values())
    cells = [
        _cells(row.category, [row], row.next_turn_probability, hashed=hashed)
        + (
            (
                gaps.cell(gap_s.get(row.category)),
                lives.cell(life_s.get(row.category)),
            )
            if hashed
            else ()
        )
        for row in shown
    ]
    note = ""
    if pooled:
        followed = _pooled_next_turn(facts.next_turns, {row.category for row in pooled})
        cells.append(_cells("other", pooled, followed, hashed=hashed) + (share(None),) * 2 * hashed)
        small = sum(row.requests < FEWEST for row in pooled)
        below = f", {small} of them below {FEWEST} requests" if small else ""
        note = f"other: {counted(len(pooled), 'category', 'categories')}{below}. "
    columns = ["type, turn", "requests", "share", "input", "output", "next turn"]
    if hashed:
        columns += ["of hits", f"gap p80 ({gaps.name})", f"life p90 ({lives.name})"]
        note += (
            "input, output: mean tokens; of hits: in blocks; gap: time to the next touch;"
            " life: first to last touch"
        )
    return Table("Categories", tuple(columns), tuple(cells), note)


def _cells(
    name: str, rows: Sequence[Category], next_turn: float | None, *, hashed: bool
) -> tuple[str, ...]:
    """Return the cells of a category, or of several in one, but for quantiles."""
    requests = sum(row.requests for row in rows)
    tokens = (
        sum(row.mean_input_tokens * row.requests for row in rows) / requests,
        sum(row.mean_output_tokens * row.requests for row in rows) / requests,
    )
    hits = [row.hit_share for row in rows if row.hit_share is not None]
    return (
        name,
        units.format_count(requests),
        units.format_share(sum(row.share for row in rows)),
        *(units.format_count(mean) for mean in tokens),
        share(next_turn),
        *((share(sum(hits) if hits else None),) if hashed else ()),
    )


def _pooled_next_turn(following: NextTurns | None, categories: set[str]) -> float | None:
    """Return the settled probability of a next turn after requests of several categories."""
    if following is None:
        return None
    known = [
        (row.next_turn.settled_requests, row.next_turn.settled_probability)
        for row in following.by_category
        if row.category in categories and row.next_turn.settled_probability is not None
    ]
    requests = sum(count for count, _ in known)
    return sum(count * (chance or 0.0) for count, chance in known) / requests if requests else None


def _contribution(found: Contribution) -> Section:
    rows = tuple(
        (
            f"{row.type}, {'follow-up turns' if row.multi_turn else 'turn 1'}",
            units.format_count(row.requests),
            units.format_share(row.request_share),
            units.format_count(row.hit_tokens),
            share(row.hit_share),
            bar(row.hit_share or 0.0),
        )
        for row in found.rows
    )
    words = (
        f"Follow-up turns are {units.format_share(found.multi_turn_request_share)} of the requests"
        f" and get {share(found.multi_turn_hit_share)} of the hits."
    )
    return Section(
        title="Contribution",
        sentences=(words, DEFAULT_HITS),
        tables=(
            Table(
                "Requests that get the hits of an infinite cache",
                ("requests", "count", "share", "hit tokens", "of all hits", ""),
                rows,
            ),
        ),
        figures=(partial(contribution_chart, found),),
    )


def _sources(found: Sources) -> Section:
    known = found.same_user_share is not None
    rows = [
        ("the same conversation", share(found.same_conversation_share)),
        ("another conversation of the user", share(found.same_user_share)),
        ("another user" if known else "another conversation", share(found.other_share)),
    ]
    figures = [partial(sources_chart, found)]
    if found.heat_map:
        figures.append(partial(users_chart, found))
    return Section(
        title="Last touch",
        tables=(
            Table(
                "Requests that touched a reused block last",
                ("request of", "of reused blocks"),
                tuple(rows if known else [rows[0], rows[2]]),
                note="" if known else "the trace names no users",
            ),
        ),
        figures=tuple(figures),
    )


def _skew(found: Skew) -> Section:
    sentences = [
        (
            f"{units.format_share(found.reused_block_share)} of the"
            f" {counted(found.cacheable_blocks, 'cacheable block')}"
            f" {'is' if found.cacheable_blocks == 1 else 'are'} ever reused."
        )
    ]
    if found.reuse_from_top_10_percent is not None:
        top = units.format_share(found.reuse_from_top_10_percent)
        sentences.append(f"The 10% most reused blocks account for {top} of the reuse.")
    if found.users is not None and found.users.share_making_90_percent_of_hits is not None:
        sentences.append(
            f"Of {counted(found.users.users, 'user')},"
            f" {units.format_share(found.users.share_making_90_percent_of_hits)} get 90% of the"
            f" hits; {units.format_share(found.users.share_making_90_percent_of_requests)} send 90%"
            " of the requests."
        )
    rows = tuple(
        (f"top {units.format_share(top.top_share, 0)}", units.format_share(top.share))
        for top in found.reuse
    )
    return Section(
        title="Skew",
        sentences=tuple(sentences),
        tables=(Table("Reuse by the most reused blocks", ("blocks", "of all reuse"), rows),),
        figures=(partial(skew_chart, found),),
    )


def contribution_chart(found: Contribution) -> go.Figure:
    """Build the share of the requests and of the hits, by type and by turn."""
    chart = style.figure("Requests and hits by type", "share", "type, turn", height=380)
    names = [
        f"{style.label(row.type)}, {'follow-up turns' if row.multi_turn else 'turn 1'}"
        for row in found.rows
    ]
    requests = [row.request_share for row in found.rows]
    hits = [row.hit_share for row in found.rows]
    chart.add_bar(y=names, x=requests, name="requests", orientation="h", marker_color=style.SKY)
    chart.add_bar(y=names, x=hits, name="hits", orientation="h", marker_color=style.BLUE)
    chart.update_xaxes(tickformat=".0%")
    chart.update_yaxes(autorange="reversed", automargin=True)
    return chart


def sources_chart(found: Sources) -> go.Figure:
    """Build which requests touched reused blocks last."""
    chart = style.figure(
        "Last touch of reused blocks", "share of the reused blocks", "", height=220
    )
    shares = {
        "the same conversation": found.same_conversation_share,
        "another conversation of the user": found.same_user_share,
        "another conversation"
        if found.same_user_share is None
        else "another user": found.other_share,
    }
    known = {name: share for name, share in shares.items() if share is not None}
    chart.add_bar(y=list(known), x=list(known.values()), orientation="h", marker_color=style.BLUE)
    chart.update_xaxes(tickformat=".0%", range=[0, 1])
    chart.update_yaxes(autorange="reversed", automargin=True, title_text="request of")
    return chart


def users_chart(found: Sources) -> go.Figure:
    """Build which user reuses blocks that which user touched last, for the top users."""
    ranks = sorted({cell.reuser_rank for cell in found.heat_map})
    sources = [*ranks, None]
    blocks = {(cell.reuser_rank, cell.source_rank): cell.blocks for cell in found.heat_map}
    names = [*(str(rank) for rank in ranks), "others"]
    chart = style.figure(
        "Blocks reused, by user", "touched last by the user of rank", "reused by rank", height=480
    )
    chart.add_heatmap(
        x=names,
        y=names[:-1],
        z=[[blocks.get((reuser, source), 0) for source in sources] for reuser in ranks],
        colorscale=style.SHADES,
        colorbar={"title": "blocks"},
        hovertemplate="rank %{y} reuses %{z} blocks of rank %{x}<extra></extra>",
    )
    chart.update_xaxes(type="category")
    chart.update_yaxes(type="category", autorange="reversed")
    return chart


def skew_chart(found: Skew) -> go.Figure:
    """Build how much of the reuse the most reused blocks, and the top users, account for."""
    chart = style.figure("Skew", "top share of blocks or users", "share of reuse or hits")
    lines = [("blocks, by reuse", found.reuse)]
    if found.users is not None:
        lines.append(("users, by hits", found.users.hits))
    for number, (name, tops) in enumerate(lines):
        chart.add_scatter(
            x=[0.0, *(top.top_share for top in tops), 1.0],
            y=[0.0, *(top.share for top in tops), 1.0],
            name=name,
            mode="lines+markers",
            line=style.line(number),
        )
    chart.update_xaxes(tickformat=".0%")
    chart.update_yaxes(tickformat=".0%")
    return chart
