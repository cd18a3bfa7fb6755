"""Few passages take most requests, which ones changes, and nothing else is shared."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from kvscope.synth.profiles import by_name

SYSTEM = 800 // 16


def firsts(**changes: Any) -> list[int]:
    """Return the first block of the first passage of 5,000 requests."""
    profile: Any = by_name("retrieval")
    profile = replace(profile, **changes)
    return [record.hash_ids[SYSTEM] for record in profile.generate(requests=5_000, seed=1)]


def test_few_passages_take_most_requests() -> None:
    asked = Counter(firsts()).most_common()
    assert len(asked) > 600
    assert 0.53 < sum(count for _, count in asked[:60]) / 5_000 < 0.58


def test_popularity_drifts() -> None:
    """Without drift the most asked passage stays; with it, others take its place."""

    def leaders(passages: list[int]) -> int:
        parts = [passages[at : at + 500] for at in range(0, 5_000, 500)]
        first = [Counter(part).most_common(1)[0][0] for part in parts]
        return sum(before != after for before, after in pairwise(first))

    assert leaders(firsts(drift_s=0.0)) == 0
    assert leaders(firsts(drift_s=20.0)) > 2


def test_what_requests_share() -> None:
    records = list(by_name("retrieval").generate(requests=2_000, seed=3))
    assert len({tuple(record.hash_ids[:SYSTEM]) for record in records}) == 1
    assert len({record.hash_ids[-1] for record in records}) == 2_000
    parents: dict[int, int] = {}
    for record in records:
        for above, block in pairwise(record.hash_ids):
            assert parents.setdefault(block, above) == above


def test_more_passages_a_request_than_there_are() -> None:
    profile: Any = by_name("retrieval")
    with pytest.raises(ValueError, match="passages_a_request"):
        replace(profile, passages=2, passages_a_request=3)
