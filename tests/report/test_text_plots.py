"""Plots of characters: their length, their ends, what is missing."""

from __future__ import annotations

from kvscope.report.section import bar, heat_map, sparkline, thinned


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
