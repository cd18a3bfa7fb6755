"""What README and tutorial show is what the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.core.files import data_folder

ROOT = Path(__file__).parents[2]
SAMPLE = str(data_folder("sample_traces") / "to-c.jsonl.gz")
PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
OPTIONS = ("--db", ":memory:", "--model", "qwen2-7b", "--hbm", "80GiB")


def excerpt(page: str, first: str) -> list[str]:
    """Return the lines of the code block in `page` that begins with `first`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if block.startswith(first)]
    return block.rstrip("\n").splitlines()


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return what `kvscope analyze` prints for the sample trace, 100 columns wide."""
    assert run(["analyze", SAMPLE, *OPTIONS, *arguments]) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_the_readme_shows_the_first_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """The excerpt in the README is the beginning of the output."""
    shown = excerpt("README.md", "to-c: ")
    assert printed(capsys)[: len(shown)] == shown


def test_the_tutorial_quotes_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    """The table and every figure in italics stand in the output."""
    lines = printed(capsys, "--capacity", "10GiB,20GiB", "--full")
    shown = excerpt("docs/tutorial.md", "Capacity of an LRU cache")
    start = lines.index(shown[0])
    assert lines[start : start + len(shown)] == shown
    output = re.sub(r"\s+", " ", " ".join(lines))
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    for figure in re.findall(r"\d[\d,]*\.?\d*(?:%| blocks)", text):
        assert figure in output, figure


def test_the_tutorials_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The Python example prints the ideal hit rate that the tutorial names."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code.replace("sample_traces/to-c.jsonl.gz", SAMPLE), {})  # noqa: S102  (our own page)
    assert f"{float(capsys.readouterr().out):.1%}" in text


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link and picture exists."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    """Every path of the repository that a page names is there."""
    text = (ROOT / page).read_text(encoding="utf-8")
    folders = "kvscope|tests|docs|benchmarks|queries|dashboard|sample_traces"
    for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
