"""Two real vLLMs behind the real SGLang router choose and hit as the simulated fleet does.

Two engines start here, which takes a minute of two cores: CI compares the router (test_routers.py)
and an engine (tests/validate/test_engine.py) each alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.live_fleet import (
    STEPS_OF_1_S,
    WRONG,
    RealFleet,
    group_times,
    groups_of,
    load,
    predict,
)
from kvscope.core.trace import Prompts

pytestmark = [pytest.mark.engine, pytest.mark.long]

REQUESTS = 60


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    """Yield two vLLMs."""
    pytest.importorskip("vllm", reason="no vLLM here: make test-engine")
    with RealFleet(tmp_path_factory.mktemp("model")) as running:
        yield running


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Prompts:
    """Return a small trace of chats."""
    return load(REQUESTS, tmp_path_factory.mktemp("trace"))


def test_known_loads(fleet: RealFleet, prompts: Prompts) -> None:
    """Every replica and every hit is the predicted one, and another threshold is found out."""
    groups = list(groups_of(prompts, 4))
    real = fleet.in_groups(prompts, groups).outcome
    ours = predict(prompts, group_times(groups), STEPS_OF_1_S)
    np.testing.assert_array_equal(ours.replica, real.replica)
    np.testing.assert_array_equal(ours.hit_tokens, real.hit_tokens)
    assert set(real.replica) == {0, 1}
    wrong = predict(prompts, group_times(groups), STEPS_OF_1_S, **WRONG)
    assert (wrong.replica != real.replica).sum() > 5


def test_one_after_the_other(fleet: RealFleet, prompts: Prompts) -> None:
    """The first replica of the router's order gets every request, and hits as predicted."""
    groups = [[request] for request in range(REQUESTS)]
    real = fleet.in_groups(prompts, groups).outcome
    ours = predict(prompts, group_times(groups), STEPS_OF_1_S)
    np.testing.assert_array_equal(ours.replica, real.replica)
    np.testing.assert_array_equal(ours.hit_tokens, real.hit_tokens)
    assert real.hit_tokens.any()
    assert not real.replica.any()
