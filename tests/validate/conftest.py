"""The trace that `kvscope validate` is asked about."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validate.chats import write_chats
from tests.validate.commands import PROFILE


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Eighty requests of chats, and beside them the latency profile of the fake server."""
    (tmp_path / "latency.toml").write_text(PROFILE)
    return str(write_chats(tmp_path / "chats.jsonl", 80, gap_s=0.01))
