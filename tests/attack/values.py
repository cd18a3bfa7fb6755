"""Attacks on values: sound files that hold what no trace can, or the values of another one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import numpy as np

from kvscope.datasets.dataset import Dataset
from kvscope.datasets.files import digest_of
from kvscope.datasets.shards import COLUMNS, SHARD, columns_digest
from kvscope.store import checks, traces
from kvscope.store.db import Store, open_store
from kvscope.store.folder import MANIFEST
from tests.attack.attack import Attack, Case, Harm
from tests.attack.commands import DONE, INPUT, Outcome, command
from tests.attack.mutations import mutated_bytes
from tests.attack.trace_files import sample_lines

COMMANDS = (
    ("analyze", "{name}", "--json"),
    ("simulate", "{name}", "--capacity-blocks", "60", "--policy", "lru,gittins", "--json"),
    ("explain", "{name}", "--capacity-blocks", "60", "--json"),
    ("fit", "{name}", "--json"),
    ("retention", "{name}", "--json"),
    ("export", "{name}", "--to", "bailian", "--output", "-"),
)
OF_STORES = (("doctor", "--json"), ("traces", "--json"), ("runs", "{name}", "--json"))
OF_SETS = (
    ("analyze", "{name}", "--json"),
    (
        *("simulate", "{name}", "--capacity-blocks", "60", "--policy", "lru"),
        *("--sample", "50%", "--json"),
    ),
)
LABELS = ("used_at", "ingested_at", "checksum")
"""Columns of a trace that the checksum leaves out; no figure comes of them."""
RESULTS = ("runs", "run_parts", "stated", "schema_version")
"""Tables whose values are other results, as far as anyone can tell."""
MORE = 12
"""Values of a case that are looked for alone, as every command does first: ten times as fast."""
WHOLE = (
    *(0, -1, 1, 2, 7, 1000, 2**15, 2**24, 2**31 - 1, 2**31, -(2**31), 2**32),
    *(2**53 + 1, 2**63 - 1, -(2**63)),
)
REAL = (0.0, -1.0, 1e-9, 1e9, 1e300, -1e300, float("nan"), float("inf"), float("-inf"))
TEXT = ("", "x", "{}", "[]", "null", "\x1b[31m", "x" * 5000, '{"a": [[[[', "9" * 400)


class StoreValues(Attack):
    """A changed value is exit code 3 or changes nothing, also where the checksum is made anew."""

    name = "store-values"
    target = "stores in which one value of any table is another"
    share = 0.15
    short = 5

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        trace, self.path = home / "a.jsonl", home / "store.duckdb"
        trace.write_bytes(b"\n".join(sample_lines("to-c", 120)))
        ingest = ("ingest", str(trace), "--db", str(self.path), "--name", "a")
        command(*ingest).check(DONE)
        for words in COMMANDS[1], COMMANDS[3]:  # have results in the store
            self._run(words, self.path).check(DONE)
        self.expected = {words: self._run(words, self.path).check(DONE).out for words in COMMANDS}
        with duckdb.connect(str(self.path)) as connection:
            self.columns: list[tuple[str, str, str]] = connection.execute(
                "SELECT table_name, column_name, data_type FROM duckdb_columns()"
                " JOIN duckdb_tables() USING (table_name) WHERE estimated_size > 0 ORDER BY ALL"
            ).fetchall()

    @staticmethod
    def _run(words: tuple[str, ...], path: Path) -> Outcome:
        return command(*(word.format(name="a") for word in words), "--db", str(path))

    def attempt(self, case: Case) -> int:
        """Change values one at a time and look for each; then one, and run a command."""
        random, path = case.random, case.folder / "store.duckdb"
        shutil.copy(self.path, path)
        of_trace = [each for each in self.columns if each[0] not in RESULTS]
        checked = [each for each in of_trace if not each[0].startswith("fit")]
        with open_store(str(path)) as store:
            for _ in range(MORE):
                _notice(random, store, *random.choice(checked))
        table, column, kind = random.choice(of_trace if random.random() < 0.85 else self.columns)
        try:
            with duckdb.connect(str(path)) as connection:
                _update(random, connection, table, column, kind)
        except duckdb.Error:  # no such value in such a column
            return MORE + 1
        crafted = random.random() < 0.5
        if crafted and table != "schema_version":
            with open_store(str(path)) as store:
                for trace in traces.all_traces(store):
                    checks.keep_checksum(store, trace)
        words = random.choice((*COMMANDS, *OF_STORES))
        outcome = self._run(words, path)
        if words[0] == "doctor" and outcome.out:  # whose document says what is wrong
            outcome.document()
            return MORE + 1
        outcome.check(DONE, INPUT)
        silent = not (table in RESULTS or table.startswith("fit") or column in LABELS or crafted)
        if outcome.code == DONE and silent and words in COMMANDS:
            _same(outcome, self.expected[words], f"{table}.{column}")
        return MORE + 1


class DatasetValues(Attack):
    """A changed file is exit code 3 or changes nothing, also where its digest is made anew."""

    name = "dataset-values"
    target = "datasets of which one value, or one byte of a file, is another"
    share = 0.15
    short = 5

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        trace, self.folder = home / "a.jsonl", home / "set"
        trace.write_bytes(b"\n".join(sample_lines("to-c", 120)))
        ingest = ("ingest", str(trace), "--into", str(self.folder), "--shards", "2")
        command(*ingest, "--workers", "1", "--name", "a").check(DONE)
        self.expected = {words: self._run(words, self.folder).check(DONE).out for words in OF_SETS}

    @staticmethod
    def _run(words: tuple[str, ...], folder: Path) -> Outcome:
        return command(*(word.format(name=folder) for word in words))

    def attempt(self, case: Case) -> int:
        """Change files one at a time and look for each; then one, and run a command."""
        random, folder = case.random, case.folder / "set"
        shutil.copytree(self.folder, folder)
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        read = [path for path in files if path.stem in {*SHARD, *COLUMNS, "block_size"}]
        for _ in range(MORE):
            path = random.choice(read)
            before = path.read_bytes()
            changed = _damaged(random, path)
            same = path.exists() and path.read_bytes() == before
            if not same and not any(Dataset(str(folder)).faults()):
                raise Harm(f"{path.relative_to(folder)} changed ({changed}), and none noticed")
            path.write_bytes(before)
        path = random.choice([file for file in files if file.suffix != ".duckdb"])
        changed = _damaged(random, path)
        crafted = random.random() < 0.5 and path.parent != folder and path.exists()
        if crafted:
            _sign(folder)
        words = random.choice((*OF_SETS, ("doctor", "{name}", "--json")))
        outcome = self._run(words, folder)
        if words[0] == "doctor" and outcome.out:
            outcome.document()
            return MORE + 1
        outcome.check(DONE, INPUT)
        if outcome.code == DONE and not crafted:
            _same(outcome, self.expected[words], f"{path.relative_to(folder)} ({changed})")
        return MORE + 1


def _damaged(random: Random, path: Path) -> str:
    """Change an element of an array, bytes of a file, or remove it; return which."""
    data, kind = path.read_bytes(), random.random()
    if path.suffix == ".npy" and kind < 0.7 and len(values := np.load(path)):
        at = random.randrange(len(values))
        other = int(
            random.choice([*WHOLE[:12], values[at] ^ 1 << random.randrange(31), values[-1]])
        )
        values[at if random.random() < 0.95 else slice(None)] = np.int64(other).astype(values.dtype)
        path.unlink()  # it may be mapped
        np.save(path, values)
        return f"element {at}"
    if kind < 0.95:
        path.unlink()
        path.write_bytes(mutated_bytes(random, data))
        return "bytes"
    path.unlink()
    return "removed"


def _sign(folder: Path) -> None:
    """Make the manifest's digests those of the files as they are."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_bytes())
    manifest["columns"] = columns_digest(folder / "requests")
    for number, shard in enumerate(manifest["shards"]):
        shard["digest"] = digest_of(folder / "shards" / f"{number:04}", SHARD)
    path.write_text(json.dumps(manifest))


def _notice(random: Random, store: Store, table: str, column: str, kind: str) -> None:
    """Change a value, look for what is wrong, and change it back."""
    whole = f"SELECT {column}::VARCHAR FROM {table}"  # noqa: S608
    (trace,) = traces.all_traces(store)
    before = store.connection.execute(whole).fetchall()
    store.connection.begin()
    try:
        _update(random, store.connection, table, column, kind)
        same = store.connection.execute(whole).fetchall() == before
        found = checks.check(store, trace)
    except duckdb.Error:  # no such value in such a column
        return
    finally:
        store.connection.rollback()
    if not (same or column in LABELS or found.faults or found.changed):
        raise Harm(f"{table}.{column} changed, and none noticed")


def _update(random: Random, connection: Any, table: str, column: str, kind: str) -> None:
    """Set the column of one row, or at times of all, to a value that its type holds."""
    (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
    row = random.randrange(count)
    where = "" if random.random() < 0.05 else f"WHERE rowid = {row}"
    where_other = f"WHERE rowid = {random.randrange(count)}"
    near = random.choice((-1, 1, 2))
    numeric = kind in {"INTEGER", "BIGINT", "DOUBLE"}
    if random.random() < 0.3:
        value = f"(SELECT {column} FROM {table} {where_other})"  # noqa: S608
    elif numeric and random.random() < 0.4:
        value = f"{column} + {near}"
    elif kind == "VARCHAR":
        value = "'" + random.choice(TEXT).replace("'", "''") + "'"
    elif kind == "DOUBLE":
        value = f"'{random.choice(REAL)}'::DOUBLE"
    elif numeric:
        value = str(random.choice(WHOLE))
    else:
        value = "NULL"
    connection.execute(f"UPDATE {table} SET {column} = {value} {where}")  # noqa: S608


def _same(outcome: Outcome, expected: str, what: str) -> None:
    if outcome.out != expected:
        raise Harm(f"{what} changed, and so did `kvscope {' '.join(outcome.words)}`, silently")
