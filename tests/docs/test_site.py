"""The check that `make site` ends with: no page of the site loads anything from a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.site.offline import external_loads


@pytest.mark.parametrize(
    ("markup", "loads"),
    [
        ('<script src="https://cdn.example/a.js"></script>', 1),
        ('<script src="assets/a.js"></script>', 0),
        ('<link rel="stylesheet" href="//fonts.example/css">', 1),
        ('<link rel="preconnect" href="https://fonts.example">', 1),
        ('<link rel="canonical" href="https://kvscope.example/">', 0),
        ('<img src="data:image/png;base64,AA" srcset="HTTPS://example/a.png 2x">', 1),
        ('<p style="background: url(https://example/a.png)">', 1),
        ("<style>@import 'https://example/a.css'; b {}</style>", 1),
        ('<a href="https://example/">a link loads nothing</a>', 0),
    ],
)
def test_external_loads_are_seen(tmp_path: Path, markup: str, loads: int) -> None:
    """Whatever a browser fetches with the page counts; a link to follow does not."""
    (tmp_path / "index.html").write_text(f"<!doctype html><title>t</title>{markup}")
    assert len(list(external_loads(tmp_path))) == loads


def test_external_loads_of_styles_are_seen(tmp_path: Path) -> None:
    """Fonts and imports of a style sheet count too."""
    (tmp_path / "a.css").write_text('@font-face{src:url("https://fonts.example/a.woff2")}')
    assert list(external_loads(tmp_path)) == ["a.css: https://fonts.example/a.woff2"]
