"""Every policy's kernel, compiled and not, against the slow replay of tests/oracles/replay.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvscope.replay.replay as replaying
from kvscope.policies.base import Leaves, Policy
from tests.oracles.replay import replay
from tests.policies import drawn
from tests.policies.traffics import traffics

EVERY_CASE = pytest.mark.parametrize(("policy", "leaves"), drawn.CASES, ids=drawn.case_name)


@EVERY_CASE
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_equals_the_oracle(policy: type[Policy], leaves: Leaves, data: st.DataObject) -> None:
    """Hits of every request, evictions and the blocks that are left are the oracle's."""
    _compare(policy, leaves, data)


@EVERY_CASE
@settings(deadline=None, max_examples=6)
@given(st.data())
def test_uncompiled_equals_the_oracle(
    policy: type[Policy], leaves: Leaves, data: st.DataObject
) -> None:
    """The kernels' Python source, run as it is, does the same."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("lanes_kernel", "keys_kernel", "queues_kernel"):
            patched.setattr(replaying, name, _uncompiled(getattr(replaying, name)))
        python: Any = replaying.next_uses_kernel
        patched.setattr(replaying, "next_uses_kernel", python.py_func)
        _compare(policy, leaves, data)


def _uncompiled(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *of: make(*of).py_func


def _compare(policy: type[Policy], leaves: Leaves, data: st.DataObject) -> None:
    traffic = data.draw(traffics())
    bound = data.draw(drawn.policies(policy, leaves))
    capacity = data.draw(drawn.capacities(traffic))
    told = data.draw(drawn.tables(policy.name))
    given_ = drawn.setting(bound, capacity, told, mandatory=data.draw(st.booleans()))
    done, expected = drawn.replayed(traffic, bound, given_), replay(traffic, given_)
    assert done.hit_blocks.tolist() == expected.hit_blocks
    assert done.evictions == expected.evictions
    assert drawn.left(traffic, done) == expected.left
