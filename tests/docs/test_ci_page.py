"""The commands of docs/ci.md run as they stand there, and end as the page says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.core.files import data_folder

PAGE = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")


def test_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first command writes the baseline, the second fails on it for the reason shown."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(data_folder("sample_traces") / "to-c.jsonl.gz", "traffic.jsonl.gz")
    commands, reason = re.findall(r"```(?:sh)?\n(.*?)```", PAGE, re.DOTALL)
    for line in commands.splitlines():
        command, _, target = line.partition(" > ")
        code = run(shlex.split(command)[1:])
        written = capsys.readouterr()
        if target:
            assert code == ExitCode.DONE
            Path(target).write_text(written.out)
    assert code == ExitCode.CHECK_FAILED
    assert reason in written.err
