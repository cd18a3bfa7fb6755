"""What holds of every use case: a screen, sections by name, a page, JSON, and conditions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvscope.app import random_groups
from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.usecases import USE_CASES
from tests.cli.once import computed_once
from tests.cli.replayed import write_short
from tests.cli.shell import Streams

SCREEN = 45  # lines
CLOCK_DECIMALS = re.compile(r"\d\.\d+(h|m|d)\b")  # 1.69h, where people say 1 h 41 min
DEPLOYMENT = "--gpu h100 --model llama3-8b"
OFFLOAD = "--offload vllm@0.33:eviction_policy=lru"
NO_FILE = "--output - --policy lru"
COMMANDS = (
    "analyze short --capacity-blocks 500",
    f"analyze short {DEPLOYMENT}",
    "explain short --capacity-blocks 500",
    "fit short",
    "retention short --model llama3-8b",
    "simulate short --capacity-blocks 500 --policy lru --slo 1s",
    f"tune short --slo 1s --capacity-blocks 500 {NO_FILE}",
    f"tune short --slo 5s --compare-tiers --tier-size 64GiB {OFFLOAD} {DEPLOYMENT} {NO_FILE}",
    "fleet short --slo 1s --capacity-blocks 500 --router round-robin,session --replicas 1..2",
    "diff short other",
)
HASHLESS = {  # of lengths alone: what can be said, and why no more
    "analyze lengths": "without block hashes nothing can be said",
    "fit lengths": "there is no reuse to fit. Use a trace with hashes.",
}
ALONE = {  # of a trace with one request
    "analyze alone": "An infinite cache would hit 0.0%",
    "explain alone": "An infinite cache hits 0.0% of the input tokens",
    "fit alone": "Too little is reused to fit a model to any category",
    "simulate alone --capacity-blocks 9 --policy lru": "lru 0.0%",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store of small traces."""
    folder = tmp_path_factory.mktemp("use-cases")
    write_short(folder, 420)
    lines = (folder / "short.jsonl").read_text().splitlines(keepends=True)
    (folder / "other.jsonl").write_text("".join(lines[100:]))
    (folder / "alone.jsonl").write_text(lines[0])
    (folder / "lengths.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    names = ("short.jsonl", "other.jsonl", "alone.jsonl", "lengths.csv")
    store = str(folder / "kvscope.duckdb")
    assert run(["ingest", *(str(folder / name) for name in names), "--db", store]) == ExitCode.DONE
    return folder


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in the folder of the store."""
    monkeypatch.chdir(folder)


@pytest.fixture(autouse=True, scope="module")
def _computed_once() -> Iterator[None]:
    """Compute each answer once, with few groups for `diff`: what is tried is how it is shown."""
    with pytest.MonkeyPatch.context() as patched, computed_once(*USE_CASES):
        patched.setattr(random_groups, "GROUPS", 3)
        yield


def printed(capsys: Streams, line: str, code: ExitCode = ExitCode.DONE) -> str:
    """Return what a command prints, which forgets what an earlier one stated."""
    forgets = () if line.startswith(("diff", "fit", "retention")) else ("--forget",)
    assert run([*line.split(), *forgets]) == code, capsys.readouterr().err
    return capsys.readouterr().out


def titles(text: str) -> list[str]:
    """Return the titles of the sections that were printed."""
    heads = (line.split(" ─")[0].split(":")[0] for line in text.splitlines() if "────" in line)
    return [head for head in heads if head.strip("─ ")]


def test_every_use_case_is_here() -> None:
    """One that is added gets a command, unless it needs an engine."""
    assert {line.partition(" ")[0] for line in COMMANDS} == {*USE_CASES} - {"calibrate", "validate"}


@pytest.mark.parametrize("line", COMMANDS, ids=str)
def test_one_screen_all_sections_and_a_page(line: str, capsys: Streams) -> None:
    """45 lines of 100 columns; `--full` has more, on the page too; a section comes by its name."""
    page = Path("page.html")
    screen = printed(capsys, line)
    whole = printed(capsys, f"{line} --full --html {page}")
    assert len(screen.splitlines()) <= SCREEN
    for text in (screen, whole):
        for shown in text.splitlines():
            assert shown == shown.rstrip()
            assert len(shown) <= 100 or " " not in shown.strip()
            assert not CLOCK_DECIMALS.search(shown), shown
    last = titles(whole)[-1]
    assert titles(printed(capsys, f"{line} --section {last.upper().replace(' ', '-')}")) == [last]
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert html.count("<h2>") == len(titles(whole))
    assert f"<h2>{last}</h2>" in html


@pytest.mark.parametrize("line", [line for line in COMMANDS if not line.startswith("diff")])
def test_figures_are_conditions(line: str, capsys: Streams) -> None:
    """One that holds is an exit code and a line on stderr; the screen is printed all the same."""
    figures = json.loads(printed(capsys, f"{line} --json")).get("figures") or {}
    names = [name for name, value in figures.items() if name != "verdict" and value]
    for name in names[:1]:
        unit = "s" if re.search(r"\bp\d|tel$", name) else ""
        limit = f"{0.999 * figures[name]:.9f}{unit}"
        conditions = f"{name}<{limit},{name}>={limit}"
        assert run([*line.split(), "--fail-on", conditions]) == ExitCode.CHECK_FAILED
        written = capsys.readouterr()
        assert titles(written.out)
        (reason,) = [each for each in written.err.splitlines() if each.startswith("fail-on")]
        assert reason.startswith(f"fail-on {name}>={limit}: {name} is ")


@pytest.mark.parametrize(("line", "words"), [*HASHLESS.items(), *ALONE.items()])
def test_the_smallest_traces(line: str, words: str, capsys: Streams) -> None:
    """What can be said is said, on the screen and in the document."""
    assert words in " ".join(printed(capsys, line).split())
    assert json.loads(printed(capsys, f"{line} --json"))["command"] == line.partition(" ")[0]
