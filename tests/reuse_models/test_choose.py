"""Which model is chosen, and the words for it."""

from __future__ import annotations

import numpy as np
import pytest

from kvscope.reuse_models.observations import Observations
from kvscope.reuse_models.selection import CLOSE, choose, enough, tolerance
from tests.reuse_models.drawn import TRUTH, observed


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("exponential", "exponential fits"),
        ("hyperexponential", "too heavy a tail: use hyperexponential"),
        ("weibull", "too heavy a tail: use weibull"),
        ("lognormal", "not exponential: use lognormal"),
    ],
)
def test_the_true_model_is_chosen(name: str, verdict: str) -> None:
    """From 20,000 runs of each."""
    choice = choose(observed(TRUTH[name][0], 20_000, seed=2))
    assert choice.fits
    assert choice.chosen.name == name
    if name == "lognormal":
        assert choice.verdict.endswith("use lognormal")
    else:
        assert choice.verdict == verdict


def test_waits_that_are_too_much_alike() -> None:
    """Clockwork, give or take: no heavy tail, and said so."""
    choice = choose(observed(lambda rng, n: 60.0 * rng.weibull(3.0, n), 5_000, seed=1))
    assert choice.verdict == "waits too much alike: use weibull"


def test_no_model_fits_two_clocks() -> None:
    """Half of the reuse after exactly 1 s, half after exactly 100 s: the distance is said."""
    choice = choose(
        observed(lambda rng, n: np.where(rng.random(n) < 0.5, 1.0, 100.0), 5_000, seed=1)
    )
    assert not choice.fits
    assert "misses" in choice.verdict


def test_what_cannot_be_seen_does_not_speak_against_the_exponential() -> None:
    """A slight Weibull fits as an exponential if runs are few, not if they are many."""
    few, many = (
        choose(observed(lambda rng, n: 60 * rng.weibull(0.75, n), n, seed=4)) for n in (90, 20_000)
    )
    assert few.verdict == "exponential fits (few gaps)"
    assert many.verdict == "too heavy a tail: use weibull"


def test_enough_means_several_conversations() -> None:
    """A hundred runs of a single conversation are one observation."""
    of = observed(TRUTH["exponential"][0], 200, seed=1)
    assert enough(of)
    assert not enough(observed(TRUTH["exponential"][0], 20, seed=1))
    alone = Observations.of(of.waited_s, of.reused, of.weight, np.zeros(200, dtype=np.int64))
    assert not enough(alone)
    assert tolerance(alone) > 1
    assert tolerance(observed(TRUTH["exponential"][0], 9_000, seed=1)) == CLOSE
