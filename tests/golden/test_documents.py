"""Every command's `--json` is as it was: keys, their order and values."""

from __future__ import annotations

import gzip
import json
from itertools import islice

import pytest

from tests.golden.documents import CHAINS, FILE, differences, documents

SHOWN = 20


@pytest.mark.parametrize("chain", CHAINS)
def test_documents_are_as_they_were(chain: str) -> None:
    golden = json.loads(gzip.decompress(FILE.read_bytes()))[chain]
    actual = documents(chain)
    assert list(golden) == list(actual)
    changed = (
        f"{command}: {difference}"
        for command in golden
        for difference in differences(golden[command], actual[command])
    )
    assert list(islice(changed, SHOWN)) == [], "or python -m tests.golden.documents"
