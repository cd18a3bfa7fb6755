"""Trees in a file: what is read is what was written, and what is wrong is said in one line."""

from __future__ import annotations

import re
import tomllib
from decimal import Decimal

import numpy as np
import pytest

from kvscope.core.errors import InputError, UsageError
from kvscope.learning.chances import FEATURES
from kvscope.learning.ends.boosting import boosted
from kvscope.learning.ends.file import NOBODY, FittedEnds, fitted_ends_in
from kvscope.learning.fitted import check_fit, fit_in
from kvscope.policies.base import Policy
from kvscope.policies.gittins import Gittins
from kvscope.policies.tlru import TLru
from kvscope.policies.tlru_learned import TLruLearned
from tests.policies.drawn_trees import drawn_ends


def written(text: str) -> FittedEnds | None:
    """What is read of this."""
    return fitted_ends_in(tomllib.loads(text, parse_float=Decimal), "policy.toml")


@pytest.mark.parametrize("seed", range(5))
def test_what_is_read_is_what_was_written(seed: int) -> None:
    """Every number to its last bit, edges without end too."""
    one = drawn_ends(seed, threshold=0.1 * seed)
    assert written("\n".join(one.lines())) == one
    assert "inf" in "\n".join(one.lines())


def test_what_was_learned_is_read_too() -> None:
    """Trees from numpy's numbers, as a fit has them; and none at all."""
    rng = np.random.default_rng(1)
    known = rng.random((300, len(FEATURES)))
    trees = boosted(known, known[:, 0] + 0.3 * rng.random(300) > 0.7)
    for of in (trees, NOBODY):
        one = FittedEnds(of, 0.1, 600.0, 10_800.0, 300)
        assert written("\n".join(one.lines())) == one


def test_a_file_without_a_fit() -> None:
    """Has none."""
    assert written("schema = 1") is None


@pytest.mark.parametrize(
    ("pattern", "instead", "says"),
    [
        ("features = .*", 'features = ["turns"]', r"^policy.toml: ends.features: \['turns'\] are"),
        ("features = .*", "", r"ends.features: None are not .*; fit again with this one"),
        ("requests = ", "asked = ", r"ends.asked: unknown key"),
        ("window_s = .*", "", r"ends.window_s: None is not a number"),
        ("threshold = .*", "threshold = 1.5", r"ends.threshold: 1.5 is outside \[0, 1\]"),
        ("threshold = .*", "threshold = nan", r"ends.threshold: .* is not a number"),
        ("horizon_s = .*", "horizon_s = -1", r"ends.horizon_s: -1 is outside"),
        ("window_s = .*", "window_s = inf", r"ends.window_s: inf is outside"),
        ("start = .*", "start = inf", r"ends.start: inf has no end"),
        (r"trees = [\s\S]*", "trees = 3", r"ends.trees: not a list of trees"),
        (r"  \[\[\d, \d", "  [[8, 8", r"ends.trees\[0\]: 8 is no feature's number: 0 to 7"),
        (r"  \[\[\d", "  [[true", r"ends.trees\[0\]: True is no feature's number"),
        (r"  \[\[\d, ", "  [[", r"ends.trees\[0\]: .* is not three features"),
        (r"\], \[[\d.]+", "], [nan", r"ends.trees\[0\]: .* is not a number"),
        (r"  \[\[[^\n]*\n", "  5,\n", r"ends.trees\[0\]: 5 is not three features"),
        (r", [-\d.e]+\]\],", ", inf]],", r"ends.trees\[0\]: inf has no end; `kvscope fit"),
    ],
)
def test_mistakes_are_told(pattern: str, instead: str, says: str) -> None:
    """In one line, with the place."""
    text = re.sub(pattern, instead, "\n".join(drawn_ends(1).lines()), count=1)
    with pytest.raises(InputError, match=says) as told:
        written(text)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("policy", [TLru(), Gittins(), TLruLearned()], ids=lambda one: one.name)
def test_each_policy_has_what_is_its_own(policy: Policy) -> None:
    """Only a policy of ends reads such a table, and none runs in an engine without."""
    document = tomllib.loads("\n".join(drawn_ends(1).lines()), parse_float=Decimal)
    found = fit_in(document, policy, "policy.toml")
    assert (found is not None) == (policy.table == "ends")
    check_fit(policy, found, "policy.toml")
    if found is not None:
        with pytest.raises(UsageError, match=r"^policy.toml: tlru-learned goes by .*--export PATH"):
            check_fit(policy, None, "policy.toml")
