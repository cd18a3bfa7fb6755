"""Tables and plots of characters: their length, their ends, what is missing, what is left out."""

from __future__ import annotations

from kvscope.report.section import bar, curve_plot, heat_map, sparkline, tabulate, thinned
from kvscope.report.words import large, left_out


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
