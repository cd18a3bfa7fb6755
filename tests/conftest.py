"""What holds in every test: documents of `--json` are valid by their schemas; shared stores."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from kvscope.cli import app, output
from kvscope.ingest import trie
from kvscope.store import db
from kvscope.store.db import MEMORY, Store, open_store


def pytest_configure() -> None:
    """Look for cycles of garbage seldom: among all that tests import, that took a tenth of them."""
    gc.set_threshold(10_000, 10, 10)


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of that search."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let it end with all else: libraries name what is left of them then."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def _valid_documents() -> Iterator[None]:
    """Check each document that a command prints in this process before it is printed."""
    emit_json = output.emit_json

    def checked(document: Any) -> None:
        from kvscope.usecases.documents import to_dict

        plain = to_dict(document)
        _validator(plain["command"]).validate(plain)
        emit_json(document)

    output.emit_json = checked
    yield
    output.emit_json = emit_json


@pytest.fixture(autouse=True, scope="session")
def _commands_built_once() -> Iterator[None]:
    """Build each command once in a process: that takes longer than to refuse a mistake."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(app, "_built", cache(app._built))
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_empty_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copy a new store from the first one of the process, where its schema takes 0.06 s."""
    first, write_empty = tmp_path_factory.mktemp("stores") / "empty.duckdb", db._write_empty

    def copied(path: Path) -> None:
        if not first.exists():
            write_empty(first)
        try:
            copyfile(first, path)
        except OSError:  # a full disk: DuckDB's error is what is tested
            path.unlink(missing_ok=True)
            write_empty(path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(db, "_write_empty", copied)
        yield


@pytest.fixture(autouse=True, scope="session")
def _small_tries() -> Iterator[None]:
    """Begin each trie of blocks with room for few, as most tests have: it grows as others do.

    Of each of the arrays for millions of blocks, the system clears 2 MiB when it is first written.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trie, "_FIRST_CAPACITY", 1 << 10)
        yield


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """Yield one store in memory for a module: to open one takes longer than a small test."""
    with open_store(MEMORY) as opened:
        yield opened


@cache
def _validator(command: str) -> Any:
    """Return a validator that also refuses fields that the schema does not have."""
    from jsonschema import Draft202012Validator

    from kvscope.usecases.schemas import schema

    strict = schema(command)
    for part in strict["$defs"].values():
        if "properties" in part:
            part["additionalProperties"] = False
    return Draft202012Validator(strict)
