"""The order of an analysis: the first screen, then every section; and the whole as HTML."""

from __future__ import annotations

from kvscope.app.analyze import Analysis, Caching
from kvscope.characterize.summary import Characterization
from kvscope.core import units
from kvscope.core.trace import Trace
from kvscope.report import html
from kvscope.report.section import Section, Table
from kvscope.report.sections import caching, reuse, space, time, traffic
from kvscope.report.sections.sizes import size_cells, size_columns
from kvscope.report.text_plots import bar
from kvscope.report.words import counted, definition_in_words


def sections(analysis: Analysis) -> list[Section]:
    """Everything there is to say, the most asked for first."""
    found = analysis.characterization
    return [
        *caching.sections(analysis),
        *reuse.sections(found),
        *time.sections(found),
        *space.sections(analysis),
        *traffic.sections(found),
    ]


def html_report(analysis: Analysis) -> str:
    """The analysis as one self-contained HTML page."""
    first = headline(analysis)
    lead = trace_in_words(analysis.trace)
    return html.page(f"kvscope: {analysis.trace.name}", lead, [first, *sections(analysis)])


def trace_in_words(trace: Trace) -> str:
    """One line on what was read."""
    parts = [
        f"{trace.format} trace",
        f"{counted(trace.requests, 'request')} over {units.format_duration(trace.span_s)}",
    ]
    if trace.has_hashes:
        parts += [
            (
                f"{counted(trace.accesses, 'access', 'accesses')} to"
                f" {counted(trace.distinct_blocks, 'block')}"
                f" of {counted(trace.block_size, 'token')}"
            ),
            f"conversations {trace.lineage}",
        ]
    if trace.bad_lines:
        parts.append(f"{counted(trace.bad_lines, 'bad line')} left out")
    return ", ".join(parts)


def headline(analysis: Analysis) -> Section:
    """What is in the traffic, how much caching can give, how large the cache must be."""
    found = analysis.characterization
    sentences = [*(f"Note: {note}." for note in analysis.trace.notes), _traffic(found)]
    if analysis.caching is None:
        sentences.append(
            "The trace tells lengths and arrivals only; without block hashes nothing can be said"
            " about reuse, hit rates or capacity."
        )
        return Section("Summary", tuple(sentences))
    sentences += [
        *_reuse(found),
        *_gain(analysis.caching),
        *_capacity(analysis, analysis.caching),
    ]
    tables = (_landmarks(analysis, analysis.caching),) if analysis.caching.ideal else ()
    return Section("Summary", tuple(sentences), tables=tables)


def _traffic(found: Characterization) -> str:
    lengths = found.lengths
    text = (
        f"A request brings {units.format_count(lengths.input_tokens.mean)} tokens and gets"
        f" {units.format_count(lengths.output_tokens.mean)} on average"
    )
    if found.turns is None:
        return f"{text}."
    return (
        f"{text}; {units.format_share(found.contribution.multi_turn_request_share)} of the requests"
        " go on with a conversation."
    )


def _reuse(found: Characterization) -> list[str]:
    sentences = []
    share = found.contribution.multi_turn_hit_share
    if share is not None:
        sentences.append(
            f"Later turns of conversations make {units.format_share(share)} of the hits."
        )
    if found.reuse_gaps is not None and found.reuse_gaps.overall is not None:
        gap = found.reuse_gaps.overall.gap_s
        sentences.append(
            f"Half of the reuse comes within {units.format_duration(gap.p50)}, 80% within"
            f" {units.format_duration(gap.p80)}, 99% within {units.format_duration(gap.p99)}."
        )
    if found.lifetimes is not None and found.lifetimes.overall is not None:
        never = found.lifetimes.overall.never_reused_share
        sentences.append(f"{units.format_share(never)} of the blocks are never used again.")
    return sentences


def _gain(found: Caching) -> list[str]:
    words = definition_in_words(found.definition)
    sentences = [f"An infinite cache would hit {units.format_share(found.ideal, 2)} ({words})."]
    if found.definition.weight == "token" and found.ideal < 1:
        sentences.append(
            f"Prefill would then compute {units.format_share(1 - found.ideal)} of the input tokens:"
            f" at best {1 / (1 - found.ideal):.1f} times less work."
        )
    return sentences


def _capacity(analysis: Analysis, found: Caching) -> list[str]:
    if not found.ideal:
        return ["No prompt begins as an earlier one did: a cache of any size hits nothing."]
    nine = next(mark for mark in found.landmarks if mark.share_of_ideal == 0.9)
    size = units.blocks_tokens_bytes(
        nine.point.capacity_blocks,
        block_size=analysis.trace.block_size,
        bytes_per_token=analysis.model.bytes_per_token if analysis.model else None,
    )
    return [f"LRU needs {size} for 90% of that."]


def _landmarks(analysis: Analysis, found: Caching) -> Table:
    return Table(
        "What LRU needs",
        ("", *size_columns(analysis), "hit rate", ""),
        tuple(
            (
                f"{mark.share_of_ideal:.0%} of ideal",
                *size_cells(analysis, mark.point.capacity_blocks),
                units.format_share(found.rate(mark.point), 2),
                bar(found.rate(mark.point), 16),
            )
            for mark in found.landmarks
        ),
        note="capacity bounds what is kept between requests",
    )
