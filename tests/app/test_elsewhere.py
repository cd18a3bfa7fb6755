"""Sweeps whose replays run elsewhere: what they take is picklable, and they give the same."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import pytest

from kvscope.core.executor import Executor
from tests.cli.replayed import write_short
from tests.cli.shell import Streams, streams_of

R = TypeVar("R")
T = TypeVar("T")

FLEET = ("--router", "random,round-robin", "--capacity-blocks", "500")
TIERS = ("--tier-size", "32GiB,64GiB+ssd:1TiB")
SWEEPS = (
    ("simulate", "--policy", "lru,tlru", "--points", "2"),
    ("tune", "--policy", "tlru", "--capacity-blocks", "289", "--output", "-"),
    ("fleet", *FLEET, "--replicas", "1..2"),
    (
        *(
            "tune",
            "--compare-tiers",
            *TIERS,
            "--gpu",
            "h100",
            "--model",
            "llama3.1-8b",
            "--output",
            "-",
        ),
        *("--fleet", "--router", "random,round-robin", "--policy", "tlru"),
    ),
)


class Elsewhere(Executor):
    """Runs each step on copies of its arguments, as another process does; the last task first."""

    workers = 1

    def __init__(self) -> None:
        self.shares, self.replays = 0, 0

    def shared(self, value: Any, version: int | None = None) -> Any:
        """Return what stands for the value."""
        self.shares += 1
        return Shared(value)

    def results(
        self,
        step: Callable[..., R],
        tasks: Sequence[Any],
        *before: Any,
        stop: Event | None = None,
        each_bytes: float = 0,
    ) -> Iterator[tuple[int, R]]:
        """Yield the results of the steps."""
        for number, task in reversed([*enumerate(tasks)]):
            self.replays += 1
            there = [sent(x.value) if isinstance(x, Shared) else x for x in (*before, task)]
            yield number, sent(sent(step)(*map(sent, there)))


@dataclass(frozen=True)
class Shared:
    """What stands for a value."""

    value: Any


def sent(value: T) -> T:
    """Return what another process gets for the value."""
    copied: T = pickle.loads(pickle.dumps(value))  # noqa: S301 - its own
    return copied


def document(sweep: Sequence[str], folder: Path, capsys: Streams) -> str:
    """Return the document of a sweep over a beginning of a sample, without when it was made."""
    folder.mkdir(exist_ok=True)
    db = str(folder / "store.duckdb")
    command, *options = sweep
    trace = write_short(folder, 500, "regime-change")
    arguments = [command, trace, *options, "--slo", "200ms", "--json", "--db", db]
    text = streams_of(capsys, *arguments).out
    assert len(text) > 1000
    return re.sub(r'"created_at": "[^"]*"', "", text).replace(trace, "")


@pytest.mark.parametrize("sweep", SWEEPS, ids=[" ".join(each[:2]) for each in SWEEPS])
def test_replays_elsewhere_give_the_same(
    sweep: Sequence[str],
    tmp_path: Path,
    capsys: Streams,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All replays of the sweep run there; the document has the same figures, field by field."""
    elsewhere = Elsewhere()
    monkeypatch.setattr("kvscope.app.monitor.ray_cluster", lambda *_: nullcontext(elsewhere))
    here = document(sweep, tmp_path, capsys)
    assert elsewhere.replays == 0
    assert document([*sweep, "--on", "ray"], tmp_path / "there", capsys) == here
    assert elsewhere.replays >= 4
    assert elsewhere.shares < elsewhere.replays


_SCRIPT = """
import operator
from kvscope.app.monitor import Monitor
from kvscope.app.worker_process import in_process
print(in_process(operator.is_, 1, monitor=Monitor()))
"""


def test_an_idle_process_does_not_keep_this_one_alive() -> None:
    """It waits for the next work, and ends with the interpreter that it waits for."""
    words = [sys.executable, "-c", _SCRIPT]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "False\n")
