"""docs/cli.md says what the program says."""

from __future__ import annotations

from docs.generate import TARGET, VERSIONS, reference, versions_page
from kvscope.cli.app import COMMANDS


def test_the_reference_is_not_stale() -> None:
    """The page in docs/ is the one that the program generates now (`make docs` writes it)."""
    assert TARGET.read_text(encoding="utf-8") == reference()


def test_the_page_of_versions_is_not_stale() -> None:
    """It has the table that pool, simulator, flags and plugin read."""
    assert VERSIONS.read_text(encoding="utf-8") == versions_page()


def test_every_command_is_in_it() -> None:
    """No command is left out."""
    page = TARGET.read_text(encoding="utf-8")
    for name, _ in COMMANDS:
        assert f"## kvscope {name}\n" in page
