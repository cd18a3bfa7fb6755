"""What foreseen ends are worth: by the replays themselves, with an interval."""

from __future__ import annotations

import numpy as np
import pytest

from kvscope.core.hits import standard
from kvscope.learning.ends.offline import EndsOffline
from kvscope.learning.next_prompts.offline import conversation_parameters
from kvscope.policies.registry import by_name
from kvscope.replay.replay import NO_TABLES, replay
from kvscope.replay.traffic import traffic
from kvscope.tuning.bootstrap import Resampled
from kvscope.tuning.end_gain import LEVELS, WARMUP, _share, fit_ends
from tests.golden.samples import sample


def test_gains_are_those_of_replays() -> None:
    """TEL in tokens beyond xi of each policy, after the first 40 %; the share follows."""
    prompts = sample("to-c")
    found = fit_ends(prompts, xi_tokens=4096.0)
    assert [one.level for one in found.gains] == list(LEVELS)
    one = found.gains[0]
    of = traffic(prompts, standard())
    first = int(len(of.leaf) * WARMUP)
    for name in ("tlru", "tlru-learned", "tlru-end"):
        values = {"xi_tokens": 4096.0}
        values["next_prompt_tokens"] = conversation_parameters(of)["next_prompt_tokens"]
        policy = by_name(name)(values)
        tables = EndsOffline().tables(of) if policy.learner else NO_TABLES
        done = replay(of, policy, one.capacity_blocks, tables=tables)
        left = of.input_tokens - done.hit_blocks.astype(np.int64) * of.block_size
        assert one.tel_tokens[name] == np.maximum(left - 4096, 0)[first:].sum()
    way = one.tel_tokens["tlru"] - one.tel_tokens["tlru-end"]
    assert one.share == pytest.approx(
        (one.tel_tokens["tlru"] - one.tel_tokens["tlru-learned"]) / way
    )
    assert one.low is not None
    assert one.high is not None
    assert one.low <= one.share <= one.high


def test_shares_of_draws() -> None:
    """Half of the way in every draw is so surely; without any way there is no share."""
    figures = np.array([[10.0], [20.0], [8.0]])
    told, drawn = figures[0], np.stack((figures[1:], figures[1:]))
    clusters = np.full((2, 1), 20.0)
    plain, goal, own = (Resampled(told * by, drawn * by, clusters) for by in (1.0, 0.5, 0.75))
    assert _share(plain, goal, own) == pytest.approx((0.5, 0.5, 0.5))
    assert _share(plain, plain, own) is None


def test_where_ends_are_worth_nothing_there_is_no_share() -> None:
    """With a xi beyond every prompt nothing exceeds it."""
    found = fit_ends(sample("birth-death"), xi_tokens=1e6)
    assert [one.share for one in found.gains] == [None] * len(LEVELS)
    assert all(not any(one.tel_tokens.values()) for one in found.gains)
