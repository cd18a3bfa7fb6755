"""What pages show is what the program prints; pages are short, and their links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.core.files import data_folder
from tests.cli.shell import Streams

ROOT = Path(__file__).parents[2]
SAMPLE = str(data_folder("sample_traces") / "to-c.jsonl.gz")
PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
LONGEST, ALL = 1_500, 18_000  # words of a page, of all of them
OPTIONS = ("--db", ":memory:", "--model", "qwen2-7b", "--hbm", "80GiB")


def excerpt(page: str, first: str) -> list[str]:
    """Return the lines of the code block in `page` that begins with `first`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if block.startswith(first)]
    return block.rstrip("\n").splitlines()


def printed(capsys: Streams, *arguments: str) -> list[str]:
    """Return what `kvscope analyze` prints for the sample trace, 100 columns wide."""
    assert run(["analyze", SAMPLE, *OPTIONS, *arguments]) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_the_page_shows_the_first_screen(capsys: Streams) -> None:
    """The excerpt is the beginning of the output, and every figure of the text stands in it."""
    shown = excerpt("docs/analyze.md", "to-c: ")
    assert printed(capsys)[: len(shown)] == shown
    output = re.sub(r"\s+", " ", " ".join(printed(capsys, "--full")))
    text = (ROOT / "docs" / "analyze.md").read_text(encoding="utf-8")
    for figure in re.findall(r"\d[\d,]*\.?\d*(?:%| blocks)", text):
        assert figure in output, figure


def test_the_python_of_analyze_runs(capsys: Streams) -> None:
    """The example prints the ideal hit rate that the page names."""
    text = (ROOT / "docs" / "analyze.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code.replace("sample_traces/to-c.jsonl.gz", SAMPLE), {})  # noqa: S102  (our own page)
    assert f"{float(capsys.readouterr().out):.1%}" in text


def test_the_first_page_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """Each command, without what the one before stated, prints every line of the block below."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample_traces").symlink_to(data_folder("sample_traces"))
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    steps = re.findall(r"^    kvscope ([^\n]*)\n\n```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(steps) == 3
    for command, block in steps:
        assert run(shlex.split(command)) == 0
        output = " ".join(capsys.readouterr().out.split())
        for line in block.splitlines():
            assert " ".join(line.strip("─").split()) in output, line


def test_pages_are_short() -> None:
    """Without the reference of the command line and the evidence."""
    words = {
        page: len((ROOT / page).read_text(encoding="utf-8").split())
        for page in PAGES
        if re.match(r"docs/(?!evidence|cli)", page)
    }
    assert max(words.values()) <= LONGEST, words
    assert sum(words.values()) <= ALL, words


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
