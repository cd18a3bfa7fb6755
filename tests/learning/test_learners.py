"""A policy finds both halves of its learner by the folder that it names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvscope import learning
from kvscope.learning.learners import OnlineLearner, learner_class, reads_fit
from kvscope.learning.offline.learners import OfflineLearner, offline_learner
from kvscope.policies.base import Policy
from kvscope.policies.registry import POLICIES

LEARNING = [policy for policy in POLICIES if policy.learner is not None]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_both_halves_are_found(policy: type[Policy]) -> None:
    """The offline half of every policy with a table; the online half where the plugin runs it."""
    online, offline = learner_class(policy), offline_learner(policy)
    assert (offline is not None) == (policy.learner is not None)
    assert offline is None or isinstance(offline, OfflineLearner)
    assert (online is not None) == (policy.learner is not None and policy.runs_in_plugin())
    assert online is None or issubclass(online, OnlineLearner)


def test_each_folder_is_some_policys() -> None:
    """No learner is left without a policy."""
    root = Path(learning.__file__).parent
    folders = {path.parent.name for path in root.glob("*/offline.py")}
    assert folders == {policy.learner for policy in LEARNING}


def test_fits_in_files() -> None:
    """`gittins` may take one along."""
    assert {policy.name for policy in POLICIES if reads_fit(policy)} == {"gittins"}


def test_the_online_halves_are_light() -> None:
    """They run in an engine: no store, no fitting, no compiler."""
    script = """
import sys
from kvscope.learning.learners import learner_class
from kvscope.policies.registry import POLICIES
for policy in POLICIES:
    learner_class(policy)
heavy = {"polars", "duckdb", "numba", "scipy", "kvscope.replay", "kvscope.learning.offline"}
print(sorted(heavy & set(sys.modules)))
"""
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
