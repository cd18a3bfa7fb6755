"""Who reuses: categories, single- and multi-turn requests, conversations, users, hot blocks."""

from __future__ import annotations

from functools import partial

from kvscope.characterize.categories import Category
from kvscope.characterize.sources import Skew, Sources
from kvscope.characterize.summary import Characterization
from kvscope.characterize.traffic import Contribution
from kvscope.core import units
from kvscope.core.percentiles import Quantiles
from kvscope.report.section import Section, Table
from kvscope.report.sections.traffic import share
from kvscope.report.text_plots import bar
from kvscope.report.words import DEFAULT_HITS, counted

_GAPS = ("gap p80",)
_LIVES = ("life p90",)


def sections(found: Characterization) -> list[Section]:
    """The sections on who reuses what; for lengths alone, the categories."""
    made = [_categories(found.categories, hashed=found.trace.has_hashes)]
    if found.trace.has_hashes:
        made.append(_contribution(found.contribution))
        if found.sources is not None:
            made.append(_sources(found.sources))
        if found.skew is not None:
            made.append(_skew(found.skew))
    return made


def _categories(categories: tuple[Category, ...], *, hashed: bool) -> Section:
    columns = ["type, turn", "requests", "share", "input", "output", "next turn"]
    if hashed:
        columns += ["of hits", *_GAPS, *_LIVES]
    rows = tuple(
        (
            row.category,
            units.format_count(row.requests),
            units.format_share(row.share),
            units.format_count(row.mean_input_tokens),
            units.format_count(row.mean_output_tokens),
            share(row.next_turn_probability),
            *(
                (
                    share(row.hit_share),
                    *_durations(row.reuse_gap_s, _GAPS),
                    *_durations(row.lifetime_s, _LIVES),
                )
                if hashed
                else ()
            ),
        )
        for row in categories
    )
    return Section(
        title="Categories",
        tables=(
            Table(
                "By type and turn",
                tuple(columns),
                rows,
                note="input, output: mean tokens; of hits: by the default definition, in blocks;"
                " gap: until a block last touched by this category"
                " is used again; life: first to last use of blocks that it touched first"
                if hashed
                else "",
            ),
        ),
    )


def _durations(found: Quantiles | None, columns: tuple[str, ...]) -> tuple[str, ...]:
    """The quantiles that the columns' titles end with."""
    if found is None:
        return ("–",) * len(columns)
    return tuple(units.format_duration(getattr(found, title.split()[-1])) for title in columns)


def _contribution(found: Contribution) -> Section:
    from kvscope.report.charts import reuse as charts

    rows = tuple(
        (
            f"{row.type}, {'later turns' if row.multi_turn else 'turn 1'}",
            units.format_count(row.requests),
            units.format_share(row.request_share),
            units.format_count(row.hit_tokens),
            share(row.hit_share),
        )
        for row in found.rows
    )
    plot = tuple(
        f"{name:<28} {bar(row.hit_share or 0.0)} {hits}"
        for row, (name, _, _, _, hits) in zip(found.rows, rows, strict=True)
    )
    words = (
        f"Later turns are {units.format_share(found.multi_turn_request_share)} of the requests"
        f" and make {share(found.multi_turn_hit_share)} of the hits."
    )
    return Section(
        title="Contribution",
        sentences=(words, DEFAULT_HITS),
        tables=(
            Table(
                "Who makes the hits of an infinite cache",
                ("requests", "count", "share", "hit tokens", "of all hits"),
                rows,
            ),
        ),
        plot=plot,
        figures=(partial(charts.contribution, found),),
    )


def _sources(found: Sources) -> Section:
    from kvscope.report.charts import reuse as charts

    known = found.same_user_share is not None
    rows = [
        ("the same conversation", share(found.same_conversation_share)),
        ("the same user, elsewhere", share(found.same_user_share)),
        ("another user" if known else "elsewhere", share(found.other_share)),
    ]
    figures = [partial(charts.sources, found)]
    if found.heat_map:
        figures.append(partial(charts.users, found))
    return Section(
        title="Whose blocks",
        tables=(
            Table(
                "Who had last touched the reused blocks",
                ("", "of reused blocks"),
                tuple(rows if known else [rows[0], rows[2]]),
                note="" if known else "the trace names no users",
            ),
        ),
        figures=tuple(figures),
    )


def _skew(found: Skew) -> Section:
    from kvscope.report.charts import reuse as charts

    sentences = [
        (
            f"{units.format_share(found.reused_block_share)} of the"
            f" {counted(found.cacheable_blocks, 'cacheable block')}"
            f" {'is' if found.cacheable_blocks == 1 else 'are'} ever reused."
        )
    ]
    if found.reuse_from_top_10_percent is not None:
        sentences.append(
            f"The 10% most reused blocks make {units.format_share(found.reuse_from_top_10_percent)}"
            " of the reuse."
        )
    if found.users is not None and found.users.share_making_90_percent_of_hits is not None:
        sentences.append(
            f"{units.format_share(found.users.share_making_90_percent_of_hits)} of the"
            f" {counted(found.users.users, 'user')} make 90% of the hits,"
            f" {units.format_share(found.users.share_making_90_percent_of_requests)} make 90% of"
            " the requests."
        )
    rows = tuple(
        (f"top {units.format_share(top.top_share, 0)}", units.format_share(top.share))
        for top in found.reuse
    )
    return Section(
        title="Skew",
        sentences=tuple(sentences),
        tables=(Table("Reuse from the most reused blocks", ("blocks", "of all reuse"), rows),),
        figures=(partial(charts.skew, found),),
    )
