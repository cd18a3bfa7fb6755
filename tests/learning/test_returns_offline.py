"""What a trace tells `gittins`: against counts block by block, and from the past alone."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.hits import standard
from kvscope.learning.offline.features import prefix_features
from kvscope.learning.returns.formulas import GAPS_S, PARTS, ROWS, STEPS, by_class
from kvscope.learning.returns.offline import (
    Returns,
    ReturnsOffline,
    Touches,
    class_tables,
    fit_windows,
    path_cuts,
    request_features,
    touch_parts,
)
from kvscope.policies.gittins import AGES, LEVELS, Gittins
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.replay import Tables, replay
from kvscope.replay.traffic import Traffic, traffic
from kvscope.vllm_sim import EngineSettings, StepCost
from kvscope.vllm_sim.state import idle_machine
from tests.golden.samples import sample
from tests.oracles import returns as oracle
from tests.oracles.replay import left_behind
from tests.policies.traffics import chain, traffics


@st.composite
def touch_streams(draw: st.DrawFn) -> tuple[Touches, Returns]:
    """Draw touches, some at the same time, in one bin or in far ones; and their returns."""
    steps_s = (0.0, 0.0, 0.25, 1.0, 1.5, 10.0, 60.0)
    gaps_s = draw(st.lists(st.sampled_from(steps_s), min_size=1, max_size=15))
    arrival_s = np.cumsum(gaps_s)
    blocks = np.array([draw(st.integers(0, 9)) for _ in gaps_s])
    left, rows = blocks.copy(), list[tuple[int, int, int]]()
    for number in range(1, len(gaps_s)):
        touch = draw(st.integers(0, number - 1))
        count = draw(st.integers(0, int(left[touch])))
        left[touch] -= count
        rows.append((touch, number, count))
    touch, by, count = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    bins = np.cumsum([draw(st.sampled_from((0, 0, 1, 7, 40))) for _ in gaps_s])
    return (
        Touches(arrival_s, bins, blocks),
        Returns(touch, arrival_s[by], bins[by], count),
    )


@settings(deadline=None, max_examples=30)
@given(touch_streams(), st.randoms(use_true_random=False))
def test_a_refit_fits_what_blocks_did(stream: tuple[Touches, Returns], draw: object) -> None:
    """Every refit, every touch in its window: how long until the return, or until the refit."""
    assert hasattr(draw, "randrange")
    touches, returns = stream
    refits = np.unique(np.append(touches.bin, touches.bin[-1] + np.array([1, 5, 36, 37])))
    at = np.minimum(np.searchsorted(touches.bin, refits), len(touches.bin) - 1)
    refits_s = touches.arrival_s[at] + (refits - touches.bin[at]) * 1.5
    kinds = np.array([draw.randrange(ROWS) for _ in touches.blocks], dtype=np.int32)
    values, rows = fit_windows(touches, returns, refits, refits_s, kinds)
    order = by_class(np.arange(ROWS, dtype=np.int32))
    for row, refit, refit_s in zip(rows, refits, refits_s, strict=True):
        counts = oracle.count_window(touches, kinds, returns, refit, refit_s, ROWS)
        expected = oracle.index_of(counts, STEPS)
        np.testing.assert_allclose(values[row], expected[order], rtol=1e-11)


@settings(deadline=None, max_examples=40)
@given(traffics(), st.sampled_from((1, 4, 10**9)))
def test_parts_are_touched_and_return(of: Traffic, memory: int) -> None:
    """Each block is in the part of its wait; it returns to the part that it was in before."""
    segments = last_touch_segments(of)
    cuts = path_cuts(prefix_features(of, segments, memory))
    touched = touch_parts(of, segments, np.arange(len(of.leaf)), cuts)
    blocks, full = left_behind(of), of.input_tokens // of.block_size
    part_of, counts, again = {}, Counter[tuple[int, int]](), Counter[tuple[int, int, float]]()
    for at, left in enumerate(blocks):
        for depth, block in enumerate(left):
            before = max((r for r in range(at) if block in blocks[r]), default=-1)
            wait_s = float(of.arrival_s[at] - of.arrival_s[before]) if before >= 0 else np.inf
            known = depth < full[at] and before >= 0 and at - before <= memory
            part = bisect_right(GAPS_S, wait_s) if known else PARTS - 1
            part_of[at, block] = part
            counts[at, part] += 1
            if before >= 0:
                again[before, part_of[before, block], float(of.arrival_s[at])] += 1
    touches, returns = touched.touches, touched.returns
    keys = list(zip(touched.request.tolist(), touched.part.tolist(), strict=True))
    assert dict(zip(keys, touches.blocks.tolist(), strict=True)) == counts
    assert touches.arrival_s.tolist() == of.arrival_s[touched.request].tolist()
    returned = Counter[tuple[int, int, float]]()
    for touch, at_s, count in zip(
        returns.touch.tolist(), returns.arrival_s.tolist(), returns.blocks.tolist(), strict=True
    ):
        returned[*keys[touch], at_s] += count
    assert returned == again
    assert np.all(np.diff(returns.arrival_s) >= 0)


def test_the_fit_grows_with_touches_not_with_time() -> None:
    """Between far touches nothing is counted, and classes without touches have no rows."""
    number = np.arange(500)
    kinds = (number % ROWS).astype(np.int32)
    for refits_between in (40, 4_000):
        bins = number * refits_between
        touches = Touches(bins + 0.5, bins, np.full(len(number), 3))
        returns = Returns(number[:-1], touches.arrival_s[1:], bins[1:], touches.blocks[1:])
        values, rows = fit_windows(touches, returns, bins + 1, bins + 1.0, kinds)
        assert rows.shape == (len(number), ROWS)
        assert len(values) == len(number) * (1 + len(STEPS))
        assert values.base is None


def test_features_are_what_was_known_of_the_prompt() -> None:
    """A longer turn; a repeat; one that leaves it half-way; a repeat of a turn before that."""
    of = chain([4, 8, 8, 4, 8], [0.0, 5.0, 55.0, 300.0, 310.0], output=300)
    segments = last_touch_segments(of)
    found = request_features(of, prefix_features(of, segments, 1_000))
    assert found.new_tokens.tolist() == [4, 4, 0, 0, 0]
    assert found.turns.tolist() == [0, 1, 2, 0, 3]
    short = request_features(of, prefix_features(of, segments, 1))
    assert short.new_tokens.tolist() == [4, 4, 0, 0, 4]
    assert short.turns.tolist() == [0, 1, 2, 0, 1]


def test_a_turn_may_leave_the_output_before_it_out() -> None:
    """To go on from a request is to begin with all of its prompt, whatever of its output."""
    of = chain([4, 3, 4, 2], [0.0, 1.0, 2.0, 3.0])._replace(
        input_tokens=np.array([2, 3, 4, 2], dtype=np.int32)
    )
    prefixes = prefix_features(of, last_touch_segments(of), 100)
    assert request_features(of, prefixes).turns.tolist() == [0, 1, 1, 0]


def test_the_policy_is_replayed_by_its_own_classes() -> None:
    """Tables carry a class a request; the traffic's categories are not asked."""
    of = chain([4, 8, 8, 4, 8], [0.0, 5.0, 55.0, 300.0, 310.0])
    tables = ReturnsOffline().tables(of, 60.0)
    assert tables.classes is not None
    assert tables.at(0).shape == (LEVELS * ROWS, AGES)
    other = of._replace(category=np.full(5, 10_000, dtype=np.int32))
    one, two = (replay(each, Gittins(), 6, tables=tables) for each in (of, other))
    assert one.hit_blocks.tolist() == two.hit_blocks.tolist()
    assert tables.classified(Gittins(), other).category.tolist() == tables.classes.tolist()


def test_an_engine_sees_the_classes_too() -> None:
    """Its requests carry the classes of the tables, not the categories of the trace."""
    prompts = sample("agent")
    tables = ReturnsOffline().tables(traffic(prompts, standard()))
    settings_, cost = EngineSettings(4_000), StepCost(base_s=0.01)
    machine = idle_machine(prompts, Gittins(), settings_, cost, tables=tables)
    chosen = tables.chosen(Gittins(), settings_.usable_blocks)
    assert chosen.classes is not None
    assert machine.requests.category.tolist() == chosen.classes.tolist()
    assert int(machine.state[0].lanes) == LEVELS * ROWS


def test_tables_that_share_rows_replay_as_if_each_had_its_own() -> None:
    """There are fewer than classes and refits have together."""
    of = traffic(sample("agent"), standard())
    shared = class_tables(of, 60.0)
    assert len(shared.values) < shared.rows.size // 2
    apart = Tables.of(shared.since, shared.values[shared.rows], shared.classes, shared.cuts)
    both = (replay(of, Gittins(), 2_000, tables=tables) for tables in (shared, apart))
    shared_hits, own_hits = (done.hit_blocks.tolist() for done in both)
    assert shared_hits == own_hits
    assert any(shared_hits)
