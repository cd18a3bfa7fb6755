"""The commands of docs/hash.md run as they stand there."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="make setup installs it")

from kvscope.chat_logs.convert import FORMATS
from kvscope.cli.app import run
from tests.chat_logs.models import write_model

PAGE = (Path(__file__).parents[2] / "docs" / "hash.md").read_text(encoding="utf-8")


def test_the_commands_lead_from_a_log_to_an_analysis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a log and a model under the names of the page."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    head = {"role": "system", "content": "Answer in the words of the definitions. " * 20}
    chats = [[head, {"role": "user", "content": f"What is block {each}?"}] for each in range(40)]
    lines = [{"messages": chat, "timestamp": at} for at, chat in enumerate(chats)]
    text = "\n".join(map(json.dumps, lines)).encode()
    (tmp_path / "gateway.jsonl.gz").write_bytes(gzip.compress(text))
    commands = re.findall(r"^    kvscope (.*)$", PAGE, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["hash", "analyze"]
    for command in commands:
        assert run(shlex.split(command)) == 0
    assert "40 requests" in capsys.readouterr().out


def test_every_format_is_explained() -> None:
    """A row of the table each."""
    for name in FORMATS:
        assert f"| `{name}` |" in PAGE
