"""Fleets that need no fleet: traces split by routers that see the order alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.errors import UsageError
from kvscope.core.hits import standard
from kvscope.fleet.replay import asked, replay_fleet
from kvscope.fleet.split import assignment, fleet_curve
from kvscope.policies.lru import Lru
from kvscope.replay.curve import lru_curve
from kvscope.replay.traffic import traffic
from kvscope.routers.balancers import LeastRequests
from kvscope.routers.base import Router
from kvscope.routers.registry import ROUTERS
from tests.fleet.test_closed_loop import chat
from tests.fleet.test_replay import PROFILE
from tests.small_traces import SIZES, built, prompts, requests

BY_ORDER = [kind for kind in ROUTERS if kind.sees == "order"]


@pytest.mark.parametrize("kind", BY_ORDER, ids=lambda kind: kind.name)
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_the_curve_is_the_fleet_at_every_capacity(kind: type[Router], data: st.DataObject) -> None:
    size, replicas = data.draw(SIZES), data.draw(st.integers(1, 4))
    trace = prompts(built(data.draw(requests(size, chats=True)), size))
    steps, routed = traffic(trace, standard()), asked(trace)
    replica = assignment(steps, routed, kind(), replicas, seed=3)
    curve = fleet_curve(trace, standard(), replica)
    for capacity in range(int(curve.knots[-1]) + 2):
        done = replay_fleet(steps, routed, PROFILE, Lru(), kind(), replicas, capacity, seed=3)
        assert done.replica.tolist() == replica.tolist()
        hit = np.minimum(done.hit_blocks.astype(np.int64) * size, trace.input_tokens).sum()
        assert curve.rate(capacity) == pytest.approx(hit / trace.input_tokens.sum())
    if replicas == 1:
        alone = lru_curve(trace, standard())
        assert (curve.knots.tolist(), curve.hits.tolist()) == (
            alone.knots.tolist(),
            alone.hits.tolist(),
        )


def test_routers_that_see_more_do_not_split() -> None:
    trace = chat()
    with pytest.raises(UsageError, match="sees more than the order"):
        assignment(traffic(trace, standard()), asked(trace), LeastRequests(), 2)
