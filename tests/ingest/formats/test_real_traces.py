"""Published traces, where KVSCOPE_TRACES names a folder that holds them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kvscope.ingest.formats import registry
from kvscope.ingest.source import Source

# Name, format, records, requests, hash ids.
PUBLISHED = [
    ("mooncake_conversation.jsonl.gz", "mooncake", 12_031, 12_031, 288_500),
    ("azure_2023_conv.csv.gz", "lengths", 19_366, 19_366, 0),
    ("weka_agent_sessions.jsonl.gz", "weka", 49, 2_757, 6_400_488),
]


@pytest.mark.parametrize(("name", "known", "records", "requests", "ids"), PUBLISHED)
def test_a_published_trace_reads_without_a_reject(
    read: Any, name: str, known: str, records: int, requests: int, ids: int
) -> None:
    """Every line of a published trace is of its format and usable."""
    path = Path(os.environ.get("KVSCOPE_TRACES", "")) / name
    if not (os.environ.get("KVSCOPE_TRACES") and path.is_file()):
        pytest.skip("KVSCOPE_TRACES names no folder with this trace")
    found = read(path.read_bytes())
    assert registry.detect(Source(str(read.path)).head, str(path)).name == known
    assert found.rejects.count == 0
    assert len(found.records) == records
    assert len(found.requests) == requests
    assert sum(len(request.hash_ids or ()) for request in found.requests) == ids
