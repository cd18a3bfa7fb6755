"""The commands of docs/from-logs.md run as they stand there, on small samples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvscope.cli.app import run
from tests.ingest.formats.conftest import SAMPLES

PAGE = Path(__file__).parents[2] / "docs" / "from-logs.md"
COMMANDS = re.findall(r"`kvscope (analyze (\w+)\.jsonl)`", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("command", "name"), COMMANDS)
def test_the_command_runs(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command ends with a report; its file is named for the format."""
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.jsonl").write_bytes(SAMPLES[name].data)
    assert run([*command.split(), "--db", ":memory:"]) == 0
