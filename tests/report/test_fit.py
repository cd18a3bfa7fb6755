"""What a fit says in words and charts: plurals, foreign names, what is not known."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from kvscope.core import units
from kvscope.core.files import data_folder
from kvscope.ingest.pipeline import ingest
from kvscope.report import fit as charts
from kvscope.report.fit import headline, sections
from kvscope.report.words import interval_in_words
from kvscope.reuse_models.fit import fit
from kvscope.reuse_models.results import Fit
from kvscope.store.db import MEMORY, open_store
from kvscope.usecases.fit import USE_CASE


@cache
def fitted() -> Fit:
    with open_store(MEMORY) as store:
        path = str(data_folder("sample_traces") / "to-c.jsonl.gz")
        return fit(store, ingest(store, path).trace)


def words(of: Fit) -> str:
    return " ".join(headline(of).sentences)


def test_charts_show_what_was_fitted() -> None:
    """A line for the observed curve and each model, the chosen one named; windows; turns."""
    row = next(row for row in fitted().categories if row.category == "text 1")
    names = [trace.name for trace in charts.reuse_chart(row).data]
    assert names[0] == "observed (Kaplan-Meier)"
    assert "hyperexponential: use this" in names
    assert len(names) == 5
    windows = fitted().windows
    assert windows is not None
    assert len(charts.by_window_chart(windows, "text 1").data) >= 5
    gaps = charts.over_time_chart(windows, ["text 1", "nobody"], "Mean reuse gap over time")
    assert [line.name for line in gaps.data] == ["text 1"]
    (turns,) = charts.next_turns_chart(fitted()).data
    assert list(turns.x) == [1, 2, 3, 4, 5]
    assert all(up >= 0 for up in turns.error_y.array)
    assert all(down >= 0 for down in turns.error_y.arrayminus)


def test_foreign_names_stay_text() -> None:
    """A category that a trace calls like HTML is escaped everywhere."""
    odd = "<b>x</b> 1"
    row = next(row for row in fitted().categories if row.category == "text 1")
    models = [replace(m, category=odd) for m in fitted().models if m.category == "text 1"]
    of = replace(fitted(), categories=(replace(row, category=odd),), models=tuple(models))
    assert "<b>x" not in USE_CASE.report(of).html()


def test_what_nobody_follows() -> None:
    """Without an exponential category, without conversations, without stability it says so."""
    text_1 = tuple(row for row in fitted().categories if row.category == "text 1")
    models = tuple(m for m in fitted().models if m.category == "text 1")
    of = replace(fitted(), categories=text_1, models=models, windows=None, conversation=None)
    text = words(of)
    assert "Reuse clearly follows an exponential after no category." in text
    assert "too short to tell how stable" in text
    assert "Too few follow-up turns to fit a model of conversations." in text
    assert "Too few gaps" not in text
    unfit = replace(
        text_1[0], fits=False, verdict="not exponential: weibull is nearest, but misses 9%"
    )
    text = words(replace(of, categories=(unfit,)))
    assert "After text 1: not exponential: weibull is nearest, which does not fit either." in text


def test_every_section_has_its_tables() -> None:
    """Five sections; no row of a table is longer or shorter than its head."""
    made = sections(fitted())
    titles = ["Summary", "Models", "Stability", "Conversations", "Next prompts"]
    assert [section.title for section in made] == titles
    for section in made:
        for table in section.tables:
            assert {len(row) for row in table.rows} == {len(table.columns)}


def test_deaths_that_were_not_seen() -> None:
    """A rate of 0 has no time between two of them."""
    conversation = fitted().conversation
    assert conversation is not None
    of = replace(fitted(), conversation=replace(conversation, death_rate_per_s=0.0))
    assert "have no observed end" in words(of)
    assert len(sections(of)) == 5


def test_intervals_in_words() -> None:
    """Shares say their unit once, rates each their own, and what is not known is a question."""
    assert interval_in_words((0.101, 0.25), units.format_share) == "10.1–25.0%"
    assert interval_in_words((0.5, 2.0), units.format_rate) == "0.5/s to 2/s"
    assert interval_in_words(None, units.format_share) == "?"
