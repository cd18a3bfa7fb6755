"""What every router has to keep, and the names that find them."""

from __future__ import annotations

import numpy as np
import pytest

from kvscope.core.errors import UsageError
from kvscope.routers.base import (
    Fetch,
    MemorySizes,
    Prompt,
    ReplicaLoad,
    Router,
    Truth,
    View,
    draw,
    mix32,
    new_dice,
)
from kvscope.routers.registry import ROUTERS, router_by_name

PARENTS = np.array([0, 0, 1, 2, 1], dtype=np.int32)  # 1-2-3 and 1-4


def a_view(replicas: int) -> View:
    whole = np.zeros(replicas, dtype=np.int64)
    load = ReplicaLoad(*(whole.copy() for _ in ReplicaLoad._fields))
    truth = Truth(whole.astype(np.int32), whole.copy(), np.ones(replicas), np.zeros(replicas))
    fetch = Fetch(np.zeros(1, dtype=np.int32), np.zeros(1))
    expected = np.zeros(1, dtype=np.int32)
    return View(replicas, 100, 16, load, load, truth.cached_blocks, expected, truth, fetch)


@pytest.mark.parametrize("kind", ROUTERS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_choice_is_a_replica(kind: type[Router], replicas: int) -> None:
    router = kind()
    memory = router.memory(MemorySizes(replicas, 40, len(PARENTS), 3, 16, 100, PARENTS), seed=1)
    path = np.array([1, 2, 3], dtype=np.int32)
    for request in range(40):
        prompt = Prompt(request, request * 0.5, 50, request % 7, 3, 3)
        choice = kind.choose(prompt, path, a_view(replicas), memory, router.settings())
        assert 0 <= choice < replicas


def test_names_are_found_in_any_case_and_versions_are_offered() -> None:
    assert router_by_name("Round-Robin").name == "round-robin"
    assert router_by_name("rr").name == "round-robin"
    with pytest.raises(UsageError, match="did you mean random"):
        router_by_name("randon")
    names = [name for known in ROUTERS for name in (known.name, *known.aliases)]
    assert len(names) == len(set(names))


def test_random_numbers_are_even_and_follow_the_seed() -> None:
    dice, again = new_dice(7), new_dice(7)
    drawn = [draw(dice, 5) for _ in range(10_000)]
    assert drawn[:50] == [draw(again, 5) for _ in range(50)]
    counts = np.bincount(drawn, minlength=5)
    assert counts.sum() == 10_000
    assert np.all(np.abs(counts - 2000) < 5 * np.sqrt(2000))
    hashed = np.array([mix32(number) for number in range(10_000)])
    assert len(np.unique(hashed)) == 10_000
    assert abs(hashed.mean() / 2**31 - 1) < 0.02
