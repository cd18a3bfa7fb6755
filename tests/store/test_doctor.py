"""`kvscope doctor`: what it finds, and what it saves."""

from __future__ import annotations

import json
import random
from pathlib import Path
from shutil import copyfile

import duckdb
import pytest

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode, InputError, UsageError
from kvscope.core.trace import Part
from kvscope.ingest.formats.base import Request
from kvscope.store import traces
from kvscope.store.db import open_store
from kvscope.store.doctor import examine, save
from kvscope.store.traces import load_prompts
from tests import small_traces

REQUESTS = [
    Request(
        input_tokens=40,
        output_tokens=4,
        hash_ids=[1, 2, at],
        repeated_tokens=at,
        parts=[Part("system", 9), Part("user", 20 + at)],
    )
    for at in range(5)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with two traces, `trace-0` and `trace-1`."""
    made = tmp_path_factory.mktemp("made") / "store.duckdb"
    with open_store(str(made)) as store:
        for size in (16, 15):
            small_traces.stored(store, REQUESTS, size)
    return made


@pytest.fixture
def path(tmp_path: Path, made: Path) -> str:
    """Return a copy of it."""
    return str(copyfile(made, tmp_path / "store.duckdb"))


def test_a_sound_store_is_sound(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, and nothing is written."""
    before = Path(path).read_bytes()
    assert run(["doctor", "--db", path]) == ExitCode.DONE
    assert f"{path}: sound" in capsys.readouterr().out
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("DELETE FROM requests WHERE trace_id = 1 AND request = 2", "4 requests of 5"),
        (
            "UPDATE requests SET leaf = 1 WHERE trace_id = 1 AND request = 2",
            "1 requests contradict",
        ),
        ("UPDATE blocks SET depth = 9 WHERE trace_id = 1 AND block = 1", "blocks contradict"),
        (
            "UPDATE branches SET parent = 9 WHERE trace_id = 1 AND block = 1",
            "1 branches contradict",
        ),
        ("INSERT INTO own_hash_ids VALUES (1, 99, 5)", "1 own_hash_ids contradict"),
        ("UPDATE reuses SET blocks = 99 WHERE trace_id = 1", "reuses contradict"),
        ("INSERT INTO bad_lines VALUES (1, 0, 'x', '')", "1 bad_lines contradict"),
    ],
)
def test_it_says_what_is_wrong_and_saves_the_rest(
    path: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    statement: str,
    fault: str,
) -> None:
    """A trace whose tables disagree is named; the other one is copied, as it was."""
    with open_store(path) as store:
        (whole,) = [trace for trace in traces.all_traces(store) if trace.name == "trace-1"]
        parents = load_prompts(store, whole).block_parent.tolist()
    with duckdb.connect(path) as connection:
        connection.execute(statement)
    target = str(tmp_path / "saved.duckdb")
    assert run(["doctor", "--db", path, "--save-to", target, "--json"]) == ExitCode.INPUT
    document = json.loads(capsys.readouterr().out)
    assert not document["sound"]
    faults = {trace["name"]: trace["faults"] for trace in document["traces"]}
    assert fault in faults["trace-0"][0]
    assert faults["trace-1"] == []
    assert document["saved"]["traces"] == ["trace-1"]
    assert document["saved"]["left_out"] == ["trace 'trace-0'"]
    with open_store(target) as store:
        assert traces.all_traces(store) == [whole]
        assert load_prompts(store, whole).block_parent.tolist() == parents
        (following,) = store.connection.execute("SELECT nextval('trace_ids')").fetchone() or ()
        assert following > whole.trace_id
    with pytest.raises(UsageError, match="exists already"):
        save(examine(path), target)


@pytest.mark.parametrize(
    "values",
    [
        *(f"requests SET leaf = {value} WHERE request = 2" for value in (2**31 - 1, -(2**31), 0)),
        *(f"requests SET arrival_s = '{value}' WHERE request = 2" for value in ("nan", "inf", -1)),
        *(f"requests SET {name} = 2147483647" for name in ("cached_blocks", "carried_blocks")),
        "requests SET input_tokens = 39 WHERE request = 2",
        "requests SET request = 1 WHERE request = 2",
        "request_attributes SET repeated_tokens = -1 WHERE request = 2",
        "request_attributes SET parts = 7 WHERE request = 2",
        "parts SET above = 2147483647 WHERE part = 2",
        "parts SET above = part",
        "parts SET tokens = 9",
        "parts SET part = 9 WHERE part = 2",
        "branches SET parent = block",
        "branches SET parent = 2147483647",
        "blocks SET blocks = 2147483647",
        "block_groups SET reuses = reuses + 1",
        "traces SET block_size = 0",
    ],
)
def test_values_that_cannot_be_are_one_sentence(
    path: str, capsys: pytest.CaptureFixture[str], values: str
) -> None:
    """For doctor, and for what would compute with them: sound pages may hold anything."""
    with duckdb.connect(path) as connection:
        condition = "AND" if "WHERE" in values else "WHERE"
        connection.execute(f"UPDATE {values} {condition} trace_id = 1")
    assert run(["doctor", "--db", path]) == ExitCode.INPUT
    assert "trace-0: damaged" in capsys.readouterr().out
    assert_refused(capsys, path, "analyze")


def test_no_command_computes_with_a_damaged_trace(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each says it in one line; the other trace is analyzed."""
    with duckdb.connect(path) as connection:
        connection.execute("UPDATE branches SET parent = 2147483647 WHERE trace_id = 1")
    assert_refused(capsys, path, "simulate", "--capacity-blocks", "9")
    assert_refused(capsys, path, "export", "-o", "-", "--to", "mooncake")
    assert run(["analyze", "trace-1", "--db", path]) == ExitCode.DONE


def assert_refused(capsys: pytest.CaptureFixture[str], path: str, *words: str) -> None:
    """Run a command on the damaged trace, which is its only error."""
    assert run([words[0], "trace-0", *words[1:], "--db", path]) == ExitCode.INPUT
    error = capsys.readouterr().err
    assert "trace 'trace-0' is damaged (" in error
    assert error.count("\n") == 1


def test_any_damage_is_told_in_one_line(path: str, tmp_path: Path) -> None:
    """Wherever bytes are wrong: a store is sound, or its faults have words; never another error."""
    whole = Path(path).read_bytes()
    generator = random.Random(7)
    damaged = tmp_path / "damaged.duckdb"
    unsound = 0
    for number in range(12):
        content = bytearray(whole)
        at = generator.randrange(len(content) - 512) if number else 20
        content[at : at + 512] = generator.randbytes(512)
        damaged.write_bytes(content)
        try:
            health = examine(str(damaged))
        except InputError:
            unsound += 1
            continue
        unsound += not health.is_sound
        save(health, str(tmp_path / f"saved-{number}.duckdb"))
    assert unsound
