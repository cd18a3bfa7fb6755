"""A report in the store: opened again as it was shown, and gone with its trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvscope.core.errors import InputError
from kvscope.ingest.formats.base import Request
from kvscope.report import style
from kvscope.report.report import Report
from kvscope.report.section import Section, Table
from kvscope.report.stored import all_reports, keep, open_report
from kvscope.store import results, traces
from kvscope.store.db import open_store
from tests.small_traces import stored

REQUESTS = [
    Request(input_tokens=32, output_tokens=1, arrival_s=float(at), hash_ids=[1, 2])
    for at in range(3)
]


def _section(title: str) -> Section:
    table = Table("Sizes", ("name", "blocks"), (("lru", "5"),), note="idle", words=(1,))
    chart = style.lines("Hits", "x", "y", style.curves([1.0, 2.0], {"lru": [0.5, None]}))
    return Section.of(title, "Keep LRU.", table, lambda: chart, plot=["▁▂"])


def test_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences, tables, charts and the file come back; the latest few of a trace stay."""
    monkeypatch.setattr(results, "MOST_REPORTS", 2)
    with open_store(str(tmp_path / "store.duckdb")) as store:
        trace = stored(store, REQUESTS, 16)
        for title in ("first", "second", "third"):
            report = Report(
                "kvscope tune",
                trace,
                document=dict,
                screen=list,
                sections=lambda title=title: [_section(title)],  # type: ignore[misc]
            )
            keep(store, report, 1.5, file="verdict")
        listed = all_reports(store)
        assert [each.summary for each in listed] == ["Keep LRU."] * 2
        assert (listed[0].trace, listed[0].command) == (trace.name, "kvscope tune")
        assert listed[0].duration_s == 1.5
        content = open_report(store, listed[0].report_id)
        (shown,) = content.sections
        assert content.file == "verdict"
        asked = _section("third")
        for name in ("title", "sentences", "tables", "plot"):
            assert getattr(shown, name) == getattr(asked, name)
        (figure,) = shown.figures
        assert list(figure().data[0].y) == [0.5, None]
        assert figure().layout.title.text == "Hits"
        traces.remove(store, trace)
        assert all_reports(store) == []
        with pytest.raises(InputError, match="no report"):
            open_report(store, listed[0].report_id)
        keep(store, report, 1.5)  # the trace was removed while the command computed
        assert all_reports(store) == []
