from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from kvscope.characterize import history
from kvscope.characterize.spatial import trace_deciles
from kvscope.characterize.summary import Characterization, characterize, start_characterization
from kvscope.core.percentiles import Quantiles
from kvscope.store.traces import load_prompts
from tests.characterize.tiny import (
    CHAT_1,
    CHAT_2,
    REQUESTS,
    SEARCH_1,
    lengths_only,
    one_request,
    tiny_store,
)

NEED_HASHES = (
    *("sources", "skew", "reuse_gaps", "reuse_hazard", "lifetimes", "spatial", "working_set"),
)


def test_categories() -> None:
    """Each row gathers what the parts say of its category."""
    with tiny_store() as (store, trace):
        first, later, search = characterize(store, trace).categories
    assert (first.category, first.type, first.turn_bucket) == (CHAT_1, "chat", "1")
    assert (first.requests, first.share, first.multi_turn_share) == (2, 2 / 5, 0)
    assert (first.mean_input_tokens, first.mean_output_tokens) == (9, 2.5)
    assert first.reuse_gap_s == Quantiles(p50=10, p80=60, p90=60, p99=60)
    assert first.lifetime_s == Quantiles(p50=40, p80=100, p90=100, p99=100)
    assert (first.next_turn_probability, first.hit_share) == (1 / 2, 2 / 6)
    assert (later.category, later.multi_turn_share, later.hit_share) == (CHAT_2, 1, 3 / 6)
    assert (search.category, search.hit_share) == (SEARCH_1, 1 / 6)


def test_everything_at_once() -> None:
    """One call fills every part, and prompts at hand change nothing."""
    with tiny_store() as (store, trace):
        found = characterize(store, trace)
        count_deciles = partial(trace_deciles, load_prompts(store, trace))
        assert start_characterization(store, trace, count_deciles)() == found
    assert [
        field.name for field in dataclasses.fields(found) if getattr(found, field.name) is None
    ] == []


def test_facts_in_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests read at a time, and what is sorted kept on disk: the same facts."""
    with tiny_store() as (store, trace):
        monkeypatch.setattr(history, "AT_ONCE", 2)
        assert start_characterization(store, trace, work=tmp_path)() == characterize(store, trace)


def test_facts_are_json() -> None:
    """Plain numbers and rows only: what is written comes back the same."""
    with tiny_store() as (store, trace):
        found = characterize(store, trace)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Characterization) == found
    assert isinstance(msgspec.to_builtins(found)["spatial"]["overall"][0][0], float)


def test_lengths_only() -> None:
    """Without hashes there are lengths and traffic, and nothing about reuse."""
    with lengths_only() as (store, trace):
        found = characterize(store, trace)
    assert {name for name in NEED_HASHES if getattr(found, name) is not None} == set()
    assert (found.turns, found.next_turns) == (None, None)
    assert found.lengths.requests == 5
    assert [row.category for row in found.categories] == ["unknown 1"]
    row = found.categories[0]
    assert (row.reuse_gap_s, row.lifetime_s, row.hit_share) == (None, None, None)
    assert row.next_turn_probability is None
    assert found.stability.between_windows == ()


def test_one_request() -> None:
    """A single request has no rate, no reuse and one window."""
    with one_request() as (store, trace):
        found = characterize(store, trace)
    assert (found.lengths.arrival_rate_per_s, found.lengths.inter_arrival_cv) == (None, None)
    assert len(found.over_time.windows) == 1
    assert found.contribution.token_hit_rate == 0
    assert found.sources is None
    assert found.next_turns is not None
    assert found.next_turns.overall.probability == 0


def test_one_request_of_lengths() -> None:
    """Nothing but two token counts is still a trace."""
    columns: dict[str, list[Any]] = {
        "request": [0],
        "arrival_s": [0.0],
        "type": ["unknown"],
        "turn": [1],
    }
    columns |= {"conversation": [0], "input_tokens": [7], "output_tokens": [0]}
    names = ("blocks", "full_blocks", "leaf", "cached_blocks", "carried_leaf", "carried_blocks")
    columns |= {name: [0] for name in (*names, "ideal_blocks")}
    with tiny_store(columns, {}, {}, accesses=0, has_users=False, lineage="none") as (store, trace):
        found = characterize(store, trace)
    assert found.lengths.input_tokens.max == 7
    assert found.request_sizes[0].blocks.max == 2


def test_turn_buckets_at_their_edges() -> None:
    """Turn 3 stands alone, 4 and 6 share a bucket, 7 begins the last one."""
    columns = {**REQUESTS, "turn": [2, 3, 4, 6, 7], "type": ["chat"] * 5}
    with tiny_store(columns) as (store, trace):
        found = characterize(store, trace).categories
    assert [(row.category, row.requests) for row in found] == [
        ("chat 2", 1),
        ("chat 3", 1),
        ("chat 4-6", 2),
        ("chat 7+", 1),
    ]


def test_a_categorys_next_turn_is_the_settled_one() -> None:
    """Of three first chat turns one is continued; the last one is too young to tell."""
    columns = {**REQUESTS, "type": ["chat"] * 5}
    with tiny_store(columns) as (store, trace):
        found = characterize(store, trace)
    first, later = found.categories
    assert (first.category, later.category) == (CHAT_1, CHAT_2)
    assert found.next_turns is not None
    assert found.next_turns.by_category[0].next_turn.probability == 1 / 4
    assert first.next_turn_probability == 1 / 3


def test_categories_keep_their_requests_whatever_their_order() -> None:
    """Each request is of the category that it is said to be, in the order that was asked for."""
    with tiny_store() as (store, trace):
        found = store.columns(
            "characterize/history_requests",
            trace_id=trace.trace_id,
            categories=[SEARCH_1, CHAT_2, CHAT_1],
            first=0,
            end=5,
        )
    in_order = np.argsort(found["request"])
    assert found["category_index"][in_order].tolist() == [2, 1, 0, 2, 0]
