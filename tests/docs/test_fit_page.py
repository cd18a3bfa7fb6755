"""What docs/fit.md shows is what the program prints, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.core.files import data_folder
from kvscope.reuse_models.selection import MODELS

PAGE = (Path(__file__).parents[2] / "docs" / "fit.md").read_text(encoding="utf-8")
FOLDER = data_folder("sample_traces")


def squeezed(line: str) -> str:
    return " ".join(line.split())


def test_the_excerpts_stand_in_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    """Each row of the page is printed for one of its two samples."""
    for sample in ("to-c", "birth-death"):
        assert run(["fit", str(FOLDER / f"{sample}.jsonl.gz"), "--full", "--db", ":memory:"]) == 0
    printed = {squeezed(line) for line in capsys.readouterr().out.splitlines()}
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    rows = [squeezed(line) for block in blocks for line in block.splitlines() if "──" not in line]
    assert len(rows) > 12
    for row in rows:
        assert row in printed, row


def test_every_model_is_explained() -> None:
    """Its name and its parameters."""
    for kind in MODELS:
        (row,) = re.findall(rf"^\| `{kind.name}` \|.*$", PAGE, re.MULTILINE)
        for name in kind.parameters:
            assert f"`{name}`" in row


def test_the_sql_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The statement of the page lists the models to use."""
    import duckdb

    db = str(tmp_path / "store.duckdb")
    assert run(["fit", str(FOLDER / "to-c.jsonl.gz"), "--db", db]) == 0
    capsys.readouterr()
    (statement,) = re.findall(r"`(SELECT .*?)`", PAGE)
    with duckdb.connect(db) as connection:
        rows = connection.execute(statement).fetchall()
    assert ("text 1", "hyperexponential") in [row[:2] for row in rows]
    assert len(rows) == 6


def test_the_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The example prints an interval around the shape that it drew from."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})  # noqa: S102  (our own page)
    low, high, within = (float(text) for text in re.findall(r"\d\.\d+", capsys.readouterr().out))
    assert low < 0.7 < high
    assert within == pytest.approx(0.63, abs=0.03)
