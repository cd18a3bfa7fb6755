"""Why tokens missed: hand-computed on a conversation of three turns and a stranger."""

from __future__ import annotations

import numpy as np
import pytest

from kvscope.simulate.definitions import standard
from kvscope.simulate.misses import miss_reasons
from kvscope.store.prompts import Prompts


def int32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


@pytest.fixture
def prompts() -> Prompts:
    """Blocks of 4 tokens. Turn 1 has blocks 1-2-3, a stranger block 4, turn 2 repeats turn 1 and
    adds block 5, turn 3 keeps 1-2 only and goes on with 6-7 where 3-5 stood, then 8.
    """
    return Prompts(
        block_size=4,
        arrival_s=np.arange(4, dtype=np.float64),
        input_tokens=int32(13, 5, 17, 22),
        output_tokens=int32(0, 0, 0, 0),
        conversation=int32(0, 1, 0, 0),
        parent=int32(-1, -1, 0, 2),
        blocks=int32(3, 1, 4, 5),
        full_blocks=int32(3, 1, 4, 5),
        leaf=int32(3, 4, 5, 8),
        cached_blocks=int32(3, 1, 4, 5),
        carried_leaf=int32(3, 4, 5, 8),
        carried_blocks=int32(3, 1, 4, 5),
        block_parent=int32(0, 0, 1, 2, 0, 3, 2, 6, 7),
    )


def test_the_parts_add_up_to_the_input(prompts: Prompts) -> None:
    """Whatever the capacity, every input token is in exactly one part."""
    for reasons in miss_reasons(prompts, standard(), list(range(12))):
        parts = (
            reasons.hit_tokens
            + reasons.evicted_tokens
            + reasons.diverged_tokens
            + reasons.cold_tokens
            + reasons.tail_tokens
        )
        assert parts == reasons.input_tokens == 57


def test_hits_and_evictions_follow_capacity(prompts: Prompts) -> None:
    """Turn 2 finds its 3 blocks behind the stranger's, turn 3 its 2 in front: places 2-4, 1-2."""
    hits = [
        reasons.hit_tokens // 4 for reasons in miss_reasons(prompts, standard(), [0, 1, 2, 3, 4])
    ]
    assert hits == [0, 1, 3, 4, 5]
    evicted = [r.evicted_tokens // 4 for r in miss_reasons(prompts, standard(), [0, 1, 2, 3, 4])]
    assert evicted == [5, 4, 2, 1, 0]


def test_an_edited_history_diverges(prompts: Prompts) -> None:
    """Turn 3 has other blocks at places 2 and 3 than turn 2 had; place 4 is merely new."""
    (reasons,) = miss_reasons(prompts, standard(), [10])
    assert reasons.diverged_tokens == 2 * 4
    assert reasons.cold_tokens == (3 + 1 + 1 + 1) * 4  # turn 1, stranger, block 5, block 8
    assert reasons.tail_tokens == 1 + 1 + 1 + 2
