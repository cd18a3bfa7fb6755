"""Reuse by requests: categories, first and follow-up turns, users, hot blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvscope.characterize.sources import Skew, Sources
from kvscope.characterize.summary import Category, Characterization
from kvscope.characterize.traffic import Contribution, TypeContribution
from kvscope.characterize.turns import NextTurns
from kvscope.report import style
from kvscope.report.section import Section, Table, bar, tabulate
from kvscope.report.words import DEFAULT_HITS, FEWEST, count, counted, share, time_unit


def sections(facts: Characterization) -> list[Section]:
    """Return the sections on reuse; only the categories for a trace without hashes."""
    known = [Section.of("Categories", category_table(facts, title=""))]
    if facts.trace.has_hashes:
        known.append(_contribution(facts.contribution))
        known += [_sources(facts.sources)] if facts.sources is not None else []
        known += [_skew(facts.skew)] if facts.skew is not None else []
    return known


def category_table(
    facts: Characterization, title: str = "Categories", limit: int | None = None
) -> Table:
    """Return a row per category, most requests first; several below 30 requests form row "other".

    With `limit` rows at most, "other" takes more of the smallest. It has no quantiles.
    """
    ranked = sorted(facts.categories, key=lambda row: -row.requests)
    large = [row for row in ranked if row.requests >= FEWEST]
    if limit is not None and len(large) + (len(large) < len(ranked)) > limit:
        large = large[: limit - 1]
    pooled = ranked[len(large) :]
    if len(pooled) == 1:  # pooled, one category would only lose its name
        large, pooled = ranked, []
    rows: list[Sequence[Category]] = [[row] for row in large]
    gaps = time_unit(row.reuse_gap_s.p80 for row in large if row.reuse_gap_s)
    lives = time_unit(row.lifetime_s.p90 for row in large if row.lifetime_s)

    def requests(rows: Sequence[Category]) -> int:
        return sum(row.requests for row in rows)

    def mean(rows: Sequence[Category], of: str) -> str:
        return count(sum(getattr(row, of) * row.requests for row in rows) / requests(rows))

    def hits(rows: Sequence[Category]) -> str:
        known = [row.hit_share for row in rows if row.hit_share is not None]
        return share(sum(known) if known else None)

    def quantile(rows: Sequence[Category], of: str, rank: str) -> float | None:
        quantiles = getattr(rows[0], of) if len(rows) == 1 else None
        return quantiles and float(getattr(quantiles, rank))

    columns = {
        "type, turn": lambda rows: rows[0].category if len(rows) == 1 else "other",
        "requests": lambda rows: count(requests(rows)),
        "share": lambda rows: share(sum(row.share for row in rows)),
        "input": lambda rows: mean(rows, "mean_input_tokens"),
        "output": lambda rows: mean(rows, "mean_output_tokens"),
        "next turn": lambda rows: share(_next_turn(facts.next_turns, rows)),
    }
    note = "input, output: mean tokens"
    if facts.trace.has_hashes:
        columns |= {
            "of hits": hits,
            f"gap p80 ({gaps.name})": lambda rows: gaps.cell(quantile(rows, "reuse_gap_s", "p80")),
            f"life p90 ({lives.name})": lambda rows: lives.cell(
                quantile(rows, "lifetime_s", "p90")
            ),
        }
        note += "; of hits: in blocks; gap: time to the next touch; life: first to last touch"
    if pooled:
        rows.append(pooled)
        small = sum(row.requests < FEWEST for row in pooled)
        below = f" below {FEWEST} requests" if small == len(pooled) else ""
        note = f"other: {counted(len(pooled), 'category', 'categories')}{below}; {note}"
    return tabulate(title, rows, columns, note)


def _next_turn(following: NextTurns | None, rows: Sequence[Category]) -> float | None:
    """Return the next-turn probability of the categories `rows` of one table row.

    For several, only settled requests count, early enough to show a next turn; None without any.
    """
    if len(rows) == 1:
        return rows[0].next_turn_probability
    categories = {row.category for row in rows}
    known = [
        (row.next_turn.settled_requests, row.next_turn.settled_probability)
        for row in (following.by_category if following else ())
        if row.category in categories and row.next_turn.settled_probability is not None
    ]
    requests = sum(settled for settled, _ in known)
    return sum(settled * (p or 0.0) for settled, p in known) / requests if requests else None


def _contribution(contribution: Contribution) -> Section:
    words = (
        f"Follow-up turns are {share(contribution.multi_turn_request_share)} of the requests"
        f" and get {share(contribution.multi_turn_hit_share)} of the hits."
    )
    table = tabulate(
        "Requests that get the hits of an infinite cache",
        sorted(contribution.rows, key=lambda row: -row.hit_tokens),
        {
            "requests": _name,
            "count": lambda row: count(row.requests),
            "share": lambda row: share(row.request_share),
            "hit tokens": lambda row: count(row.hit_tokens),
            "of all hits": lambda row: share(row.hit_share),
            "": lambda row: bar(row.hit_share or 0.0),
        },
    )
    chart = partial(contribution_chart, contribution)
    return Section.of("Contribution", words, DEFAULT_HITS, table, chart)


def _name(row: TypeContribution) -> str:
    return f"{row.type}, {'follow-up turns' if row.multi_turn else 'turn 1'}"


def _sources(sources: Sources) -> Section:
    table = tabulate(
        "Requests that touched a reused block last",
        _shares(sources).items(),
        {"request of": lambda row: row[0], "of reused blocks": lambda row: share(row[1])},
        note="" if sources.same_user_share is not None else "the trace names no users",
    )
    users = partial(users_chart, sources) if sources.heat_map else None
    return Section.of("Last touch", table, partial(sources_chart, sources), users)


def _shares(sources: Sources) -> dict[str, float | None]:
    """Return the share of the reused blocks by their last toucher, in the words of tables.

    Keys: "the same conversation" (None without lineage), then "another conversation", or if users
    are known "another conversation of the user" and "another user".
    """
    shares = {"the same conversation": sources.same_conversation_share}
    if sources.same_user_share is None:
        return shares | {"another conversation": sources.other_share}
    same_user = {"another conversation of the user": sources.same_user_share}
    return shares | same_user | {"another user": sources.other_share}


def _skew(skew: Skew) -> Section:
    blocks = counted(skew.cacheable_blocks, "cacheable block")
    are = "is" if skew.cacheable_blocks == 1 else "are"
    sentences = [f"{share(skew.reused_block_share)} of the {blocks} {are} ever reused."]
    if skew.reuse_from_top_10_percent is not None:
        top = share(skew.reuse_from_top_10_percent)
        sentences.append(f"The 10% most reused blocks account for {top} of the reuse.")
    if skew.users is not None and skew.users.share_making_90_percent_of_hits is not None:
        sentences.append(
            f"Of {counted(skew.users.users, 'user')},"
            f" {share(skew.users.share_making_90_percent_of_hits)} get 90% of the hits;"
            f" {share(skew.users.share_making_90_percent_of_requests)} send 90% of the requests."
        )
    columns = {
        "blocks": lambda top: f"top {top.top_share:.0%}",
        "of all reuse": lambda top: share(top.share),
    }
    table = tabulate("Reuse by the most reused blocks", skew.reuse, columns)
    return Section.of("Skew", *sentences, table, partial(skew_chart, skew))


def contribution_chart(contribution: Contribution) -> style.Figure:
    """Draw the shares of requests and of hits, by type and first or follow-up turns."""
    rows = contribution.rows
    requests, hits = [row.request_share for row in rows], [row.hit_share for row in rows]
    groups: dict[str, Sequence[float | None]] = {"requests": requests, "hits": hits}
    names = [_name(row) for row in rows]
    title, height = "Requests and hits by type", max(160 + 44 * len(names), 380)
    chart = style.bars(title, "share", "type, turn", names, groups, height=height)
    return chart.update_xaxes(tickformat=".0%")


def sources_chart(sources: Sources) -> style.Figure:
    """Draw the share of the reused blocks by their last toucher; leave out unknown shares."""
    shares = {name: share for name, share in _shares(sources).items() if share is not None}
    title, x = "Last touch of reused blocks", "share of the reused blocks"
    bars = {"blocks": list(shares.values())}
    chart = style.bars(title, x, "request of", list(shares), bars, height=220)
    return chart.update_xaxes(tickformat=".0%", range=[0, 1])


def users_chart(sources: Sources) -> style.Figure:
    """Draw a heat map of reused blocks: reusing user (row) by user of the last touch (column)."""
    ranks = sorted({cell.reuser_rank for cell in sources.heat_map})
    blocks = {(cell.reuser_rank, cell.source_rank): cell.blocks for cell in sources.heat_map}
    names = [str(rank) for rank in ranks]
    chart = style.heat_map(
        "Blocks reused, by user",
        ("touched last by the user of rank", [*names, "others"]),
        ("reused by rank", names),
        [[blocks.get((reuser, source), 0) for source in (*ranks, None)] for reuser in ranks],
        "rank %{y} reuses %{z} blocks of rank %{x}",
        colorbar={"title": "blocks"},
    )
    return chart.update_xaxes(type="category")


def skew_chart(skew: Skew) -> style.Figure:
    """Draw the share of reuse in the top blocks, and of hits in the top users."""
    users = {} if skew.users is None else {"users, by hits": skew.users.hits}
    series = []
    for name, tops in {"blocks, by reuse": skew.reuse, **users}.items():
        x = [0.0, *(top.top_share for top in tops), 1.0]
        y = [0.0, *(top.share for top in tops), 1.0]
        series.append(style.Series(name, x, y, options=style.POINTS))
    x_title, y_title = "top share of blocks or users", "share of reuse or hits"
    return style.lines("Skew", x_title, y_title, series, log="", shares="xy")
