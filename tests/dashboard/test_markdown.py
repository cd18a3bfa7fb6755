"""Text on pages: nothing of it is markup, but kvscope's own commands are code."""

from __future__ import annotations

from dashboard.wording import escape, escape_around_commands


def test_commands_are_code_and_all_else_is_text() -> None:
    """A command is left as it is; other backticks, and markup within some, are escaped."""
    assert escape_around_commands("a* `kvscope tune` adds") == r"a\* `kvscope tune` adds"
    for text in ("`b`", "`kvscope <b>`", "kvscope tune`"):
        assert escape_around_commands(text) == escape(text)
