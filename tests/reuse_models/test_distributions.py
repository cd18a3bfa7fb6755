"""Every distribution: one battery for derivatives, bounds, habits, ties to lifelines."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.errors import InputError
from kvscope.reuse_models import likelihood
from kvscope.reuse_models.base import P, ReuseModel, _Shape
from kvscope.reuse_models.distributions import Exponential, Hyperexponential, Lognormal, Weibull
from kvscope.reuse_models.observations import Observations
from kvscope.reuse_models.selection import MODELS
from tests.reuse_models.drawn import TRUTH, observed

every_model = pytest.mark.parametrize("kind", MODELS)
waits = st.lists(
    st.tuples(st.floats(0.0, 1e6), st.booleans(), st.integers(1, 500)), min_size=1, max_size=60
)


@every_model
def test_derivatives_are_those_of_the_values(kind: type[ReuseModel]) -> None:
    """Scores agree with central differences of the log-likelihood, run by run."""
    of = observed(TRUTH[kind.name][0], 60, seed=3)
    shape = _Shape(kind())
    free = kind().start(of) + 0.1
    _, slope = likelihood.scores(shape, of, free)
    for at in range(len(free)):
        step = np.zeros(len(free))
        step[at] = 1e-6
        up, down = (likelihood.scores(shape, of, free + sign * step)[0] for sign in (1, -1))
        assert slope[at] == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-6)


@every_model
@settings(max_examples=40, deadline=None)
@given(rows=waits)
def test_any_data_give_a_distribution(
    kind: type[ReuseModel], rows: list[tuple[float, bool, int]]
) -> None:
    """However odd the data: finite, decreasing from 1, within its interval; or a plain refusal."""
    waited, reused, weight = (np.array(column) for column in zip(*rows, strict=True))
    of = Observations.of(waited, reused, weight)
    if not of.reused_runs:
        with pytest.raises(InputError, match="no block was reused"):
            kind().fit(of)
        return
    model = kind().fit(of)
    at = np.geomspace(1e-3, 1e7, 50)
    survival = model.survival(at)
    assert np.all(np.diff(survival) <= 1e-12)
    assert np.all((survival >= -1e-12) & (survival <= 1))
    assert np.all(model.hazard(np.geomspace(0.01, 1e4, 20)) >= 0)
    assert 0 <= model.reuse_probability_ <= 1
    assert np.isfinite([model.aic_, model.log_likelihood_, *model.params_.values()]).all()
    assert model.n_ == weight.sum()
    for name, value in {P: model.reuse_probability_, **model.params_}.items():
        interval = model.interval_[name]
        assert interval is None or interval[0] <= value * (1 + 1e-9)
        assert interval is None or value <= interval[1] * (1 + 1e-9)


@every_model
def test_the_habits_of_an_estimator(kind: type[ReuseModel]) -> None:
    """`fit` returns the model, and fitting again forgets what was learned."""
    draw = TRUTH[kind.name][0]
    first, second = observed(draw, 300, seed=1), observed(draw, 200, seed=2, p=0.3)
    model = kind()
    assert model.fit(first) is model
    model.fit(second)
    fresh = kind().fit(second)
    assert model.params_ == fresh.params_
    assert model.interval_ == fresh.interval_


@every_model
def test_order_and_splitting_change_nothing(kind: type[ReuseModel]) -> None:
    """Two runs of one cluster with half of the blocks each are that run."""
    of = observed(TRUTH[kind.name][0], 400, seed=5, blocks=8)
    twice = Observations.of(
        np.tile(of.waited_s[::-1], 2),
        np.tile(of.reused[::-1], 2),
        np.tile(of.weight[::-1], 2) / 2,
        np.tile(of.cluster[::-1], 2),
    )
    whole, halves = kind().fit(of), kind().fit(twice)
    assert halves.params_ == pytest.approx(whole.params_, rel=1e-5)
    assert halves.aic_ == pytest.approx(whole.aic_, rel=1e-9)
    for name, interval in whole.interval_.items():
        assert halves.interval_[name] == pytest.approx(interval, rel=1e-4)


@every_model
def test_merged_waits_tell_the_same(kind: type[ReuseModel]) -> None:
    """Waits within a hundredth of each other as one: parameters within a part in 10,000."""
    of = observed(TRUTH[kind.name][0], 3_000, seed=8)
    exact = likelihood.maximize(_Shape(kind()), of, kind().start(of), np.array(kind.bounds))
    model = kind()
    names = kind.parameters
    values = dict(zip(names, model.natural(model.ordered(exact.free)[1:]), strict=True))
    assert kind().fit(of).params_ == pytest.approx(values, rel=1e-4)


@pytest.mark.parametrize("kind", [Exponential, Weibull, Lognormal])
def test_without_a_defect_lifelines_agrees(kind: type[ReuseModel]) -> None:
    """Where every block is reused in the end, p is 1 and the rest is lifelines' estimate."""
    lifelines: Any = pytest.importorskip("lifelines")
    of = observed(TRUTH[kind.name][0], 4_000, seed=4, p=1.0, blocks=3)
    fitter = getattr(lifelines, f"{kind.name.capitalize().replace('normal', 'Normal')}Fitter")()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitter.fit(of.waited_s, event_observed=of.reused, weights=of.weight)
    theirs = {
        "exponential": lambda: {"rate_per_s": 1 / fitter.lambda_},
        "weibull": lambda: {"scale_s": fitter.lambda_, "shape": fitter.rho_},
        "lognormal": lambda: {"median_s": np.exp(fitter.mu_), "sigma": fitter.sigma_},
    }[kind.name]()
    model = kind().fit(of)
    assert model.reuse_probability_ > 0.995
    assert model.params_ == pytest.approx(theirs, rel=0.01)


def test_with_a_defect_lifelines_agrees() -> None:
    """lifelines' mixture cure model over a Weibull is S(t) = c + (1 - c) exp(-(t / s)^k)."""
    lifelines: Any = pytest.importorskip("lifelines")
    of = observed(TRUTH["weibull"][0], 3_000, seed=4)
    fitter = lifelines.MixtureCureFitter(base_fitter=lifelines.WeibullFitter())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitter.fit(of.waited_s, event_observed=of.reused)
    model = Weibull().fit(of)
    assert model.reuse_probability_ == pytest.approx(1 - fitter.cured_fraction_, rel=1e-3)
    theirs = {"scale_s": fitter.lambda_, "shape": fitter.rho_}
    assert model.params_ == pytest.approx(theirs, rel=1e-3)


def test_the_nested_models_agree() -> None:
    """A Weibull of shape 1 and a hyperexponential of one rate are the exponential."""
    of = observed(TRUTH["exponential"][0], 20_000, seed=6)
    plain, weibull = Exponential().fit(of), Weibull().fit(of)
    assert weibull.params_["shape"] == pytest.approx(1, abs=0.03)
    assert weibull.log_likelihood_ >= plain.log_likelihood_ - 1e-6
    assert Hyperexponential().fit(of).log_likelihood_ >= plain.log_likelihood_ - 1e-6
    assert weibull.reuse_probability_ == pytest.approx(plain.reuse_probability_, abs=0.002)
