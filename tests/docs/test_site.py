"""The check that `make site` ends with: no page of the site loads anything from a network."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from docs.site.offline import external_loads
from kvscope.cli.app import run
from tests.cli.shell import Streams
from tests.golden.samples import write_beginnings


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


ROOT = Path(__file__).parents[2]
ROW = re.compile(
    r"^\|[^|]+\| (?:`kvscope (?P<words>[^`]+)`|the same) \| (?P<read>.+) \|$", re.MULTILINE
)


def test_its_commands_run_and_their_documents_have_what_is_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """In the order of the page, each on what the ones before have stored."""
    page = (ROOT / "skills" / "kvscope" / "SKILL.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    write_beginnings(tmp_path / "sample_traces", 450)
    document: Any = {}
    documents: dict[str, Any] = {}
    rows = list(ROW.finditer(page))
    assert len(rows) == 8
    for row in rows:
        if row["words"]:
            words = shlex.split(row["words"])
            assert run(words) == 0, row["words"]
            printed = capsys.readouterr().out
            document = json.loads(printed) if "--json" in words else None
            documents[words[0]] = document
        for path in re.findall(r"`([a-z_.\[\]]+)`", row["read"]):
            if document is not None:
                assert _has(document, path.split(".")), path
    for path in ("recommendation.canary", "enough_requests.need", "rows[].slo"):
        assert _has(documents["tune"], path.split(".")), path


def _has(document: Any, path: list[str]) -> bool:
    """Return whether a document has a field, in the first entry of each list on the way."""
    for step in path:
        name = step.removesuffix("[]")
        if name not in document:
            return False
        document = document[name]
        if name != step:
            document = document[0]
    return True
