"""No command has the store open while it computes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode, KvscopeError
from kvscope.store import traces
from kvscope.store.db import open_store
from kvscope.store.failures import Waiting

TRACE = str(Path(__file__).parents[1] / "written_before" / "trace.jsonl")
CAPACITY = ("--capacity-blocks", "9")
# What a command computes with once it has read the trace, and the command.
COMPUTES = {
    "kvscope.usecases.analyze:_layouts": ("analyze", "trace"),
    "kvscope.replay.caching:caching": ("analyze", "trace"),
    "kvscope.characterize.summary:_of_history": ("analyze", "trace"),
    "kvscope.characterize.spatial:decile_histogram": ("analyze", "trace"),
    "kvscope.reuse_models.fit:fit_to": ("fit", "trace"),
    "kvscope.app.simulate:sweep": ("simulate", "trace", *CAPACITY),
    "kvscope.usecases.tune.recommend:tune": (
        *("tune", "trace", "--slo", "1s", "--output", "-"),
        *CAPACITY,
    ),
    "kvscope.usecases.fleet:fleet": ("fleet", "trace", "--slo", "1s", *CAPACITY),
}


class Computing(KvscopeError):
    """The command computes: that is all there is to see."""


@pytest.mark.parametrize("place", COMPUTES)
def test_the_store_is_closed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """While it computes, the store can be opened for writing, and lists its traces.

    What it computes in a second thread may begin before the command has read everything.
    """
    path = str(tmp_path / "store.duckdb")
    assert run(["ingest", TRACE, "--db", path]) == ExitCode.DONE

    def compute(*_: Any, **__: Any) -> Any:
        with open_store(path, waiting=Waiting(patience_s=5.0)) as store:
            assert [trace.name for trace in traces.all_traces(store)] == ["trace"]
        raise Computing("reached")

    module, _, name = place.partition(":")
    monkeypatch.setattr(import_module(module), name, compute)
    assert run([*COMPUTES[place], "--db", path]) == ExitCode.FAILED
    assert capsys.readouterr().err.strip().endswith("error: reached")
