"""Reports in the store: what a command answered, to be opened again as it was shown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import Struct

from kvscope.core import units
from kvscope.core.errors import InputError
from kvscope.core.trace import Trace
from kvscope.report.report import Report
from kvscope.report.section import Section, Table, tabulate
from kvscope.report.words import count
from kvscope.store import results, traces
from kvscope.store.db import Store
from kvscope.store.file import Stores

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class StoredReport(Struct, frozen=True):
    """A report without what it shows; `created_at` is in UTC, `duration_s` that of computing it."""

    DOCUMENT: ClassVar[str] = "command summary created_at duration_s kvscope"
    report_id: int
    trace: str
    command: str
    summary: str
    created_at: datetime
    duration_s: float
    kvscope: str


class ReportContent(Struct, frozen=True):
    """What a stored report shows, and the recommendation.toml that belongs to it, if any."""

    sections: tuple[Section, ...]
    file: str | None


class _SectionRecord(msgspec.Struct):
    """A section as JSON; its figures are plotly's own JSON."""

    title: str
    sentences: tuple[str, ...]
    tables: tuple[Table, ...]
    plot: tuple[str, ...]
    figures: tuple[str, ...]


def keep(
    stores: Stores,
    report: Report,
    duration_s: float,
    *,
    summary: str = "",
    file: str | None = None,
) -> None:
    """Store what a report shows, unless its trace has been removed.

    `summary` is its answer in one line, by default its first sentence.
    """
    sections = report.sections()
    sentences = (text for section in sections for text in section.sentences)
    summary = summary or next(sentences, report.title)
    columns = {
        "command": report.title,
        "summary": summary,
        "duration_s": duration_s,
        "sections": _as_json(sections),
        "file": file,
    }
    with stores.writing() as store:
        if report.trace and report.trace in traces.all_traces(store):
            results.add_report(store, report.trace, **columns)


def all_reports(store: Store) -> list[StoredReport]:
    """Return the reports over all traces, the latest first."""
    return [msgspec.convert(row, StoredReport) for row in results.all_reports(store)]


def section(reports: Sequence[StoredReport]) -> Section:
    """Return the reports over one trace, a sentence each."""
    return Section.of(
        "Reports",
        *(
            f"{each.command}, {each.created_at:%Y-%m-%d %H:%M} UTC: {each.summary}"
            for each in reports
        ),
    )


def traces_table(stored: Sequence[Trace]) -> Table:
    """Return a row for each trace."""
    columns = {
        "name": lambda trace: trace.name,
        "format": lambda trace: trace.format,
        "requests": lambda trace: count(trace.requests),
        "accesses": lambda trace: count(trace.accesses),
        "blocks": lambda trace: count(trace.distinct_blocks),
        "span": lambda trace: units.duration_in_words(trace.span_s),
        "lineage": lambda trace: trace.lineage,
        "bad lines": lambda trace: count(trace.bad_lines),
    }
    return tabulate("", stored, columns, words=("format", "lineage"))


def open_report(store: Store, report_id: int) -> ReportContent:
    """Return what a report shows. Raises InputError where the store has no such report."""
    content = results.report_content(store, report_id)
    if content is None:
        raise InputError(
            f"no report {report_id}", where=store.path, remedy="it goes when its trace is removed"
        )
    records = msgspec.json.decode(content["sections"], type=list[_SectionRecord])
    return ReportContent(tuple(map(_section, records)), content["file"])


def _as_json(sections: Sequence[Section]) -> str:
    records = [
        _SectionRecord(
            section.title,
            section.sentences,
            section.tables,
            section.plot,
            tuple(_figure_as_json(figure()) for figure in section.figures),
        )
        for section in sections
    ]
    return msgspec.json.encode(records).decode()


def _figure_as_json(figure: Figure) -> str:
    figure.layout.template = None  # most of the text, and the same in each
    text: str = figure.to_json()
    return text


def _section(record: _SectionRecord) -> Section:
    figures = tuple(partial(_figure, text) for text in record.figures)
    return Section(record.title, record.sentences, record.tables, record.plot, figures)


def _figure(text: str) -> Figure:
    from plotly.graph_objects import Figure

    plain: dict[str, Any] = msgspec.json.decode(text)
    return Figure(plain)
