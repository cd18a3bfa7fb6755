"""What docs/simulate.md shows is what the program prints, and its profile is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.core.files import data_folder
from kvscope.latency.file import load_profile

PAGE = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text(encoding="utf-8")
SAMPLE = str(data_folder("sample_traces") / "to-c.jsonl.gz")


def excerpts() -> list[list[str]]:
    """Return the lines of every code block without a language."""
    return [
        block.splitlines()
        for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    ]


def squeezed(line: str) -> str:
    """Return a row without its alignment, which depends on other rows of its table."""
    return " ".join(line.split())


def test_the_excerpts_stand_in_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    """The page's first command prints every row that the page shows."""
    (command,) = re.findall(r"^    kvscope (simulate sample_traces.*)$", PAGE, re.MULTILINE)
    words = command.replace("sample_traces/to-c.jsonl.gz", SAMPLE).split()
    assert run([*words, "--db", ":memory:"]) == 0
    printed = {squeezed(line) for line in capsys.readouterr().out.splitlines()}
    rows = [squeezed(line) for block in excerpts() for line in block if "──" not in line]
    assert len(rows) > 8
    for row in rows:
        assert row in printed, row


def test_the_profile_is_one(tmp_path: Path) -> None:
    """The latency file of the page can be read."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "latency.toml"
    path.write_text(text)
    assert load_profile(str(path)).per_token_s == pytest.approx(48.1e-6)


def test_the_sql_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The statement of the page works on a store."""
    import duckdb

    db = str(tmp_path / "store.duckdb")
    options = ["--db", db, "--policies", "lru", "--capacity-blocks", "100,200", "--json"]
    assert run(["simulate", SAMPLE, *options]) == 0
    capsys.readouterr()
    (statement,) = re.findall(r"`(SELECT .*?)`", PAGE)
    with duckdb.connect(db) as connection:
        rows = connection.execute(statement).fetchall()
    assert sorted(row[:2] for row in rows) == [("lru", 100), ("lru", 200)]
    assert all(row[2] > 0 for row in rows)
