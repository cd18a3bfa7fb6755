"""Every command's `--json` is as it was: keys, their order and values."""

from __future__ import annotations

import gzip
import json
from itertools import islice

import pytest

from tests.golden.documents import CHAINS, FILE, differences, documents

SHOWN = 20


def rel_tol(command: str) -> float:
    """Return how far numbers may be off: where an optimizer ends depends on the CPU's arithmetic.

    Bounds of a share near 0 differ by 4e-8 between two CPUs, all else of `fit` by 1e-9.
    """
    return 1e-6 if command.startswith("fit") else 1e-9


@pytest.mark.parametrize("chain", CHAINS)
def test_documents_are_as_they_were(chain: str) -> None:
    golden = json.loads(gzip.decompress(FILE.read_bytes()))[chain]
    actual = documents(chain)
    assert list(golden) == list(actual)
    changed = (
        f"{command}: {difference}"
        for command in golden
        for difference in differences(golden[command], actual[command], rel_tol(command))
    )
    assert list(islice(changed, SHOWN)) == [], "or python -m tests.golden.documents"
