"""The smallest and the most awkward replays, for every policy in the registry."""

from __future__ import annotations

import numpy as np
import pytest

from kvscope.core.hits import standard
from kvscope.policies.base import Leaves, Policy
from kvscope.policies.registry import by_name
from kvscope.policies.tlru import TLru
from kvscope.replay.replay import replay
from kvscope.replay.traffic import Traffic, traffic, uncut
from tests.policies import drawn
from tests.vllm_sim.examples import asks, told

EVERY_CASE = pytest.mark.parametrize(("policy", "leaves"), drawn.CASES, ids=drawn.case_name)


@EVERY_CASE
def test_no_requests(policy: type[Policy], leaves: Leaves) -> None:
    """A trace without requests is replayed without a complaint."""
    done = replay(_chains([], []), policy(leaves=leaves), 5, tables=drawn.plain_tables(policy))
    assert len(done.hit_blocks) == 0
    assert done.evictions == 0


@pytest.mark.parametrize("leaves", ["any", "leaf"])
def test_a_block_that_tlru_needs_in_part_is_not_safe(leaves: Leaves) -> None:
    """The next turn of `ab` needs its first 6 tokens, so half of b: evict y, which is older."""
    of = traffic(
        told(asks("xy", 8, outputs=4), asks("ab", 8, at=9), asks("u", 4, at=19)), standard()
    )
    done = replay(of, TLru({"xi_tokens": 3, "next_prompt_tokens": 0}, leaves), 4)
    x, _, *others = range(1, 6)  # blocks are numbered as they come
    assert drawn.left(done) == {x, *others}


def test_tables_that_lack_a_category_are_refused() -> None:
    """A category without a row is an error, not a read behind the table's end."""
    of = _chains([[1]], [5])._replace(category=np.array([3], dtype=np.int32))
    for name in ("wa", "etlru", "gittins"):
        with pytest.raises(ValueError, match="a row of its table"):
            replay(of, by_name(name)(), 1)
    with pytest.raises(ValueError, match="for every category and lane"):  # gittins has several
        replay(_chains([[1]], [5]), by_name("gittins")(), 1)


def _chains(wanted: list[list[int]], history: list[int]) -> Traffic:
    """Return requests for paths over one chain of blocks 1, 2, 3, …, all of one category."""
    length = np.array([len(path) for path in wanted], dtype=np.int32)
    nothing = np.zeros(len(wanted), dtype=np.int32)
    return Traffic(
        block_size=16,
        block_parent=np.array([0, *range(max(map(len, wanted), default=0))], dtype=np.int32),
        leaf=np.array([path[-1] for path in wanted], dtype=np.int32),
        length=length,
        look=length,
        anonymous=nothing,
        arrival_s=np.arange(len(wanted), dtype=np.float64),
        input_tokens=length * np.int32(16),
        history_tokens=np.array(history, dtype=np.int64),
        category=nothing,
        parent=nothing - np.int32(1),
        next_prompt_tokens=np.full(len(wanted), 100, dtype=np.int64),
        cuts=uncut(len(wanted)),
    )
