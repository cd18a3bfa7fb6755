"""The store opens, migrates, queries and takes columns."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import duckdb
import numpy as np
import pytest

from kvscope.cli.app import run
from kvscope.core.errors import (
    DamagedStoreError,
    ExitCode,
    InputError,
    KvscopeError,
    StoreBusyError,
    StoreVersionError,
)
from kvscope.core.trace import Trace
from kvscope.ingest.formats.base import Request
from kvscope.ingest.pipeline import ingest
from kvscope.store import db, failures, traces
from kvscope.store.db import MEMORY, Store, open_store
from kvscope.store.traces import load_prompts
from tests import small_traces

REQUESTS = [Request(input_tokens=40, output_tokens=4, hash_ids=[1, 2, at]) for at in range(5)]


def filled(path: str) -> Trace:
    """Return a store at `path` with one trace in it."""
    with open_store(path) as store:
        return small_traces.stored(store, REQUESTS, 16)


def test_migrations_build_the_schema_from_nothing(tmp_path: Path) -> None:
    """A new file gets every step, in order, and says the newest version."""
    steps = [version for version, _ in db.migrations()]
    assert steps == list(range(steps[0], steps[-1] + 1))
    with open_store(str(tmp_path / "new.duckdb")) as store:
        found = store._connection.execute("SELECT version FROM schema_version").fetchall()
        assert found == [(steps[-1],)]
        assert traces.all_traces(store) == []


def test_what_was_stored_is_there_again(tmp_path: Path) -> None:
    """A store that is closed and opened again holds the same trace, read-only too."""
    path = str(tmp_path / "store.duckdb")
    trace = filled(path)
    for read_only in (False, True):
        with open_store(path, read_only=read_only) as store:
            assert traces.find(store, None) == trace
            assert load_prompts(store, trace).block_parent.tolist() == [0, 0, 1, 2, 2, 2, 2, 2]


def test_a_store_is_its_owners_alone(tmp_path: Path) -> None:
    """Other users of the machine cannot read what was asked of an engine."""
    path = tmp_path / "store.duckdb"
    filled(str(path))
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_log_of_a_store_is_read_by_those_who_may_read_the_store(tmp_path: Path) -> None:
    """While it is open and where it was killed, whatever wrote first; a closed one has none."""
    path, log = tmp_path / "store.duckdb", tmp_path / "store.duckdb.wal"
    trace = filled(str(path))
    for mode in (0o600, 0o640):
        path.chmod(mode)
        for in_transaction in (False, True):
            with open_store(str(path)) as store:
                with store.transaction() if in_transaction else nullcontext():
                    store.run("ingest/mark_used", trace_id=trace.trace_id)
                assert log.stat().st_size
                assert log.stat().st_mode & 0o777 == mode
                for end in ("", ".wal"):  # as a killed process leaves them
                    (tmp_path / f"copy{end}").write_bytes(Path(f"{path}{end}").read_bytes())
            assert not log.exists()
            with open_store(str(tmp_path / "copy")) as copy:
                assert traces.find(copy, None) == trace
    with open_store(str(path)) as store, store.transaction():
        pass
    assert not log.exists()


def test_a_new_store_that_stays_empty_leaves_no_file(tmp_path: Path) -> None:
    """Neither a look nor a failure creates a file; one that was there before stays."""
    path = tmp_path / "store.duckdb"
    with open_store(str(path)) as store:
        assert traces.all_traces(store) == []
    with pytest.raises(duckdb.ConversionException), open_store(str(path)) as store:
        _insert_badly(store)
    assert not list(tmp_path.iterdir())
    trace = filled(str(path))
    with open_store(str(path)) as store:
        traces.remove(store, trace)
    assert list(tmp_path.iterdir()) == [path]


def test_memory_keeps_nothing() -> None:
    """Two stores in memory know nothing of each other."""
    filled(MEMORY)
    with open_store(MEMORY) as store:
        assert traces.all_traces(store) == []


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """A store of a newer kvscope is left alone, and the remedy is named."""
    path = str(tmp_path / "store.duckdb")
    filled(path)
    with duckdb.connect(path) as connection:
        connection.execute("UPDATE schema_version SET version = 999")
    with pytest.raises(StoreVersionError, match=r"newer kvscope.*999.*upgrade kvscope") as refused:
        open_store(path)
    assert refused.value.exit_code == ExitCode.INPUT
    with duckdb.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM traces").fetchall() == [(1,)]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_schema_before_the_first_step_is_refused(tmp_path: Path, *, read_only: bool) -> None:
    """A store of an older kvscope is left alone; its traces are to be ingested again."""
    path = str(tmp_path / "store.duckdb")
    filled(path)
    with duckdb.connect(path) as connection:
        connection.execute("UPDATE schema_version SET version = 28")
    with pytest.raises(StoreVersionError, match=r"an older kvscope.* 28, .*29 on.*traces again"):
        open_store(path, read_only=read_only)


def test_tables_of_another_schema_than_stated_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed version would have columns added that are there."""
    path = str(tmp_path / "store.duckdb")
    filled(path)
    steps = [*db.migrations(), (30, "ALTER TABLE traces ADD COLUMN checksum VARCHAR")]
    monkeypatch.setattr(db, "migrations", lambda: steps)
    with pytest.raises(DamagedStoreError, match=r"not those of schema version 29\); see what"):
        open_store(path)


def test_an_older_schema_cannot_be_read_only(tmp_path: Path) -> None:
    """Migrations need to write: an empty database opened read-only says so."""
    path = str(tmp_path / "old.duckdb")
    duckdb.connect(path).close()
    with pytest.raises(StoreVersionError, match="copy it to where it can be written"):
        open_store(path, read_only=True)
    with open_store(path):
        pass
    with open_store(path, read_only=True) as store:
        assert traces.all_traces(store) == []


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    """A missing store that is only to be read, and a file of something else."""
    with pytest.raises(InputError, match="no such store"):
        open_store(str(tmp_path / "none.duckdb"), read_only=True)
    assert not list(tmp_path.iterdir())
    text = tmp_path / "text.duckdb"
    text.write_text("not a database\n" * 400)
    with pytest.raises(InputError, match="not a DuckDB file"):
        open_store(str(text))
    with pytest.raises(InputError, match="a folder, not a store; name a file with --db"):
        open_store(str(tmp_path))
    with pytest.raises(InputError, match="its folder does not exist"):
        open_store(str(tmp_path / "no" / "store.duckdb"))
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE traces (name)")
    other.close()
    with pytest.raises(InputError, match="an SQLite database"):
        open_store(str(tmp_path / "other.db"))
    empty = tmp_path / "empty.duckdb"
    empty.touch()
    with pytest.raises(InputError, match="an empty file, not a store; remove it"):
        open_store(str(empty))
    log = tmp_path / "gone.duckdb.wal"
    log.touch()
    with pytest.raises(InputError, match=r"gone.duckdb.wal is left of it"):
        open_store(str(tmp_path / "gone.duckdb"))
    assert log.exists()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a file"):
        open_store(str(tmp_path / "pipe"))


_HOLDER = """
import sys
from kvscope.store.db import open_store
with open_store(sys.argv[1]):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_store_in_use_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process has it open: one line with its number, exit code 1, nothing damaged."""
    path = str(tmp_path / "store.duckdb")
    trace = filled(path)
    monkeypatch.setattr(failures, "PATIENCE_S", 0.2)
    command = [sys.executable, "-c", _HOLDER, path]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreBusyError, match=f"process {holder.pid} \\(python") as busy:
            open_store(path)
        code = run(["traces", "--db", path])
        holder.communicate()
    assert busy.value.exit_code == code == ExitCode.FAILED
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert f"process {holder.pid} (" in written
    assert "is using the store; wait until it ends" in written
    with open_store(path) as store:
        assert traces.all_traces(store) == [trace]


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    """What was written before the failure is gone, and the store works on."""
    with open_store(str(tmp_path / "store.duckdb")) as store:
        with pytest.raises(duckdb.ConversionException):
            _insert_badly(store)
        small_traces.stored(store, REQUESTS, 16)
        assert store._connection.execute("SELECT count(*) FROM bad_lines").fetchall() == [(0,)]


def _insert_badly(store: Store) -> None:
    with store.transaction():
        store.run("ingest/add_bad_lines", trace_id=1, numbers=[1], places=["a:1"], reasons=["x"])
        store.run(
            "ingest/add_bad_lines", trace_id=1, numbers=["one"], places=["a:1"], reasons=["x"]
        )


def test_statements_insist_on_their_parameters() -> None:
    """A missing or unknown parameter is an error before DuckDB sees the statement."""
    with open_store(MEMORY) as store:
        with pytest.raises(KvscopeError, match="takes \\['trace_id'\\], was given \\[\\]"):
            store.run("ingest/mark_used")
        with pytest.raises(KvscopeError, match="no such query"):
            store.run("ingest/nothing")


def test_the_last_used_comes_first() -> None:
    """`find` without a name gives the trace last worked on; a near name is suggested."""
    with open_store(MEMORY) as store:
        first, second = (small_traces.stored(store, REQUESTS, size) for size in (16, 15))
        assert traces.find(store, None) == second
        traces.mark_used(store, first)
        assert [trace.name for trace in traces.all_traces(store)] == ["trace-0", "trace-1"]
        with pytest.raises(InputError, match=r"'trace-00'; did you mean 'trace-0'\?"):
            traces.find(store, "trace-00")


def test_an_empty_store_has_nothing_to_find() -> None:
    """The error says where and what to do."""
    store: Store
    with open_store(MEMORY) as store, pytest.raises(InputError, match="holds no traces"):
        traces.find(store, None)


def test_sums_of_floats_are_the_same_each_time() -> None:
    """In row order of a table of several row groups; afterwards all threads are back."""
    with open_store(MEMORY) as store:
        execute = store.connection.execute
        execute("CREATE TABLE numbers AS SELECT 1 / (range + 1) AS x FROM range(1_000_000)")
        threads = execute("SELECT current_setting('threads')").fetchall()
        with store.in_row_order():
            assert execute("SELECT current_setting('threads')").fetchall() == [(1,)]
            sums = {execute("SELECT sum(x) FROM numbers").fetchall()[0][0] for _ in range(5)}
        assert execute("SELECT current_setting('threads')").fetchall() == threads
    assert len(sums) == 1


def test_every_number_arrives() -> None:
    """The least and the largest of each type, in order, from arrays with gaps in memory too."""
    small, large = (
        np.array([np.iinfo(x).min, 0, np.iinfo(x).max], x) for x in (np.int32, np.int64)
    )
    with open_store(MEMORY) as store:
        for sign in (1, -1):
            columns = {"block": small[::sign], "hash_id": large[::sign]}
            store.append("ingest/add_own_hash_ids", columns, trace_id=sign)
            found = store.columns("ingest/own_hash_ids", trace_id=sign)
            for name, sent in columns.items():
                assert found[name].dtype == sent.dtype
                assert sorted(found[name]) == sorted(sent)


def test_rows_lie_in_the_order_of_their_arrays(tmp_path: Path) -> None:
    """So many that threads would mix them; the connection keeps the order of others again."""
    block = np.random.default_rng(0).permutation(3_000_000).astype(np.int32)
    path = str(tmp_path / "kvscope.duckdb")
    with open_store(path) as store:
        with store.transaction():
            for part in np.split(block, 2):
                columns = {"block": part, "hash_id": part.astype(np.int64)}
                store.append("ingest/add_own_hash_ids", columns, trace_id=1)
        order = "SELECT current_setting('preserve_insertion_order')"
        assert store.connection.execute(order).fetchone() == (True,)
    with open_store(path, read_only=True) as store:
        rows = store.connection.execute("SELECT block FROM own_hash_ids ORDER BY rowid")
        assert np.array_equal(rows.fetchnumpy()["block"], block)


WRITTEN = Path(__file__).parents[1] / "written_before"
TRACE = str(WRITTEN / "trace.jsonl")


def test_a_cache_salt_is_not_stored(tmp_path: Path) -> None:
    """Neither in the clear nor as a digest that a guess confirms."""
    guess = (WRITTEN / "trace.jsonl").read_text().replace("Kolibri", "another")
    other = tmp_path / "other.jsonl"
    other.write_text(guess)
    hashes = []
    for path in (TRACE, str(other)):
        with open_store(MEMORY) as store:
            ingest(store, path)
            hashes.append(store.connection.execute("SELECT * FROM blocks").fetchall())
            salts = store.connection.execute("SELECT max(salt) FROM request_attributes")
            assert salts.fetchall() == [(0,)]
    assert hashes[0] == hashes[1]
