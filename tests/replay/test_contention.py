"""Who evicts whom: against plain Python, block by block, and quotas against caches of their own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import Request
from kvscope.replay.attribution import Attribution, attribute, by_worker, lru_cache_lookups
from kvscope.replay.contention import MOST_GROUPS, group_losses, grouped, pushed_out
from kvscope.replay.derived_traces import select
from kvscope.replay.traffic import walk
from tests import small_traces


def charged(
    prompts: Prompts, causes: Attribution, group: np.ndarray, worker: np.ndarray
) -> np.ndarray:
    """Return evicted tokens by group and by what was written since, a cache for each worker.

    Requests that were rejected write nothing.
    """
    matrix, size = np.zeros((3, 3)), prompts.block_size
    rejected = causes.tokens["rejected"] > 0
    anonymous = walk(prompts, standard()).anonymous
    for each in set(worker.tolist()):
        used: dict[int, int] = {}
        written: list[tuple[int, int]] = []  # by which request, in blocks
        for request in np.flatnonzero(worker == each).tolist():
            path = small_traces.blocks_to(prompts, prompts.carried_leaf[request])
            look = path[: min(int(prompts.full_blocks[request]), _looked(prompts, request))]
            hit = int(causes.lookups.hit[request])
            known = next((at for at, block in enumerate(look) if block not in used), len(look))
            if known > hit and not rejected[request]:
                between = [one for one in written if one[0] > used[look[hit]]]
                total = sum(blocks for _, blocks in between)
                for one, blocks in between or [(request, 1)]:
                    share = blocks / total if total else 1 / max(len(between), 1)
                    to = one if total else request
                    matrix[group[request], group[to]] += (known - hit) * size * share
            if not rejected[request]:
                written.append((request, len(path) - hit + int(anonymous[request])))
            used |= dict.fromkeys(path, request)
    return matrix


def _looked(prompts: Prompts, request: int) -> int:
    return (int(prompts.input_tokens[request]) - 1) // prompts.block_size


def drawn(data: st.DataObject) -> Prompts:
    """Return a small trace."""
    size = data.draw(small_traces.SIZES)
    return small_traces.prompts(small_traces.built(data.draw(small_traces.requests(size)), size))


@given(st.data(), st.integers(1, 12))
@settings(deadline=None)
def test_equals_plain_python(data: st.DataObject, capacity: int) -> None:
    """Each evicted token is one group's, in proportion to what it wrote since the last use."""
    prompts = drawn(data)
    requests = len(prompts.leaf)
    numbers = st.lists(st.integers(0, 2), min_size=requests, max_size=requests)
    group, worker = (np.array(data.draw(numbers), dtype=np.int32) for _ in range(2))
    cached = by_worker(prompts, worker, lambda part: lru_cache_lookups(part, standard(), capacity))
    flags = st.lists(st.booleans(), min_size=requests, max_size=requests)
    cached = replace(cached, rejected=np.array(data.draw(flags)))
    causes = attribute(prompts, standard(), cached, several=True)
    found = pushed_out(prompts, standard(), causes, group, 3, worker)
    np.testing.assert_allclose(found, charged(prompts, causes, group, worker))
    assert found.sum() == pytest.approx(causes.tokens["evicted"].sum())


@given(st.data(), st.integers(1, 12))
@settings(deadline=None)
def test_a_quota_is_a_cache_of_its_own(data: st.DataObject, capacity: int) -> None:
    """Sums are those of the trace; a group hits in its quota what its requests alone would hit."""
    prompts = drawn(data)
    group = (np.arange(len(prompts.leaf)) % 2).astype(np.int32)
    causes = attribute(prompts, standard(), lru_cache_lookups(prompts, standard(), capacity))
    alone = (capacity, lambda part, blocks: lru_cache_lookups(part, standard(), blocks))
    names = ("even", "odd")[: int(group.max(initial=0)) + 1]
    losses = group_losses(prompts, standard(), causes, (group, names), 0 * group, alone)
    assert sum(each.input_tokens for each in losses) == causes.input_tokens.sum()
    assert sum(each.hit_tokens for each in losses) == causes.hit_tokens.sum()
    for each in losses:
        assert sum(one.tokens for one in each.evicted_by) == each.evicted_tokens
        own = select(prompts, np.flatnonzero(group == names.index(each.name)))
        quota = each.quota_blocks
        assert quota == max(round(capacity * each.input_tokens / causes.input_tokens.sum()), 1)
        apart = attribute(own, standard(), lru_cache_lookups(own, standard(), quota))
        assert each.quota_hit_tokens == apart.hit_tokens.sum()


def test_many_groups_are_the_largest_and_others() -> None:
    """By input tokens; a trace of one type or without users is refused."""
    many = MOST_GROUPS + 3
    trace = [
        Request(input_tokens=10 + at, output_tokens=1, arrival_s=float(at), hash_ids=[at])
        for at in range(many)
    ]
    prompts = small_traces.prompts(small_traces.built(trace, 16))
    prompts = replace(prompts, user=np.arange(many, dtype=np.int32) - 1)
    group, names = grouped(prompts, "user")
    assert names == ("user 3", "user 4", "user 5", "user 6", "user 7", "4 others")
    assert group.tolist() == [5, 5, 5, 5, 0, 1, 2, 3, 4]
    with pytest.raises(UsageError, match="fewer than two types"):
        grouped(prompts, "type")
    with pytest.raises(UsageError, match="fewer than two users"):
        grouped(replace(prompts, user=np.full(many, -1, dtype=np.int32)), "user")
