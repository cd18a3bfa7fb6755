"""A trace and the options that every question has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.once import computed_once
from tests.cli.replayed import write_profile
from tests.cli.tune.asked import HOSTILE, write_trace
from tests.tuning.examples import in_turn


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twenty conversations in turn, of a hostile type."""
    return str(write_trace(tmp_path_factory.mktemp("tune") / "turns.jsonl", in_turn(), HOSTILE))


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return a store in memory, 10 ms and 1 ms a token, tlru alone, in a temporary folder."""
    monkeypatch.chdir(tmp_path)
    profile = str(write_profile(tmp_path))
    return ("--db", ":memory:", "--latency", profile, "--policy", "tlru")


@pytest.fixture(scope="module")
def tuned_once() -> Iterator[None]:
    """Tune once for each question: what is tried is how the answer is shown and written."""
    with computed_once("tune"):
        yield
