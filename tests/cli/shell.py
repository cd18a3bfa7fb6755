"""Commands to try the shell with, and a fresh process to try it in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureResult

from kvscope.app.options import Hbm, KvDtype, Model
from kvscope.cli import output
from kvscope.cli.app import run
from kvscope.cli.options import DEFAULT_DB, Db, Json, TraceArgument

Streams = pytest.CaptureFixture[str]


def show(
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    hbm: Hbm = None,
    model: Model = None,
    kv_dtype: KvDtype = None,
    as_json: Json = False,
) -> None:
    """Show what arrived."""
    output.emit(repr((trace, db, hbm, model, kv_dtype, as_json)))


def streams_of(capsys: Streams, *words: str, code: int = 0) -> CaptureResult[str]:
    """Return what a command wrote that ends with an exit code, by default well."""
    ended = run(words)
    written = capsys.readouterr()
    assert ended == code, written.err
    return written


def document(capsys: Streams, *words: str) -> dict[str, Any]:
    """Return the JSON document of a command that ends well; tests/conftest.py validates it."""
    out = streams_of(capsys, *words, "--json").out
    made: dict[str, Any] = json.loads(out, parse_constant=_no_constant)
    return made


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def raising(failure: BaseException) -> Any:
    def fail() -> None:
        """Fail."""
        raise failure

    return fail


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": str(Path(output.__file__).parents[2])} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
