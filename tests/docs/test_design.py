"""The page on the design has every room in the order of the layers, and bounds each change."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (an? .*?) \| (.*?) \| `([\w.]+)` \|$", PAGE, re.MULTILINE)
MOST = 4  # files of a kind of change


def rooms() -> list[str]:
    """Return the rooms of the page's picture, from top to bottom."""
    (picture,) = re.findall(r"^```\n(cli, .*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    rows = [re.split(r" {2,}", line)[0] for line in picture.splitlines()]
    return [room for row in rows for room in row.split(", ")]


def test_every_room_is_on_the_page() -> None:
    """As a row of the picture."""
    folders = {path.parent.name for path in (ROOT / "kvscope").glob("*/__init__.py")}
    assert folders == set(rooms()) - {"api", "results"}


def test_rows_are_in_the_order_of_the_layers() -> None:
    """Imports go down the picture as `make lint` has them."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = config["tool"]["importlinter"]["contracts"][0]["layers"]
    assert rooms() == [room for layer in layers for room in re.findall(r"\w+", layer)]


@pytest.mark.parametrize(("change", "files", "word"), ROWS, ids=[row[2] for row in ROWS])
def test_a_change_touches_the_files_of_its_row(change: str, files: str, word: str) -> None:
    """No other file of the program names what the change of the example added."""
    listed = set(re.findall(r"`([\w./]+)`", files))
    assert len(listed) <= MOST
    assert all((ROOT / path).exists() for path in listed)
    naming = {
        str(path.relative_to(ROOT))
        for folder in ("kvscope", "dashboard")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(rf"\b{re.escape(word)}\b", path.read_text(encoding="utf-8"))
    }
    assert naming <= listed


def test_every_kind_of_change_has_a_row() -> None:
    """A policy, a router, a format, a use case, a figure, an engine version."""
    assert len(ROWS) == 6
