"""The page for agents: its commands run, and what it says to read is in their documents."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.app import run

ROOT = Path(__file__).parents[2]
ROW = re.compile(
    r"^\|[^|]+\| (?:`kvscope (?P<words>[^`]+)`|the same) \| (?P<read>.+) \|$", re.MULTILINE
)


def test_its_commands_run_and_their_documents_have_what_is_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the page, each on what the ones before have stored."""
    page = (ROOT / "skills" / "kvscope" / "SKILL.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
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
