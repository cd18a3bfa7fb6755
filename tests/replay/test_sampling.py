"""Sampling: subtrees stay whole, parts are disjoint, and estimates keep what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from benchmarks.sampling import whole_sample
from kvscope.core.errors import UsageError
from kvscope.core.hits import LIBCACHESIM, HitDefinition, Weight, standard
from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import Request
from kvscope.replay.curve import lru_curve
from kvscope.replay.misses import lru_hit_blocks
from kvscope.replay.sampling import (
    Anchor,
    DrawnTrace,
    Estimate,
    Sample,
    _standard_error,
    anchored,
    sampled,
    with_drift,
)
from kvscope.replay.stack_distances import lru_distances
from tests import small_traces

SIZE = 4  # tokens
IGNORED = standard(outputs="ignored")


def busy(conversations: int, seed: int = 0) -> Prompts:
    """Conversations of 1 to 6 turns below one system prompt of 3 blocks, mixed at random."""
    draw = np.random.default_rng(seed)
    trace = []
    for conversation in range(conversations):
        at = draw.uniform(0, conversations)
        history = [0, 1, 2]
        for _ in range(draw.integers(1, 7)):
            history = history + [10 * conversation + 5] * int(draw.integers(1, 4))
            trace.append(
                Request(
                    arrival_s=float(at),
                    input_tokens=len(history) * SIZE + 1,
                    output_tokens=0,
                    hash_ids=[*history, -len(trace) - 1],  # the last one is partial
                )
            )
            at += draw.exponential(conversations / 6)
    trace.sort(key=lambda one: one.arrival_s or 0.0)
    return small_traces.prompts(small_traces.built(trace, SIZE))


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    """About 2,100 requests of 600 conversations."""
    return busy(600)


def lru_hits(prompts: Prompts, capacity: int) -> NDArray[np.int32]:
    """Return the blocks that each request hits under LRU."""
    return lru_hit_blocks(lru_distances(prompts, IGNORED), len(prompts.leaf), capacity)


def drawn(prompts: Prompts, rate: float, seed: int = 0) -> Sample:
    """Return a share of the trace; another seed draws other subtrees."""
    return sampled(whole_sample(prompts, seed), rate)


def anchor(prompts: Prompts, sample: Sample, definition: HitDefinition = IGNORED) -> Anchor:
    """Return the anchor of a sample of these prompts."""
    return anchored(DrawnTrace(sample, lru_curve(prompts, definition)), definition)


def test_parts_are_disjoint_and_the_same_each_time(prompts: Prompts) -> None:
    """Four quarters are the trace, and a quarter of it has its blocks; a part of a part is less."""
    whole = whole_sample(prompts)
    quarters = [sampled(whole, 0.25, part) for part in range(4)]
    together = np.concatenate([quarter.requests for quarter in quarters])
    assert sorted(together) == list(range(len(prompts.leaf)))
    assert np.array_equal(quarters[1].requests, sampled(whole, 0.25, 1).requests)
    for quarter in quarters:
        assert len(quarter.requests) == pytest.approx(0.25 * len(prompts.leaf), rel=0.2)
        blocks = len(quarter.prompts.block_parent)
        assert blocks == pytest.approx(0.25 * len(prompts.block_parent), rel=0.2)
    tenths = [sampled(quarters[0], 0.25 / 3, part).requests for part in range(3)]
    assert sorted(np.concatenate(tenths)) == quarters[0].requests.tolist()


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from([0.2, 0.5, 0.9]))
def test_who_shares_a_block_below_the_heads_stays_together(
    data: st.DataObject, rate: float
) -> None:
    """A block that at most four requests share is in the sample with all of them or with none."""
    trace = data.draw(small_traces.requests(2))
    prompts = small_traces.prompts(small_traces.built(trace, 2))
    try:
        chosen = set(drawn(prompts, rate, data.draw(st.integers(0, 9))).requests.tolist())
    except UsageError as error:
        assert "nothing is left" in str(error)  # noqa: PT017  (a tiny trace may well lose all)
        return
    touching: dict[int, set[int]] = {}
    for request, leaf in enumerate(prompts.leaf):
        block = int(leaf)
        while block:
            touching.setdefault(block, set()).add(request)
            block = int(prompts.block_parent[block])
    for requests in touching.values():
        if len(requests) <= 4:
            assert requests <= chosen or not requests & chosen


def test_the_shared_head_does_not_hold_everything(prompts: Prompts) -> None:
    """All conversations share a system prompt, and yet a tenth of them is a tenth."""
    tenth = drawn(prompts, 0.1)
    assert 0.05 < len(tenth.requests) / len(prompts.leaf) < 0.15
    assert len(np.unique(tenth.group)) > 30
    again = prompts.conversation[tenth.requests]
    assert set(np.flatnonzero(np.isin(prompts.conversation, again))) == set(tenth.requests)


@pytest.mark.parametrize("weight", ["token", "block", "request"])
@pytest.mark.parametrize("warmup", [0.0, 0.4])
def test_a_miniature_is_near_and_says_how_near(
    prompts: Prompts, weight: Weight, warmup: float
) -> None:
    """A policy that has 0.7 of LRU's room, from a third of the trace: right 19 times of 20."""
    capacity, lessened = 800, 560
    definition = replace(IGNORED, weight=weight, warmup=warmup)
    curve = lru_curve(prompts, definition)
    exact = float(curve.rate(lessened))
    inside = []
    for seed in range(20):
        sample = drawn(prompts, 0.3, seed)
        hits = lru_hits(sample.prompts, sample.capacity(lessened))
        estimate = anchored(DrawnTrace(sample, curve), definition).estimate(hits, capacity)
        assert estimate.error < 0.2
        inside.append(abs(estimate.rate - exact) <= estimate.error)
    assert sum(inside) >= 19


def test_the_error_of_lru_is_what_its_miniature_gets_wrong(prompts: Prompts) -> None:
    """Twice the most, between half and twice the capacity; requests before the window are none."""
    capacity, definition = 800, replace(IGNORED, warmup=0.4)
    curve, sample = lru_curve(prompts, definition), drawn(prompts, 0.3)
    counted = sample.requests >= int(0.4 * len(prompts.leaf))
    tokens = sample.prompts.input_tokens[counted].sum()
    wrong = []
    for factor in (0.5, 0.7, 1.0, 1.4, 2.0):
        around = round(capacity * factor)
        hits = lru_hits(sample.prompts, sample.capacity(around))[counted]
        wrong.append(abs(SIZE * hits.sum() / tokens - float(curve.rate(around))))
    assert max(wrong) > wrong[2]
    hits = lru_hits(sample.prompts, sample.capacity(capacity))
    estimate = anchored(DrawnTrace(sample, curve), definition).estimate(hits, capacity)
    assert estimate.rate == pytest.approx(float(curve.rate(capacity)))
    assert estimate.error == pytest.approx(2 * max(wrong))


def test_the_error_is_that_of_a_sum_over_subtrees() -> None:
    """By hand: residuals of 2 and -2 in two subtrees of two requests, a quarter of all."""
    found = _standard_error(np.array([7, 9, 7, 9]), np.array([3.0, -1.0, -1.0, -1.0]), 0.25)
    assert found == pytest.approx(math.sqrt(0.75 * 2 / 1 * (2**2 + 2**2)))
    assert _standard_error(np.array([7, 7]), np.array([1.0, -1.0]), 0.5) == math.inf


def test_a_cache_of_a_few_requests_says_nothing(prompts: Prompts) -> None:
    """Scaled to less than 20 requests it is no miniature."""
    request_blocks = float(np.mean(prompts.cached_blocks))
    few = round(15 * request_blocks / 0.3)
    third = drawn(prompts, 0.3)
    hits = lru_hits(third.prompts, third.capacity(few))
    assert anchor(prompts, third).estimate(hits, few).error == 1.0


def test_a_flat_cache_is_not_sampled(prompts: Prompts) -> None:
    """Its blocks are objects of their own, and subtrees are none of it."""
    with pytest.raises(UsageError, match=r"libcachesim: .*replay the whole trace"):
        anchor(prompts, drawn(prompts, 0.5), LIBCACHESIM)


def test_an_empty_sample_is_refused(prompts: Prompts) -> None:
    """No subtree of the trace is drawn at so low a rate."""
    with pytest.raises(UsageError, match=r"nothing is left of .* sample at a higher rate"):
        drawn(prompts, 1e-9)


def test_an_estimate_that_drifts_with_scale_is_less_sure() -> None:
    """Thirds of a sample of 1/3 say 0.5, 0.6 and 0.7: 0.1 away from 0.7, plus twice the noise."""
    parts = [Estimate(rate, 0.01) for rate in (0.5, 0.6, 0.7)]
    noise = 0.1 / math.sqrt(3)
    once = with_drift(Estimate(0.7, 0.02), 1 / 3, parts)
    assert once == Estimate(0.7, pytest.approx(0.02 + 0.1 + 2 * noise))
    twice = with_drift(Estimate(0.7, 0.02), 1 / 9, parts)
    assert twice.error == pytest.approx(0.02 + 2 * (0.1 + 2 * noise))
    steady = with_drift(Estimate(0.7, 0.02), 1 / 9, [Estimate(0.7, 0.01)] * 3)
    assert steady.error == pytest.approx(0.02)


def test_parts_of_which_nothing_can_be_said_say_nothing() -> None:
    """A third of the sample in a cache of a few requests leaves the drift unknown."""
    parts = [Estimate(0.5, 0.01), Estimate(0.5, 1.0), Estimate(0.5, 0.01)]
    assert with_drift(Estimate(0.5, 0.02), 0.3, parts).error == 1.0
