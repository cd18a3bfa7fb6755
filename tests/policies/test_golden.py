"""Every policy's counts on the sample traces are those of tests/golden/policies.json."""

from __future__ import annotations

import json

import pytest

from kvscope.policies.registry import POLICIES
from tests.golden import policies
from tests.golden.samples import SAMPLES, capacities, sample
from tests.long import long

GOLDEN = json.loads(policies.FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [long(name) if name == "to-c" else name for name in SAMPLES])
def test_counts(name: str) -> None:
    """Hit blocks and evictions at eight capacities; tests.golden.policies writes them."""
    expected = dict(GOLDEN[name])
    assert expected.pop("capacity_blocks") == capacities(sample(name))
    found = policies.counted(name)
    different = [each for each in found if found[each] != expected.get(each)]
    assert not different, f"{name}: other counts than before for {', '.join(different)}"
    assert set(expected) == {policy.name for policy in POLICIES}


@pytest.mark.parametrize("name", SAMPLES)
def test_belady_is_the_ceiling(name: str) -> None:
    """In the golden file too no policy hits more blocks than belady, at any capacity."""
    best = [hits for hits, _ in GOLDEN[name]["belady"]]
    for policy in POLICIES:
        assert all(
            hits <= ceiling
            for (hits, _), ceiling in zip(GOLDEN[name][policy.name], best, strict=True)
        )
