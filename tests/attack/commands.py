"""kvscope's commands, in this process or in one of their own, and what holds however they end."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from tests.attack.attack import Harm

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "kvscope")
DONE, INPUT = ExitCode.DONE, ExitCode.INPUT
USABLE = (ExitCode.DONE, ExitCode.USAGE, ExitCode.INPUT)
"""How a command ends that was given a strange file: with a result, or with what is wrong in it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended and what it printed."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    def check(self, *codes: int) -> Outcome:
        """Raise Harm unless it ended with one of the codes, as every command has to end."""
        shown = f"kvscope {' '.join(self.words)}\nexit code {self.code}\n{self.err}"
        errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
        if "Traceback (most recent call last)" in self.err or "internal error" in self.err:
            raise Harm(f"an internal error: {shown}")
        if self.code not in codes:
            raise Harm(f"exit code {self.code}, not one of {[*map(int, codes)]}: {shown}")
        if len(errors) != (self.code not in {ExitCode.DONE, ExitCode.CHECK_FAILED}):
            raise Harm(f"{len(errors)} error lines: {shown}")
        for name, text in (("stdout", self.out), ("stderr", self.err)):
            raw = sorted({char for char in text if char != "\n" and not char.isprintable()})
            if raw:
                raise Harm(f"{raw} in {name}: {shown}\n{text}")
        return self

    def document(self) -> Any:
        """Return the JSON document that it printed; raises Harm for what is none."""
        try:
            return json.loads(self.out, parse_constant=_refused)
        except ValueError as error:
            raise Harm(f"no JSON ({error}): kvscope {' '.join(self.words)}\n{self.out}") from error


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def command(*words: str) -> Outcome:
    """Run a command in this process; it sees no terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = run(words)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return Outcome(words, code, *texts)


def process(*words: str, folder: Path, **settings: Any) -> subprocess.Popen[str]:
    """Start a command as a process of its own in `folder`."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return subprocess.Popen(
        [*COMMAND, *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        **settings,
    )


def ended(child: subprocess.Popen[str]) -> Outcome:
    """Wait for a process and return how it ended."""
    out, err = child.communicate()
    return Outcome(tuple(child.args[len(COMMAND) :]), child.returncode, out, err)  # type: ignore[index, arg-type]


def in_its_own_process(*words: str, folder: Path) -> Outcome:
    """Run a command as a process of its own in `folder`."""
    return ended(process(*words, folder=folder))
