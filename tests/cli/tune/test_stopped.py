"""`kvscope tune` stopped, or without a file to write: nothing is lost, nothing is left."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.policies.base import Policy
from kvscope.tuning import tuner
from kvscope.tuning.trial import Evaluator
from tests.cli.shell import Streams
from tests.cli.tune.asked import HERE, told


def test_nothing_is_written_to_a_dash(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """`--output -` prints the recommendation and leaves no file."""
    words = told(capsys, trace, *options, "--slo", "200ms", *HERE, "--output", "-")
    assert "Do now, free: tlru" in words
    assert not Path("-").exists()
    assert not Path("recommendation.toml").exists()


@pytest.mark.parametrize("earlier", [None, "# Written by kvscope before\n"])
@pytest.mark.parametrize("at", ["search", "judge"])
def test_ctrl_c_writes_nothing(
    trace: str,
    options: tuple[str, ...],
    capsys: Streams,
    monkeypatch: pytest.MonkeyPatch,
    earlier: str | None,
    at: str,
) -> None:
    """Wherever it comes: exit code 130, no half an answer, and an earlier file stays as it is."""
    if earlier is not None:
        Path("recommendation.toml").write_text(earlier, encoding="utf-8")
    before = signal.getsignal(signal.SIGINT)
    _interrupt(monkeypatch, at)
    asked = ["tune", trace, *options, "--slo", "200ms", *HERE, "--html", "r.html"]
    assert run(asked) == ExitCode.INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is before
    written = capsys.readouterr()
    assert written.out == ""
    assert "nothing was written" in written.err
    assert "Traceback" not in written.err
    assert not Path("r.html").exists()
    path = Path("recommendation.toml")
    assert (path.read_text(encoding="utf-8") if path.exists() else None) == earlier


def _interrupt(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Press Ctrl-C as the search begins, or as judging does."""
    if at == "search":
        ask: Callable[..., Any] = tuner.search

        def searching(*arguments: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return ask(*arguments)

        monkeypatch.setattr(tuner, "search", searching)
        return
    serve = Evaluator.served

    def judging(evaluator: Evaluator, policy: Policy, capacity_blocks: int) -> Any:
        if len(evaluator.workload.prompts.leaf) == 480:  # the whole trace
            signal.raise_signal(signal.SIGINT)
        return serve(evaluator, policy, capacity_blocks)

    monkeypatch.setattr(Evaluator, "served", judging)
