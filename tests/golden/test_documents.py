"""Every command's `--json` is as it was: keys, their order and values."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from tests.golden.documents import CHAINS, FILE, documents, leaves

SHOWN = 20


def _same(before: Any, after: Any) -> bool:
    """Return whether two leaves are equal; columns are summed in parallel, in any order."""
    if isinstance(before, float) and isinstance(after, float):
        return math.isclose(before, after, rel_tol=1e-9)
    return type(before) is type(after) and before == after


@pytest.mark.parametrize("chain", CHAINS)
def test_documents_are_as_they_were(chain: str) -> None:
    golden = json.loads(gzip.decompress(FILE.read_bytes()))[chain]
    actual = documents(chain)
    assert list(golden) == list(actual)
    changed = (change for name in golden for change in _changes(name, golden[name], actual[name]))
    assert list(islice(changed, SHOWN)) == [], "or python -m tests.golden.documents"


def _changes(command: str, golden: Any, actual: Any) -> Iterator[str]:
    before, after = dict(leaves(golden)), dict(leaves(actual))
    for place in before | after:
        if place not in after:
            yield f"{command}: {place} went"
        elif place not in before:
            yield f"{command}: {place} is new: {after[place]!r}"
        elif not _same(before[place], after[place]):
            yield f"{command}: {place} was {before[place]!r}, is {after[place]!r}"
    if list(before) != list(after) and set(before) == set(after):
        yield f"{command}: the order of the keys changed"
