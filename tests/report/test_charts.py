"""What charts must not do: hide zeros, show unsettled windows as settled, take names for HTML."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvscope.characterize.distributions import Summary
from kvscope.characterize.lifetimes import HazardCurve, ReuseHazard
from kvscope.characterize.spatial import Spatial
from kvscope.characterize.traffic import Contribution, TypeContribution
from kvscope.characterize.turns import (
    CategoryNextTurn,
    ConversationTurns,
    NextTurn,
    NextTurns,
    TurnCount,
    WindowNextTurn,
)
from kvscope.fleet.outcome import Slo
from kvscope.report import report, reuse, space, style, time, traffic
from kvscope.report.fleet import attainment_chart
from kvscope.report.section import (
    Section,
    Table,
    bar,
    curve_plot,
    heat_map,
    sparkline,
    tabulate,
    thinned,
)
from kvscope.report.words import large, left_out
from tests.characterize.tiny import characterize, tiny_store

TURN = NextTurn(1, 0.5, 1, 0.5)


def next_turns(*settled: bool) -> NextTurns:
    """Return a window of an hour each, settled or not."""
    windows = (
        WindowNextTurn(3600.0 * at, "chat 1", 1, 0.5, each) for at, each in enumerate(settled)
    )
    rows = (CategoryNextTurn("chat 1", TURN),)
    return NextTurns(10.0, 3600.0, TURN, TURN, TURN, rows, tuple(windows))


def test_unsettled_windows_lie_under_a_veil() -> None:
    """It begins with the first of them; a trace without any has none."""
    (veil,) = traffic.next_turns_chart(next_turns(True, True, False, False)).layout.shapes
    assert (veil.x0, veil.x1) == (1.5, 3.5)
    assert traffic.next_turns_chart(next_turns(True)).layout.shapes == ()


def test_zero_is_a_gap_in_the_hazard() -> None:
    """No line is drawn across times at which nothing was reused."""
    curve = HazardCurve("chat 1", (0.5, 0.0, 0.5), (9, 9, 9))
    chart = time.hazard_chart(ReuseHazard((1.0, 2.0, 3.0), curve, (curve,)))
    for trace in chart.data:
        assert trace.y == (0.5, None, 0.5)
        assert not trace.connectgaps


def test_rates_have_round_ticks() -> None:
    """The upper axis is one of percentages, 20 apart."""
    with tiny_store() as (store, trace):
        chart = traffic.over_time_chart(characterize(store, trace))
    assert chart.layout.yaxis.dtick == pytest.approx(0.2)
    bars = {trace.yaxis for trace in chart.data if trace.type == "bar"}
    assert not bars & {trace.yaxis or "y" for trace in chart.data if trace.type == "scatter"}


def test_labels_of_bars_have_room() -> None:
    """A row a type and turn: names of two lines do not overlap."""
    rows = tuple(TypeContribution(f"type {k}", k > 4, 1, 0.1, 1, 1, 0.1) for k in range(10))
    chart = reuse.contribution_chart(Contribution(0.5, 0.5, 0.5, 0.5, rows))
    assert chart.layout.height >= 40 * len(rows)


def test_plots_by_turn_lie_below_each_other() -> None:
    """Each is as wide as the page, in a row of its own; only the kinds of requests that exist."""
    cells = ((0.5,) * 10,) * 10
    for single, rows in ((cells, 3), (None, 2)):
        chart = space.spatial_chart(Spatial((0.0,) * 10, (0.1,) * 10, cells, single, cells, ()))
        assert len(chart.data) == rows
        assert {axis.domain for axis in chart.select_xaxes()} == {(0.0, 1.0)}


def test_turns_are_whole_numbers() -> None:
    """Few turns have a tick each, also where nothing has two."""
    histogram = (TurnCount(1, 9), TurnCount(3, 1))
    turns = ConversationTurns(10, Summary(1, 1, 1, 1, 1, 3), 0.9, histogram, None)
    assert traffic.turns_chart(turns).layout.xaxis.dtick == 1


def test_every_word_of_a_page_is_escaped() -> None:
    """Title, lead, headings, sentences, cells: all of it may come from a trace."""
    words = [f"<i>{name}</i>" for name in ("title", "lead", "section", "words", "table", "cell")]
    title, lead, heading, sentence, caption, cell = words
    table = Table(caption, (cell,), ((cell,),), note=cell)
    page = report.page(title, lead, [Section(heading, (sentence,), (table,))])
    assert "<i>" not in page.split("</head>")[1].split("<script")[0]
    assert "<title>&lt;i&gt;title&lt;/i&gt;</title>" in page
    assert "<h1>&lt;i&gt;title&lt;/i&gt;</h1>" in page
    assert style.label("<b>&") == "&lt;b&gt;&amp;"


def test_the_menu_wraps_and_tables_print_whole() -> None:
    """The menu flows over lines, and what scrolls on the screen does not on paper."""
    page = report.page("t", "l", [Section("one"), Section("two")])
    assert "nav { margin: 1rem 0; display: flex; flex-wrap: wrap" in page
    assert ".scroll { overflow: visible; }" in page.split("@media print")[1]


@pytest.mark.parametrize(("log", "place"), [("", 100.0), ("y", 2.0)])
def test_the_text_of_a_level_stands_at_its_line(log: str, place: float) -> None:
    """On a logarithmic axis an annotation's place is an exponent, a line's is not."""
    curve = style.Series("lru", [1, 2], [10.0, 1_000.0])
    chart = style.lines("TTFT", "replicas", "s", [curve], log=log)
    style.level(chart, 100.0, "SLO")
    assert chart.layout.shapes[-1].y0 == 100.0
    assert chart.layout.annotations[-1].y == pytest.approx(place)


@pytest.mark.parametrize(("values", "dtick"), [((14, 14), "D2"), ((2, 90), "D2"), ((14, 15), None)])
def test_a_decade_has_three_labels(values: tuple[float, float], dtick: str | None) -> None:
    """Also where all values are the same, around which the axis has two; not within a decade."""
    chart = style.figure("", "", "")
    chart.add_scatter(x=[1, 2], y=values)
    style.logarithmic(chart, "y")
    assert chart.layout.yaxis.dtick == dtick


def test_a_bar_fills_its_share_in_eighths() -> None:
    """Half of four characters is two; shares beyond the ends are cut."""
    assert bar(0.5, 4) == "██  "
    assert bar(0.0, 4) == "    "
    assert bar(2.0, 4) == "████"
    assert bar(1 / 32, 4) == "▏   "


def test_a_sparkline_has_a_character_a_value() -> None:
    """The top is a full block, a missing value a gap."""
    assert sparkline([0.0, None, 1.0]) == "▁ █"
    assert sparkline([0.0, 0.5], top=1.0) == "▁▅"
    assert sparkline([0, 0]) == "▁▁"


def test_a_heat_map_is_darker_for_more() -> None:
    """Two characters a cell, the largest full."""
    assert heat_map([[0.0, 1.0], [0.5, 0.25]]) == ["  ██", "▒▒░░"]
    assert heat_map([[0.0]]) == ["  "]


def test_thinning_keeps_the_mean_of_each_stretch() -> None:
    """Values that are missing do not count; a stretch without any stays missing."""
    assert thinned([1.0, 3.0, None, 5.0], 2) == [2.0, 5.0]
    assert thinned([None, None, 1.0, 1.0], 2) == [None, 1.0]
    assert thinned([1.0], 5) == [1.0]


def test_a_curve_begins_where_it_rises() -> None:
    """Its ends stand below it, and all curves have one scale; nothing rises, nothing is drawn."""
    at, observed = [1.0, 10.0, 100.0], [0.0, 0.5, 1.0]
    line, ends = curve_plot(at, {"observed": observed}, lambda value: f"{value:g} s")
    assert line == f"{'observed':<16} ▅█"
    assert ends == f"{'':<16} 10 s 100 s"
    assert curve_plot(at, {"flat": [0.0, 0.0, 0.0]}, str) == ()


def test_a_table_is_its_columns() -> None:
    """Each writes its cell of a row; those named are aligned left."""
    columns = {"name": str, "length": lambda word: str(len(word)), "last": lambda word: word[-1]}
    table = tabulate("Words", ["a", "bc"], columns, "a note", words=("last",))
    assert table.columns == ("name", "length", "last")
    assert table.rows == (("a", "1", "a"), ("bc", "2", "c"))
    assert table.words == (2,)


def test_small_rows_are_left_out() -> None:
    """Unless none is large: then the table would be empty."""
    assert large([5, 40, 30], int) == [40, 30]
    assert large([5, 9], int) == [9, 5]
    assert left_out([5, 40, 30], [40, 30]) == "left out: 1 below 30 requests"
    assert left_out([40], [40]) == ""


@pytest.mark.parametrize(
    ("shares", "ends"), [((0.97, 0.99), (0.945, 1.005)), ((0.4,), (0.34, 1.06))]
)
def test_shares_are_drawn_around_the_slo(
    shares: tuple[float, ...], ends: tuple[float, float]
) -> None:
    """From below the least share, or the SLO where all are above it, to above 100 %."""
    router = SimpleNamespace(reference=False)
    runs: Any = [
        SimpleNamespace(
            fleet=SimpleNamespace(replicas=number, router=router),
            outcome=SimpleNamespace(latencies=SimpleNamespace(attainment=share)),
        )
        for number, share in enumerate(shares, start=1)
    ]
    chart = attainment_chart(Slo(2.0, 0.95), {"session": runs})
    assert chart.layout.yaxis.range == pytest.approx(ends)
