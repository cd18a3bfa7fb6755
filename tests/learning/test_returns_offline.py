"""What a trace tells `gittins`: against counts block by block, and from the past alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.hits import standard
from kvscope.learning.offline.refits import WindowCells, refits_of
from kvscope.learning.returns.formulas import CLASSES, ages_of, began_s
from kvscope.learning.returns.offline import ReturnsOffline, count_returns, request_features
from kvscope.policies.gittins import AGES, WINDOW_REFITS, Gittins
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.replay import replay
from kvscope.replay.traffic import Traffic, traffic, uncut
from kvscope.vllm_sim import EngineSettings, StepCost
from kvscope.vllm_sim.state import idle_machine
from tests.golden.samples import sample
from tests.oracles.replay import left_behind
from tests.policies.traffics import traffics

REFIT_S, WINDOW = 1.5, WINDOW_REFITS


@settings(deadline=None, max_examples=40)
@given(traffics(), st.randoms(use_true_random=False))
def test_counts_are_those_of_single_blocks(of: Traffic, draw: object) -> None:
    """Every refit, every touch in its window: how long until the next, or until the refit."""
    assert hasattr(draw, "randrange")
    kind = np.array([draw.randrange(CLASSES) for _ in of.leaf], dtype=np.int32)
    refits = refits_of(of, REFIT_S)
    found = count_returns(of, last_touch_segments(of), WindowCells(refits, kind, CLASSES), REFIT_S)
    blocks = left_behind(of)
    for row, number in enumerate(refits.number.tolist()):
        returned, waiting, seconds = np.zeros((3, CLASSES, AGES))
        inside = [r for r in range(len(of.leaf)) if number - WINDOW <= refits.bin[r] < number]
        for at in inside:
            for block in blocks[at]:
                later = [r for r in range(at + 1, len(of.leaf)) if block in blocks[r]]
                came = bool(later) and refits.bin[later[0]] < number
                end_s = of.arrival_s[later[0]] if came else number * REFIT_S
                wait_s = np.array(end_s - of.arrival_s[at])
                age = int(ages_of(wait_s))
                (returned if came else waiting)[kind[at], age] += 1
                seconds[kind[at], age] += wait_s - began_s(np.array(age))
        assert found.requests[row] == len(inside)
        assert found.returned[row] == pytest.approx(returned)
        assert found.waiting[row] == pytest.approx(waiting)
        assert found.seconds[row] == pytest.approx(seconds, abs=1e-9)


def chain(lengths: list[int], arrival_s: list[float], output: int = 0) -> Traffic:
    """Return requests for the first blocks of one chain, of one token each."""
    requests, nothing = len(lengths), np.zeros(len(lengths), dtype=np.int32)
    length = np.array(lengths, dtype=np.int32)
    return Traffic(
        block_size=1,
        block_parent=np.array([0, *range(max(lengths))], dtype=np.int32),
        leaf=length,
        length=length,
        look=length,
        anonymous=nothing,
        arrival_s=np.array(arrival_s),
        input_tokens=length,
        history_tokens=length.astype(np.int64) + output,
        category=nothing,
        parent=np.full(requests, -1, dtype=np.int32),
        next_prompt_tokens=nothing.astype(np.int64),
        cuts=uncut(len(length)),
    )


def test_features_are_what_was_known_of_the_prompt() -> None:
    """A longer turn; a repeat; one that leaves it half-way; a repeat of a turn before that."""
    of = chain([4, 8, 8, 4, 8], [0.0, 5.0, 55.0, 300.0, 310.0], output=300)
    found = request_features(of, last_touch_segments(of), 1_000.0)
    assert found.new_tokens.tolist() == [4, 4, 0, 0, 0]
    assert found.turns.tolist() == [0, 1, 2, 0, 3]
    assert found.since_s.tolist() == [0.0, 5.0, 50.0, 245.0, 255.0]
    assert found.output_tokens.tolist() == [300] * 5
    short = request_features(of, last_touch_segments(of), 100.0)
    assert short.new_tokens.tolist() == [4, 4, 0, 4, 4]
    assert short.turns.tolist() == [0, 1, 2, 0, 1]
    assert short.since_s.tolist() == [0.0, 5.0, 50.0, 0.0, 10.0]


def test_a_turn_may_leave_the_output_before_it_out() -> None:
    """To go on from a request is to begin with all of its prompt, whatever of its output."""
    of = chain([4, 3, 4, 2], [0.0, 1.0, 2.0, 3.0])._replace(
        input_tokens=np.array([2, 3, 4, 2], dtype=np.int32)
    )
    assert request_features(of, last_touch_segments(of), 100.0).turns.tolist() == [0, 1, 1, 0]


def test_the_policy_is_replayed_by_its_own_classes() -> None:
    """Tables carry a class a request; the traffic's categories are not asked."""
    of = chain([4, 8, 8, 4, 8], [0.0, 5.0, 55.0, 300.0, 310.0])
    tables = ReturnsOffline().tables(of, 60.0)
    assert tables.classes is not None
    assert tables.values.shape[1:] == (2 * CLASSES, AGES)
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
    assert int(machine.state[0].lanes) == 2 * CLASSES
