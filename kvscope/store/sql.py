"""Named SQL: one statement a file in queries/, its header is its documentation.

    -- turns: how many turns conversations take
    -- $trace_id: the trace
    -- columns: turns, conversations
    SELECT …

The header is checked where the statement runs: a parameter that is missing or unknown is an error
before DuckDB sees it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvscope.core.errors import KvscopeError
from kvscope.core.paths import data_folder

_PARAMETER = re.compile(r"^-- \$(\w+): (.+)$")
_COLUMNS = re.compile(r"^-- columns: (.+)$")
_TITLE = re.compile(r"^-- (\w+): (.+)$")


@dataclass(frozen=True, slots=True)
class Statement:
    """One named SQL statement, with what its header promises."""

    name: str
    answers: str
    parameters: tuple[str, ...]
    columns: tuple[str, ...]
    text: str


def parse(path: Path, name: str) -> Statement:
    """Read the statement in `path`; its first line is `-- name: what it answers`."""
    text = path.read_text(encoding="utf-8")
    header = [line for line in text.splitlines() if line.startswith("--")]
    title = _TITLE.match(header[0]) if header else None
    if title is None or title[1] != path.stem:
        raise KvscopeError(
            "the header does not start with the statement's name",
            where=str(path),
            remedy=f"begin the file with '-- {path.stem}: what it answers'",
        )
    parameters = tuple(found[1] for line in header if (found := _PARAMETER.match(line)))
    columns = tuple(
        column.strip()
        for line in header
        if (found := _COLUMNS.match(line))
        for column in found[1].split(",")
    )
    return Statement(name, title[2], parameters, columns, text)


@cache
def statement(name: str) -> Statement:
    """The statement called `name`, its path below queries/ without `.sql`."""
    path = data_folder("queries") / f"{name}.sql"
    if not path.is_file():
        raise KvscopeError("no such query", where=str(path), remedy="reinstall kvscope")
    return parse(path, name)


def migrations() -> list[tuple[int, str]]:
    """The schema's steps in order: (version, SQL text) from queries/schema/NNN_name.sql."""
    files = sorted((data_folder("queries") / "schema").glob("*.sql"))
    return [(int(file.name[:3]), file.read_text(encoding="utf-8")) for file in files]
