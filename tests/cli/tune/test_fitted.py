"""What `kvscope tune` writes beside a policy with a table: a fit to all of the trace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvscope.core.hits import Outputs, standard
from kvscope.core.runs import Tenant
from kvscope.learning.offline.learners import fit_for
from kvscope.learning.returns.file import FittedReturns
from kvscope.policies.base import Policy
from kvscope.policies.gittins import Gittins
from kvscope.policies.tlru import TLru
from kvscope.replay.derived_traces import isolate
from kvscope.replay.traffic import traffic
from kvscope.usecases.tune.recommend import engine_fit
from tests.golden.samples import sample

BLOCKS = 1000


@pytest.mark.parametrize("policy", [TLru(), Gittins()], ids=lambda one: one.name)
def test_a_fit_for_the_recommended_capacity(policy: Policy) -> None:
    """As `fit` has it; a table that an engine can fit anew says that it is to."""
    prompts = sample("to-c")
    recommended = SimpleNamespace(policy=policy, capacity_blocks=BLOCKS)
    setting = SimpleNamespace(isolate=None, definition=standard())
    tuned: Any = SimpleNamespace(
        recommended=recommended, tuning=SimpleNamespace(setting=setting), prompts=prompts
    )
    found = engine_fit(tuned)
    expected = fit_for(traffic(prompts, standard()), policy, BLOCKS)
    if isinstance(found, FittedReturns):
        assert found.refits
        assert isinstance(expected, FittedReturns)
        assert found.index.tolist() == expected.index.tolist()
    else:
        assert found == expected
    assert (found is None) == (policy.name == "tlru")


@pytest.mark.parametrize(("by", "outputs"), [("conversation", "carried"), (None, "ignored")])
def test_a_fit_to_what_was_replayed(by: Tenant | None, outputs: Outputs) -> None:
    """Isolated, or without outputs, as the recommendation was judged."""
    prompts, policy = sample("agent"), Gittins()
    recommended = SimpleNamespace(policy=policy, capacity_blocks=BLOCKS)
    setting = SimpleNamespace(isolate=by, definition=standard(outputs=outputs))
    tuned: Any = SimpleNamespace(
        recommended=recommended, tuning=SimpleNamespace(setting=setting), prompts=prompts
    )
    fitted = engine_fit(tuned)
    assert isinstance(fitted, FittedReturns)
    replayed = traffic(isolate(prompts, by) if by else prompts, setting.definition)
    found, whole = fitted.index, fit_for(traffic(prompts, standard()), policy, BLOCKS)
    expected = fit_for(replayed, policy, BLOCKS)
    assert isinstance(expected, FittedReturns)
    assert isinstance(whole, FittedReturns)
    assert found.tolist() == expected.index.tolist()
    assert found.tolist() != whole.index.tolist()
