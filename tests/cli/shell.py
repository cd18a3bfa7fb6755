"""Commands to try the shell with, and a fresh process to try it in."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from kvscope.app.options import Hbm, KvDtype, Model
from kvscope.cli import output
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
