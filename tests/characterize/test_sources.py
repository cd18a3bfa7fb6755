from __future__ import annotations

import pytest

from kvscope.characterize.sources import skew, sources
from tests.characterize.tiny import REQUESTS, one_request, tiny_store


def test_sources() -> None:
    """Of seven reused blocks three stay in the conversation, one with the user, three cross."""
    with tiny_store() as (store, trace):
        found = sources(store, trace)
    assert found is not None
    assert found.reused_blocks == 7
    assert found.same_conversation_share == 3 / 7
    assert found.same_user_share == 1 / 7
    assert found.other_share == 3 / 7


def test_heat_map() -> None:
    """User 1 reuses five blocks, four of them its own; user 2 reuses two of user 1's."""
    with tiny_store() as (store, trace):
        found = sources(store, trace)
    assert found is not None
    cells = [(cell.source_user, cell.reuser_user, cell.blocks) for cell in found.heat_map]
    assert cells == [(1, 1, 4), (2, 1, 1), (1, 2, 2)]
    assert [(cell.source_rank, cell.reuser_rank) for cell in found.heat_map] == [
        (1, 1),
        (2, 1),
        (1, 2),
    ]


def test_heat_map_beyond_the_top_users() -> None:
    """Touches of users that are not among the top ones stay in the map, without a rank."""
    with tiny_store() as (store, trace):
        rows = store.rows("characterize/user_heat_map", trace_id=trace.trace_id, top=1)
    assert [(row["source_rank"], row["source_user"], row["blocks"]) for row in rows] == [
        (1, 1, 4),
        (None, None, 1),
    ]


def test_sources_without_users_and_lineage() -> None:
    """What the trace does not tell is None, and all reuse is by others."""
    with tiny_store(has_users=False, lineage="none") as (store, trace):
        found = sources(store, trace)
    assert found is not None
    assert (found.same_conversation_share, found.same_user_share) == (None, None)
    assert found.heat_map == ()


def test_skew_of_blocks() -> None:
    """Five cacheable blocks are reused 4, 2, 1, 0 and 0 times; half a block counts half."""
    with tiny_store() as (store, trace):
        found = skew(store, trace)
    assert found is not None
    assert found.cacheable_blocks == 5
    assert found.reused_block_share == 3 / 5
    shares = {at.top_share: at.share for at in found.reuse}
    assert shares[0.1] == found.reuse_from_top_10_percent == pytest.approx(0.5 * 4 / 7)
    assert shares[0.2] == pytest.approx(4 / 7)
    assert shares[0.5] == pytest.approx((4 + 2 + 0.5) / 7)


def test_skew_of_users() -> None:
    """User 1 has five of six hits and three of five requests: 90 % of either takes both users."""
    with tiny_store() as (store, trace):
        found = skew(store, trace)
    assert found is not None
    assert found.users is not None
    assert found.users.users == 2
    assert {at.top_share: at.share for at in found.users.hits}[0.5] == pytest.approx(5 / 6)
    assert found.users.share_making_90_percent_of_hits == 1.0
    assert found.users.share_making_90_percent_of_requests == 1.0


def test_skew_without_reuse() -> None:
    """No reuse has no skew, but the blocks are still counted."""
    with one_request() as (store, trace):
        found = skew(store, trace)
        assert sources(store, trace) is None
    assert found is not None
    assert (found.cacheable_blocks, found.reused_block_share, found.reuse) == (2, 0, ())
    assert found.reuse_from_top_10_percent is None
    assert found.users is not None
    assert found.users.share_making_90_percent_of_hits is None


def test_ninety_percent_may_be_reached_exactly() -> None:
    """Nine of ten requests and hits are user 1's: that user alone makes 90 % of both."""
    columns = {name: [values[0]] * 10 for name, values in REQUESTS.items() if name != "parent"} | {
        "request": list(range(10)),
        "arrival_s": [float(at) for at in range(10)],
        "user_id": [1] * 9 + [2],
        "ideal_blocks": [1] * 10,
    }
    with tiny_store(columns) as (store, trace):
        found = skew(store, trace)
    assert found is not None
    assert found.users is not None
    assert found.users.share_making_90_percent_of_hits == 1 / 2
    assert found.users.share_making_90_percent_of_requests == 1 / 2


def test_nobody_has_no_rank() -> None:
    """Requests without a user reuse most, and take no place on the heat map."""
    columns = {**REQUESTS, "user_id": [1, None, None, 1, 2]}
    with tiny_store(columns) as (store, trace):
        rows = store.rows("characterize/user_heat_map", trace_id=trace.trace_id, top=2)
    assert {(row["reuser_user"], row["reuser_rank"]) for row in rows} == {(1, 1), (2, 2)}
