"""A store is open only while it is read or written, and what is not kvscope's stays as it is."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode, InputError, StoreBusyError
from kvscope.ingest.formats.base import Request
from kvscope.store import traces
from kvscope.store.db import open_store
from kvscope.store.failures import Waiting
from kvscope.store.file import StoreFile
from tests import small_traces

REQUESTS = [Request(input_tokens=40, output_tokens=4, hash_ids=[1, 2, at]) for at in range(5)]

# Holds the store open, to write it or not, until its standard input ends.
_HOLD = """
import sys
from kvscope.store.db import open_store
with open_store(sys.argv[1], read_only=sys.argv[2] == "read"):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a store with one trace."""
    name = str(tmp_path / "store.duckdb")
    with open_store(name) as store:
        small_traces.stored(store, REQUESTS, 16)
    return name


@contextmanager
def held(path: str, how: str) -> Iterator[subprocess.Popen[str]]:
    """Let another process have the store open to "read" or to "write" it."""
    command = [sys.executable, "-c", _HOLD, path, how]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        yield holder
        assert holder.stdin is not None
        holder.stdin.close()


def test_it_is_closed_between_uses(path: str) -> None:
    """Between reading and writing, other processes write it; while it is read, they read it."""
    with StoreFile(path) as stores:
        with stores.reading() as store:
            (trace,) = traces.all_traces(store)
            with held(path, "read"):
                assert traces.all_traces(store) == [trace]
        with held(path, "write"):
            pass
        with stores.writing() as store:
            traces.remove(store, trace)
        with stores.reading() as store:
            assert not traces.all_traces(store)


def test_writers_wait_for_each_other(path: str) -> None:
    """A writer gets its turn once the other ends, and says which one it waits for."""
    notes: list[str] = []
    with held(path, "write") as holder:
        assert holder.stdin is not None
        threading.Timer(1.6, holder.stdin.close).start()
        with open_store(path, waiting=Waiting(30.0, notes.append)) as store:
            assert len(traces.all_traces(store)) == 1
    assert len(notes) == 1
    assert f"process {holder.pid} (" in notes[0]
    assert "is using the store; waiting for up to 30 s" in notes[0]


def test_the_wait_is_bounded(path: str) -> None:
    """A reader keeps a writer waiting, but not for ever; the message names the command."""
    with (
        held(path, "read") as holder,
        pytest.raises(StoreBusyError, match=rf"process {holder.pid} \(python.* is using"),
        StoreFile(path).writing(patience_s=0.1),
    ):
        pass


def test_a_missing_store_is_empty_or_refused(tmp_path: Path) -> None:
    """To read it creates no file."""
    missing = str(tmp_path / "none.duckdb")
    with StoreFile(missing).reading() as store:
        assert not traces.all_traces(store)
    for use in (StoreFile(missing, create=False).reading, StoreFile(missing, create=False).writing):
        with pytest.raises(InputError, match="no such store"), use():
            pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["traces"], ["runs"], ["ingest", "t.jsonl"], ["doctor"]])
def test_a_foreign_database_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Neither a table nor a byte is written to a DuckDB file of others, with a log or without."""
    foreign = tmp_path / "theirs.duckdb"
    with duckdb.connect(str(foreign)) as connection:
        connection.execute("CREATE TABLE schema_version (version VARCHAR)")
        connection.execute("CREATE TABLE mine AS SELECT 1 AS x")
    before = foreign.read_bytes()
    if command[0] == "ingest":
        command = ["ingest", str(Path(__file__).parents[1] / "written_before" / "trace.jsonl")]
    assert run([*command, "--db", str(foreign)]) == ExitCode.INPUT
    assert "not a kvscope store (it holds mine, schema_version)" in capsys.readouterr().err
    assert foreign.read_bytes() == before
    assert list(tmp_path.iterdir()) == [foreign]


def test_a_truncated_store_is_damaged(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is called damaged, not in use, and doctor is the remedy."""
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[: len(whole) // 4])
    assert run(["traces", "--db", path]) == ExitCode.INPUT
    written = capsys.readouterr().err
    assert "is damaged (" in written
    assert f"kvscope doctor --db {path}" in written
