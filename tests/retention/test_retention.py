"""Times to live and providers' prices."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvscope
from kvscope.app.traces import replayable
from kvscope.policies.lru import Ttl
from kvscope.replay.replay import replay
from kvscope.replay.traffic import Traffic
from kvscope.retention import prices as retention_prices
from kvscope.retention import ttls
from kvscope.retention.prices import Charge, charges, prices
from kvscope.retention.ttls import NOT_HELD, ttl_curves
from tests.oracles import turns as oracle
from tests.policies.traffics import CATEGORIES, traffics

TTLS = st.sampled_from((0.0, 1.0, 2.0, 5.0, float("inf"), NOT_HELD))


@settings(deadline=None, max_examples=100)
@given(st.data(), traffics(), st.booleans())
def test_held_blocks_equal_the_oracle(
    data: st.DataObject, traffic: Traffic, compiled: bool
) -> None:
    """Each request has a TTL of its own."""
    requests = len(traffic.leaf)
    ttl_s = data.draw(st.lists(TTLS, min_size=requests, max_size=requests))
    expected = oracle.replay_ttls(traffic, ttl_s)
    with pytest.MonkeyPatch.context() as patched:
        if not compiled:
            patched.setattr(ttls, "_hold", ttls._hold.py_func)
        found = ttls.replay_ttls(traffic, np.array(ttl_s))
    assert found.hit_blocks.tolist() == expected.hit_blocks
    assert found.block_seconds == pytest.approx(expected.block_seconds)
    assert found.peak_blocks == expected.peak_blocks


@settings(deadline=None, max_examples=60)
@given(traffics(), st.sampled_from((0.0, 1.0, 2.0, 5.0, float("inf"))))
def test_curve_of_one_ttl_is_exact(traffic: Traffic, ttl_s: float) -> None:
    """Hits equal the policy `ttl` in a cache that never fills, hits and memory those held."""
    curve = ttl_curves(traffic, CATEGORIES).overall
    found = ttls.replay_ttls(traffic, np.full(len(traffic.leaf), ttl_s))
    hits = replay(traffic, Ttl({"ttl_s": ttl_s}), 10**6).hit_blocks
    assert found.hit_blocks.tolist() == hits.tolist()
    assert int(curve.hits(ttl_s)) == int(hits.sum()) * traffic.block_size
    assert float(curve.held(ttl_s)) == pytest.approx(found.block_seconds)


@settings(deadline=None, max_examples=60)
@given(traffics(), st.lists(st.sampled_from((0.0, 1.0, 3.0)), min_size=3, max_size=3))
def test_blocks_hit_and_held_are_at_least_the_sum_by_category(
    traffic: Traffic, ttl_s: list[float]
) -> None:
    """The sum of the curves counts a block by its last touch alone."""
    curves = ttl_curves(traffic, CATEGORIES)
    found = ttls.replay_ttls(traffic, np.array(ttl_s)[traffic.category])
    parts = list(zip(curves.by_category, ttl_s, strict=True))
    hits = sum(int(curve.hits(ttl)) for curve, ttl in parts)
    seconds = sum(float(curve.held(ttl)) for curve, ttl in parts)
    assert int(found.hit_blocks.sum()) * traffic.block_size >= hits
    assert found.block_seconds >= seconds - 1e-9


def test_prices_have_a_date_and_a_source_each() -> None:
    """Reads cost less than plain tokens, writes no less."""
    known = prices()
    assert date.fromisoformat(known.date) <= date(2100, 1, 1)
    named = {(offer.provider, offer.name) for offer in known.offer}
    assert len(named) == len(known.offer)
    for offer in known.offer:
        assert offer.source.startswith("https://")
        assert offer.read < 1 <= offer.write
        assert (offer.ttl_s is None) == (offer.storage_per_hour > 0)


@pytest.fixture(scope="module")
def by_offer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Charge]:
    """Return the charges of three prompts of 2,048 tokens, 400 s and 4,000 s apart, and a short."""
    path = tmp_path_factory.mktemp("prices") / "trace.jsonl"
    rows = [(0.0, 2048), (400.0, 2048), (410.0, 512), (4400.0, 2048)]
    path.write_text(
        "\n".join(
            json.dumps(
                {
                    "timestamp": int(at_s * 1000),
                    "input_length": tokens,
                    "output_length": 1,
                    "hash_ids": list(range(tokens // 512)),
                }
            )
            for at_s, tokens in rows
        )
    )
    with kvscope.open_trace(Path(path)) as trace:
        prompts = replayable(trace.store, trace.facts)
    return {charge.offered: charge for charge in charges(prompts)}


def test_charges_equal_a_bill_by_hand(by_offer: dict[str, Charge]) -> None:
    """5 min reads nothing; an hour reads the second prompt, whose TTL is over at the third."""
    total = 3 * 2048 + 512
    five, hour = by_offer["anthropic 5m"], by_offer["anthropic 1h"]
    assert (five.read_tokens, five.written_tokens) == (0, 3 * 2048)
    assert five.cost_ratio == pytest.approx((1.25 * 3 * 2048 + 512) / total)
    assert (hour.read_tokens, hour.written_tokens) == (2048, 2 * 2048)
    assert hour.cost_ratio == pytest.approx((0.1 * 2048 + 2 * 2 * 2048 + 512) / total)
    day = by_offer["openai gpt-5 24h"]
    assert day.read_tokens == 2 * 2048
    assert day.cost_ratio == pytest.approx((0.1 * 2 * 2048 + 2048 + 512) / total)


def test_a_ttl_to_choose_is_the_cheapest(by_offer: dict[str, Charge]) -> None:
    """400 s of storage cost 0.4 of a token and save 0.9; 4,000 s cost more than they save."""
    explicit = by_offer["gemini 2.5 pro explicit"]
    assert explicit.ttl_s == 400.0
    assert explicit.read_tokens == 2048
    # The third prompt is the trace's last, so only the first two are stored.
    assert explicit.storage == pytest.approx(3.6 * 2048 * 800 / 3600)


def test_prefixes_are_read_from_the_minimum_on_in_steps() -> None:
    """1,024 tokens and every 128 beyond."""
    offer = prices().offer[2]
    assert (offer.minimum_tokens, offer.step_tokens) == (1024, 128)
    read = retention_prices._readable(np.array([0, 1008, 1024, 1040, 1152]), offer)
    assert read.tolist() == [0, 0, 1024, 1024, 1152]
