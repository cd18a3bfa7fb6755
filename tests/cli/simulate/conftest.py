"""A trace and the options that every replay has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.replayed import write_profile, write_trace


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(write_trace(tmp_path))


@pytest.fixture
def options(tmp_path: Path) -> tuple[str, ...]:
    """Return a store of its own, and the profile of 10 ms and 1 ms a token."""
    return ("--db", str(tmp_path / "store.duckdb"), "--latency", str(write_profile(tmp_path)))
