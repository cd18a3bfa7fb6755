"""The docs build as a site, strictly, and no page of it loads anything from a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs.site.offline import external_loads

ROOT = Path(__file__).parents[2]


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


@pytest.mark.slow
def test_the_site_builds_and_needs_no_network(tmp_path: Path) -> None:
    """Every page is in the navigation, every link and anchor exists, all resources are local."""
    config = ROOT / "docs" / "site" / "mkdocs.yml"
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    subprocess.run(
        [*build, "--config-file", config, "--site-dir", tmp_path / "site"],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=True,
        timeout=120,
    )
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in (tmp_path / "site").glob("*.html")}
    assert list(external_loads(tmp_path / "site")) == []
