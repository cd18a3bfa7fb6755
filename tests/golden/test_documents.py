"""Every command's `--json` is as it was: keys, their order and values."""

from __future__ import annotations

import gzip
import json
import math
from itertools import islice, zip_longest
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
    """Leaf by leaf; where one is missing, all that follow differ."""
    golden = json.loads(gzip.decompress(FILE.read_bytes()))[chain]
    actual = documents(chain)
    assert list(golden) == list(actual)
    changed = [
        f"{command}: {before} became {after}"
        for command in golden
        for before, after in zip_longest(leaves(golden[command]), leaves(actual[command]))
        if not before or not after or before[0] != after[0] or not _same(before[1], after[1])
    ]
    assert list(islice(changed, SHOWN)) == [], "or python -m tests.golden.documents"
