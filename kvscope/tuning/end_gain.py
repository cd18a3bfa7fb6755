"""The gain of predicting the ends of conversations: learned T-LRU against plain and oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.latency.profile import PRESETS
from kvscope.learning.ends.offline import EndPredictor
from kvscope.learning.ends.prediction_quality import PredictionQuality, prediction_quality
from kvscope.policies.base import Floats
from kvscope.policies.registry import by_name
from kvscope.policies.tlru_learned import HORIZON
from kvscope.replay.curve import lru_curve
from kvscope.replay.parameter_estimates import bind, estimate_parameters
from kvscope.replay.policy_options import Variant
from kvscope.replay.replay import NO_TABLES, replay, touch_history
from kvscope.replay.traffic import Traffic, traffic
from kvscope.tuning.bootstrap import FEWEST, Bootstrap, Resampled, interval
from kvscope.tuning.target import Target

WARMUP = 0.4  # of the requests, which do not count
LEVELS = (0.25, 0.5, 0.75)  # LRU's hit rate at the capacities compared, as a share of the ideal
XI_TOKENS = 8192
_LRU, _PLAIN, _LEARNED, _ORACLE = POLICIES = ("lru", "tlru", "tlru-learned", "tlru-end")
_TEL = -1  # its index among the figures of `Bootstrap`


@dataclass(frozen=True, slots=True)
class EndGain:
    """TEL in tokens beyond xi by policy, at a capacity where LRU has `level` of the ideal hit rate.

    `share` is tlru-learned's share of the improvement from tlru to tlru-end, with its 95 %
    interval: below 0 it does worse than tlru. All three are None where tlru-end improves nothing,
    or too few conversations have a TTFT beyond xi.
    """

    level: float
    capacity_blocks: int
    tel_tokens: Mapping[str, float]
    share: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class EndsFit:
    """How well ends are predicted, and what that gains at xi."""

    foreseen: PredictionQuality
    xi_tokens: float
    warmup: float
    gains: tuple[EndGain, ...]


def fit_ends(
    prompts: Prompts, *, horizon_s: float = HORIZON.default, xi_tokens: float = XI_TOKENS
) -> EndsFit:
    """Predict a trace's ends as an engine could have, and replay the policies."""
    requests = traffic(prompts, standard())
    ends = EndPredictor(requests)
    replays = _Replays(prompts, requests, ends, horizon_s, xi_tokens)
    curve = lru_curve(prompts, replace(standard(), warmup=WARMUP))
    levels = LEVELS if curve.ideal > 0 else ()
    gains = tuple(replays.gain(level, curve.capacity_for(level * curve.ideal)) for level in levels)
    return EndsFit(prediction_quality(ends, horizon_s), xi_tokens, WARMUP, gains)


class _Replays:
    """Replays of one trace, compared by conversation."""

    def __init__(
        self,
        prompts: Prompts,
        requests: Traffic,
        ends: EndPredictor,
        horizon_s: float,
        xi_tokens: float,
    ) -> None:
        self._traffic, self._past, self._tables = requests, touch_history(requests), ends.tables()
        self._first = int(len(requests.leaf) * WARMUP)
        self._given = {"xi_tokens": xi_tokens, "horizon_s": horizon_s}
        self._estimates = estimate_parameters(requests, PRESETS["llama2-7b-a100"], None)
        self._conversation = prompts.conversation[self._first :]
        self._bootstrap = Bootstrap(self._conversation, Target(slo_s=xi_tokens))

    def gain(self, level: float, capacity: int) -> EndGain:
        """Return the gain at one capacity."""
        xi_tokens = self._given["xi_tokens"]
        uncached = {name: self._uncached(name, capacity) for name in POLICIES}
        tel = {
            name: float(np.maximum(tokens - xi_tokens, 0.0).sum())
            for name, tokens in uncached.items()
        }
        losing = self._conversation[uncached[_PLAIN] > xi_tokens]
        share = None
        if tel[_PLAIN] > tel[_ORACLE] and len(np.unique(losing)) >= FEWEST:
            figures = (
                self._bootstrap.figures(uncached[name]) for name in (_PLAIN, _ORACLE, _LEARNED)
            )
            share = _share(*figures)
        return EndGain(level, capacity, tel, *(share or (None, None, None)))

    def _uncached(self, name: str, capacity: int) -> Floats:
        kind = by_name(name)
        takes = {parameter.name for parameter in kind.parameters}
        given = {name: value for name, value in self._given.items() if name in takes}
        policy = bind(Variant(kind, given), self._estimates)
        tables = self._tables if policy.learner else NO_TABLES
        done = replay(self._traffic, policy, capacity, history=self._past, tables=tables)
        hits = done.hit_blocks[self._first :].astype(np.int64) * self._traffic.block_size
        left = self._traffic.input_tokens[self._first :] - hits
        uncached: Floats = np.maximum(left, 0).astype(np.float64)
        return uncached


def _share(
    plain: Resampled, oracle: Resampled, learned: Resampled
) -> tuple[float, float, float] | None:
    """Return the share of the TEL improvement from `plain` to `oracle` that `learned` reaches.

    With its 95 % interval, the widest of all kinds of resamples.
    """
    possible, reached = (
        np.concatenate((plain.value[None, _TEL], plain.resamples[..., _TEL].ravel()))
        - np.concatenate((other.value[None, _TEL], other.resamples[..., _TEL].ravel()))
        for other in (oracle, learned)
    )
    shares = np.where(possible > 0, reached / np.where(possible > 0, possible, 1.0), np.nan)
    resampled = shares[1:].reshape(plain.resamples.shape[:2])
    if np.isnan(resampled).all(axis=1).any():
        return None
    clusters = np.min([policy.clusters[:, _TEL] for policy in (plain, oracle, learned)], axis=0)
    low, high = interval(resampled, clusters)
    return float(shares[0]), float(low), float(high)
