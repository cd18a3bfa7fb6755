"""What pages show is what the program prints, and their commands, SQL and Python run."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import get_args

import duckdb
import pytest

from kvscope.cli.app import COMMANDS, run
from kvscope.core.errors import ExitCode
from kvscope.core.files import data_folder
from kvscope.latency.file import load_profile
from kvscope.reuse_models.selection import MODELS
from kvscope.tuning.rule import Verdict
from kvscope.tuning.target import HELD_OUT, VALIDATION, WARMUP, Limits
from tests.cli.shell import Streams

ROOT = Path(__file__).parents[2]
SAMPLES = str(data_folder("sample_traces"))


def text_of(page: str) -> str:
    """Return a page of the docs, or the README."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str = "") -> list[str]:
    """Return the code blocks of a page in a language, by default those without one."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    """Return the commands of a page, without their first word."""
    return re.findall(r"^    kvscope (.*)$", text_of(page), re.MULTILINE)


def squeezed(text: str) -> str:
    """Return a text without its alignment, which depends on other rows of its table."""
    return " ".join(text.split())


def output(capsys: Streams, *words: str) -> str:
    """Run a command on samples and a store in memory, and return what it prints."""
    paths = (word.replace("sample_traces", SAMPLES) for word in words)
    assert run([*paths, "--db", ":memory:"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("page", "command", "shown"),
    [
        ("docs/tune.md", "tune sample_traces", ("docs/tune.md", "README.md")),
        ("docs/fleets.md", "fleet sample_traces", ("docs/fleets.md",)),
    ],
)
def test_the_excerpt_stands_in_the_output(
    page: str, command: str, shown: tuple[str, ...], capsys: Streams
) -> None:
    """The page's command prints its block as a whole; the README has the same command."""
    (words,) = (each for each in commands(page) if each.startswith(command))
    more = ("--output", "-") if command.startswith("tune") else ()
    printed = squeezed(output(capsys, *words.split(), *more))
    for each in shown:
        assert f"kvscope {words}" in text_of(each)
        excerpts = [block for block in blocks(each) if squeezed(block) in printed]
        assert len(excerpts) == 1, each


@pytest.mark.parametrize(
    ("page", "made", "least"),
    [
        ("docs/simulate.md", (), 9),
        ("docs/fit.md", ("to-c", "birth-death"), 13),
    ],
)
def test_the_rows_stand_in_the_output(
    page: str, made: tuple[str, ...], least: int, capsys: Streams
) -> None:
    """Each row of the page's blocks is printed by its command, or by `fit` of samples."""
    words = [f"fit sample_traces/{name}.jsonl.gz --full" for name in made]
    words = words or [each for each in commands(page) if each.startswith("simulate sample_traces")]
    printed = {
        squeezed(line)
        for command in words
        for line in output(capsys, *command.split()).splitlines()
    }
    lines = [line for block in blocks(page) for line in block.splitlines()]
    rows = [squeezed(line) for line in lines if "──" not in line]
    assert len(rows) >= least
    for row in rows:
        assert row in printed, row


@pytest.mark.parametrize(
    ("page", "options", "rows"),
    [
        ("docs/fit.md", "fit", {("text 1", "hyperexponential")}),
        (
            "docs/simulate.md",
            "simulate --policy lru --capacity-blocks 100,200",
            {("lru", 100), ("lru", 200)},
        ),
    ],
)
def test_the_sql_runs(
    page: str, options: str, rows: set[tuple[object, object]], tmp_path: Path
) -> None:
    """The statement of the page works on a store."""
    db = str(tmp_path / "store.duckdb")
    command, *more = options.split()
    assert run([command, f"{SAMPLES}/to-c.jsonl.gz", "--db", db, *more]) == 0
    (statement,) = re.findall(r"`(SELECT .*?)`", text_of(page))
    with duckdb.connect(db) as connection:
        found = connection.execute(statement).fetchall()
    assert rows <= {row[:2] for row in found}
    assert len(found) == (6 if command == "fit" else 2)


def test_tune_states_the_limits_and_windows_of_the_program() -> None:
    """The tables state the defaults, and every verdict is explained."""
    limits, page = Limits(), text_of("docs/tune.md")
    shares = {"warm-up": WARMUP, "validation": VALIDATION, "held-out": HELD_OUT}
    for text in (
        f"at most {limits.attainment_loss * 100:g} percentage points fewer",
        f"at most {limits.tail_ratio - 1:.0%} more",
        f"at most {limits.max_p50_regression:.0%} more",
        f"at least {limits.min_throughput:.0%} of LRU's",
        *(f"| {name} | {share:.0%}" for name, share in shares.items()),
        f"| training | {1 - sum(shares.values()):.0%} |",
    ):
        assert text.replace("%", " %") in page
    for verdict in get_args(Verdict):
        assert f"| `{verdict}` |" in page


def test_every_model_is_explained() -> None:
    """A row of a table each, with its parameters."""
    for kind in MODELS:
        (row,) = re.findall(rf"^\| `{kind.name}` \|.*$", text_of("docs/fit.md"), re.MULTILINE)
        assert all(f"`{name}`" in row for name in kind.parameters)


def test_the_python_of_fit_runs(capsys: Streams) -> None:
    """The example prints an interval around the shape that it drew from."""
    (code,) = blocks("docs/fit.md", "python")
    exec(code, {})  # noqa: S102  (our own page)
    low, high, within = (float(text) for text in re.findall(r"\d\.\d+", capsys.readouterr().out))
    assert low < 0.7 < high
    assert within == pytest.approx(0.63, abs=0.03)


def test_the_profile_of_simulate_is_one(tmp_path: Path) -> None:
    """The latency file of the page can be read."""
    (text,) = blocks("docs/simulate.md", "toml")
    path = tmp_path / "latency.toml"
    path.write_text(text)
    assert load_profile(str(path)).per_token_s == pytest.approx(48.1e-6)


def test_a_baseline_fails_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """The first command of docs/ci.md writes the baseline, the second fails for its reason."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(data_folder("sample_traces") / "to-c.jsonl.gz", "traffic.jsonl.gz")
    lines, reason = re.findall(r"```(?:sh)?\n(.*?)```", text_of("docs/ci.md"), re.DOTALL)
    for line in lines.splitlines():
        command, _, target = line.partition(" > ")
        code = run(shlex.split(command)[1:])
        written = capsys.readouterr()
        if target:
            assert code == ExitCode.DONE
            Path(target).write_text(written.out)
    assert code == ExitCode.CHECK_FAILED
    assert reason in written.err


def test_what_is_generated_is_that_of_the_program() -> None:
    """docs/cli.md is what `make docs` writes now, and has every command; so are the versions."""
    from docs.generate import DEPLOYMENT, TARGET, deployment_page, reference

    assert DEPLOYMENT.read_text(encoding="utf-8") == deployment_page()
    page = TARGET.read_text(encoding="utf-8")
    assert page == reference()
    assert all(f"## kvscope {name}\n" in page for name, _ in COMMANDS)


def test_the_newest_schemas_are_linked() -> None:
    """docs/json.md leads to the newest version of each, and to no other."""
    newest: dict[str, int] = {}
    for path in (ROOT / "docs" / "schemas").glob("*.json"):
        name, _, version = path.stem.rpartition("-")
        newest[name] = max(newest.get(name, 0), int(version))
    linked = re.findall(r"\(schemas/(.*?)-(\d+)\.json\)", text_of("docs/json.md"))
    assert {name: int(version) for name, version in linked} == newest
