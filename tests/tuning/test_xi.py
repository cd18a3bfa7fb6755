"""Which values of xi are worth a look."""

from __future__ import annotations

import pytest

from kvscope.policies.registry import by_name
from kvscope.tuning.search import has_xi


@pytest.mark.parametrize(
    ("policy", "expected"), [("tlru", True), ("etlru", True), ("lru", False), ("wa", False)]
)
def test_who_has_a_xi(policy: str, expected: bool) -> None:
    """Those that are told how much may stay uncached."""
    assert has_xi(by_name(policy)) is expected
