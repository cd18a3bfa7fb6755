"""Attack on stores: damaged pages, cut files, and files that are no store of kvscope's."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import duckdb

from tests.attack.attack import Attack, Case, Harm
from tests.attack.commands import DONE, INPUT, command
from tests.attack.mutations import overwritten
from tests.attack.trace_files import sample_lines

PAGE = 4096
COMMANDS = (
    ("traces",),
    ("traces", "--json"),
    ("runs",),
    ("analyze", "a"),
    ("simulate", "a", "--capacity-blocks", "100", "--policy", "lru"),
    ("export", "a", "--to", "mooncake", "--output", "{folder}/out.jsonl"),
    ("traces", "remove", "a"),
    ("ingest", "{folder}/b.jsonl"),
)


class Stores(Attack):
    """A damaged or foreign store is exit code 3; a foreign file keeps its bytes."""

    name = "stores"
    target = "stores with flipped, overwritten or lost pages; files of other programs"
    share = 0.1
    short = 12

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.trace, self.other = home / "a.jsonl", home / "b.jsonl"
        self.trace.write_bytes(b"\n".join(sample_lines("to-c", 150)))
        self.other.write_bytes(b"\n".join(sample_lines("to-b", 50)))
        store = home / "store.duckdb"
        command("ingest", str(self.trace), "--db", str(store)).check(DONE)
        words = ("simulate", "a", "--capacity-blocks", "50", "--policy", "lru,fifo")
        command(*words, "--db", str(store)).check(DONE)
        self.store = store.read_bytes()
        self.foreign = [*map(Path.read_bytes, _foreign(home))]

    def attempt(self, case: Case) -> int:
        """Run a command on a store that was overwritten, or on a file of another program."""
        random = case.random
        path = case.folder / "store.duckdb"
        foreign = random.random() < 0.2
        if foreign:
            data = random.choice(self.foreign)
            if random.random() < 0.3:
                data = overwritten(random, data, PAGE)
        else:
            data = overwritten(random, self.store, PAGE)
        path.write_bytes(data)
        shutil.copy(self.other, case.folder)
        words = [word.format(folder=case.folder) for word in random.choice(COMMANDS)]
        outcome = command(*words, "--db", str(path))
        if foreign and data:
            outcome.check(INPUT)
            if path.read_bytes() != data:
                raise Harm(f"kvscope {' '.join(words)} changed a file that is not its own")
        else:
            outcome.check(DONE, INPUT)
        return 1


def _foreign(home: Path) -> list[Path]:
    """Write files of other programs: DuckDB, SQLite, text, zeros."""
    duck, lite = home / "other.duckdb", home / "other.sqlite"
    with duckdb.connect(str(duck)) as connection:
        connection.execute("CREATE TABLE t AS SELECT range AS x FROM range(1000)")
        connection.execute("CREATE TABLE traces (trace_id INTEGER)")
    with sqlite3.connect(lite) as other:
        other.execute("CREATE TABLE schema_version (version INTEGER)")
    other.close()
    text, zeros = home / "notes.txt", home / "zeros"
    text.write_text("not a store\n" * 2000)
    zeros.write_bytes(bytes(3 * PAGE))
    return [duck, lite, text, zeros]
