"""What is known of a new trace before it is stored serves its analysis as what the store gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvscope.app.monitor import Monitor
from kvscope.core.hits import Outputs, standard
from kvscope.store.db import MEMORY, open_store
from kvscope.usecases.analyze import AnalyzeRequest, run
from kvscope.usecases.base import Opened


def conversations(path: Path) -> str:
    """Write conversations of two turns, most of them held again after different numbers of others.

    So what a first turn generates recurs as well, beyond the prompt.
    """
    lines = []
    for number in [0, 1, 2, 3, 0, 2, 1, 4, 3, 0]:
        first, ids = len(lines), [100 * number + depth for depth in range(8)]
        for turn, blocks in ((1, 3), (2, 8)):
            line = {
                "chat_id": first + turn - 1,
                "parent_chat_id": first if turn == 2 else -1,
                "timestamp": float(first + turn),
                "input_length": 16 * blocks,
                "output_length": 64,
                "type": "text",
                "turn": turn,
                "hash_ids": ids[:blocks],
            }
            lines.append(json.dumps(line) + "\n")
    path.write_text("".join(lines))
    return str(path)


@pytest.mark.parametrize("outputs", ["carried", "ignored"])
def test_a_new_trace_is_analyzed_as_a_stored_one(tmp_path: Path, outputs: Outputs) -> None:
    """LRU's curve, ideal rates and misses are the same, whether outputs are carried or ignored."""
    path = conversations(tmp_path / "a.jsonl")
    request = AnalyzeRequest(definition=standard(outputs=outputs))
    with open_store(MEMORY) as store:
        new, stored = (
            run(Opened.of(store, path, Monitor()), request, Monitor()).caching for _ in range(2)
        )
    assert new is not None
    assert stored is not None
    assert new.hit_rates == stored.hit_rates
    assert new.misses == stored.misses
    for one, other in ((new.lru, stored.lru), (new.lru_by_token, stored.lru_by_token)):
        assert np.array_equal(one.knots, other.knots)
        assert np.array_equal(one.hits, other.hits)
