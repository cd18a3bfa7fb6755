"""Reports in the store: results of commands, to be opened again as they were shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from kvscope.core import units
from kvscope.core.errors import InputError
from kvscope.core.trace import Trace
from kvscope.report.section import Section, Table, tabulate
from kvscope.report.words import count
from kvscope.store import results, traces
from kvscope.store.db import Store
from kvscope.store.file import CANNOT_STORE, Stores

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from kvscope.report.report import Report
    from kvscope.usecases.base import AnyUseCase


class StoredReport(Struct, frozen=True):
    """A report in a list, without content: made by version `kvscope` at `created_at` (UTC).

    `duration_s` is the command's, `question` the digest of its request by `question_of`, `settings`
    the deployment in words.
    """

    DOCUMENT: ClassVar[str] = "command summary created_at duration_s kvscope"
    report_id: int
    trace: str
    command: str
    summary: str
    created_at: datetime
    duration_s: float
    kvscope: str
    question: str | None = None
    settings: str | None = None


class ReportContent(Struct, frozen=True):
    """A stored report's sections, and its recommendation.toml and JSON document, if any."""

    sections: tuple[Section, ...]
    file: str | None
    document: str | None = None


class _StoredSection(Section, frozen=True):
    """A section as it is stored: each figure is plotly's JSON."""

    figures: tuple[str, ...] = ()  # type: ignore[assignment]


def keep(
    stores: Stores,
    report: Report,
    duration_s: float,
    *,
    summary: str = "",
    note: Callable[[str], None] | None = None,
    **columns: str | None,
) -> ReportContent:
    """Return a report's content; also store it, if its trace is in the store.

    `summary` is its answer in one line, by default its first sentence. `columns` are further
    columns of the store: `file`, `question`, `settings`. `note` receives the reason if the report
    cannot be stored; without `note`, the error is raised.
    """
    from kvscope.usecases.documents import to_json

    sections = report.sections()
    sentences = (text for section in sections for text in section.sentences)
    written = {
        "command": report.title,
        "summary": summary or next(sentences, report.title),
        "duration_s": duration_s,
        "sections": msgspec.json.encode(sections, enc_hook=_figure_as_json).decode(),
        "document": to_json(report.document()),
        **dict.fromkeys(("file", "question", "settings")),
        **columns,
    }
    try:
        with stores.writing() as store:
            if report.trace and report.trace in traces.all_traces(store):
                results.add_report(store, report.trace, **written)
    except CANNOT_STORE as error:
        if note is None:
            raise
        note(f"the report was not stored: {error}")
    return _content(written)


def keep_answer(
    stores: Stores,
    case: AnyUseCase,
    request: Any,
    result: Any,
    duration_s: float,
    note: Callable[[str], None],
) -> ReportContent:
    """Store the report on a use case's result for a request; return its content."""
    summary, file = "", None
    if case.file is not None and case.file.summary and case.file.text:
        summary, file = case.file.summary(result), case.file.text(result)
    where = getattr(request, "deployment", None)
    return keep(
        stores,
        case.report(result),
        duration_s,
        summary=summary,
        note=note,
        file=file,
        question=question_of(request),
        settings=None if where is None else where.summary,
    )


def question_of(request: Any) -> str:
    """Return a digest of a use case's request, by which a stored report on the same is found.

    It is the same whether a default is stated or left out, with and without timeline (`perfetto`).
    """
    for beside, nothing in (("given", frozenset()), ("perfetto", None)):
        if hasattr(request, beside):
            request = replace(request, **{beside: nothing})
    return sha256(repr(request).encode()).hexdigest()


def all_reports(store: Store) -> list[StoredReport]:
    """Return the reports over all traces, the latest first."""
    return [msgspec.convert(row, StoredReport) for row in results.all_reports(store)]


def section(reports: Sequence[StoredReport]) -> Section:
    """Return the section of a trace's page that lists the reports on it, a sentence for each."""
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
    """Return a report's content. Raises InputError if the store has no such report."""
    content = results.report_content(store, report_id)
    if content is None:
        raise InputError(
            f"no report {report_id}", where=store.path, remedy="it goes when its trace is removed"
        )
    return _content(content)


def _content(columns: Mapping[str, Any]) -> ReportContent:
    sections = (
        Section(
            **asdict(each) | {"figures": tuple(partial(_figure, text) for text in each.figures)}
        )
        for each in msgspec.json.decode(columns["sections"], type=list[_StoredSection])
    )
    return ReportContent(tuple(sections), columns["file"], columns["document"])


def _figure_as_json(build: Callable[[], Figure]) -> str:
    figure = build()
    figure.layout.template = None  # most of the text, and the same in each
    text: str = figure.to_json()
    return text


def _figure(text: str) -> Figure:
    from plotly.graph_objects import Figure

    plain: dict[str, Any] = msgspec.json.decode(text)
    return Figure(plain)
