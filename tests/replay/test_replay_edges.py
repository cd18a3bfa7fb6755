"""The smallest and the most awkward replays, for every policy in the registry."""

from __future__ import annotations

import numpy as np
import pytest

from kvscope.core.hits import standard
from kvscope.policies.base import Leaves, Policy
from kvscope.policies.registry import by_name
from kvscope.policies.tlru import TLru
from kvscope.replay.replay import replay
from kvscope.replay.traffic import traffic
from tests.policies import drawn
from tests.policies.traffics import chain
from tests.vllm_sim.examples import asks, told

EVERY_CASE = pytest.mark.parametrize(("policy", "leaves"), drawn.CASES, ids=drawn.case_name)


@EVERY_CASE
def test_no_requests(policy: type[Policy], leaves: Leaves) -> None:
    """A trace without requests is replayed without a complaint."""
    done = replay(chain([], []), policy(leaves=leaves), 5, tables=drawn.plain_tables(policy))
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
    assert drawn.left(of, done) == {x, *others}


def test_tables_that_lack_a_category_are_refused() -> None:
    """A category without a row is an error, not a read behind the table's end."""
    of = chain([1], [0.0])._replace(category=np.array([3], dtype=np.int32))
    for name in ("wa", "etlru", "gittins"):
        with pytest.raises(ValueError, match="a row of its table"):
            replay(of, by_name(name)(), 1)
    with pytest.raises(ValueError, match="for every category and lane"):  # gittins has several
        replay(chain([1], [0.0]), by_name("gittins")(), 1)
