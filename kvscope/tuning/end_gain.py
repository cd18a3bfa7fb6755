"""What foreseeing the ends of conversations is worth: T-LRU that learned them beside one told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.latency.profile import PRESETS
from kvscope.learning.ends.offline import EndPredictor
from kvscope.learning.ends.prediction_quality import PredictionQuality, prediction_quality
from kvscope.policies.base import Floats, Policy
from kvscope.policies.registry import by_name
from kvscope.policies.tlru_learned import HORIZON
from kvscope.replay.curve import lru_curve
from kvscope.replay.parameter_estimates import bind, estimate_parameters
from kvscope.replay.policy_options import Variant
from kvscope.replay.replay import NO_TABLES, replay, touch_history
from kvscope.replay.traffic import Traffic, traffic
from kvscope.tuning.bootstrap import CONFIDENCE, FEWEST, Bootstrap, Drawn
from kvscope.tuning.target import Target

WARMUP = 0.4  # of the requests, which do not count
LEVELS = (0.25, 0.5, 0.75)  # of the infinite cache's hit rate: capacities where LRU has so much
XI_TOKENS = 8192
_LRU, _PLAIN, _LEARNED, _TOLD = POLICIES = ("lru", "tlru", "tlru-learned", "tlru-end")
_TEL = -1  # its place among the figures of `Bootstrap`


@dataclass(frozen=True, slots=True)
class EndGain:
    """TEL in tokens beyond xi by policy, at a capacity where LRU has `level` of the ideal hit rate.

    `share` is how far tlru-learned goes of the way from tlru to tlru-end, with its 95 % interval:
    below 0 it does worse than tlru. All three are None where the end of conversations is worth
    nothing, or too few conversations lose anything.
    """

    level: float
    capacity_blocks: int
    tel_tokens: Mapping[str, float]
    share: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class EndsFit:
    """How well ends are foreseen, and what that is worth at xi."""

    foreseen: PredictionQuality
    xi_tokens: float
    warmup: float
    gains: tuple[EndGain, ...]


def fit_ends(
    prompts: Prompts, *, horizon_s: float = HORIZON.default, xi_tokens: float = XI_TOKENS
) -> EndsFit:
    """Predict a trace's ends as an engine could have, and replay the three policies."""
    of = traffic(prompts, standard())
    ends = EndPredictor(of)
    gains = _Gains(prompts, of, ends, horizon_s, xi_tokens)
    curve = lru_curve(prompts, replace(standard(), warmup=WARMUP))
    levels = LEVELS if curve.ideal > 0 else ()
    told = tuple(gains.at(level, curve.capacity_for(level * curve.ideal)) for level in levels)
    return EndsFit(prediction_quality(ends, horizon_s), xi_tokens, WARMUP, told)


class _Gains:
    """Replays of one trace, compared by conversation."""

    def __init__(
        self, prompts: Prompts, of: Traffic, ends: EndPredictor, horizon_s: float, xi_tokens: float
    ) -> None:
        self._of, self._past, self._tables = of, touch_history(of), ends.tables()
        self._first = int(len(of.leaf) * WARMUP)
        self._xi_tokens = xi_tokens
        self._chosen = {"xi_tokens": xi_tokens, "horizon_s": horizon_s}
        self._found = estimate_parameters(of, PRESETS["llama2-7b-a100"], None)
        self._conversation = prompts.conversation[self._first :]
        self._bootstrap = Bootstrap(self._conversation, Target(slo_s=xi_tokens))

    def at(self, level: float, capacity: int) -> EndGain:
        """The gain at one capacity."""
        left = {name: self._uncached(name, capacity) for name in POLICIES}
        tel = {
            name: float(np.maximum(one - self._xi_tokens, 0.0).sum()) for name, one in left.items()
        }
        losing = self._conversation[left[_PLAIN] > self._xi_tokens]
        share = None
        if tel[_PLAIN] > tel[_TOLD] and len(np.unique(losing)) >= FEWEST:
            plain, told, own = (
                self._bootstrap.figures(left[name]) for name in (_PLAIN, _TOLD, _LEARNED)
            )
            share = _share(plain, told, own)
        return EndGain(level, capacity, tel, *(share or (None, None, None)))

    def _uncached(self, name: str, capacity: int) -> Floats:
        policy = self._bound(name)
        tables = self._tables if policy.learner else NO_TABLES
        done = replay(self._of, policy, capacity, history=self._past, tables=tables)
        hits = done.hit_blocks[self._first :].astype(np.int64) * self._of.block_size
        left = self._of.input_tokens[self._first :] - hits
        uncached: Floats = np.maximum(left, 0).astype(np.float64)
        return uncached

    def _bound(self, name: str) -> Policy:
        kind = by_name(name)
        takes = {one.name for one in kind.parameters}
        given = {name: value for name, value in self._chosen.items() if name in takes}
        return bind(Variant(kind, given), self._found)


def _share(plain: Drawn, told: Drawn, own: Drawn) -> tuple[float, float, float] | None:
    """How far `own` goes from `plain` to `told` in TEL; of both ways to draw the wider ends."""
    way, gone = (
        np.concatenate((plain.told[None, _TEL], plain.drawn[..., _TEL].ravel()))
        - np.concatenate((one.told[None, _TEL], one.drawn[..., _TEL].ravel()))
        for one in (told, own)
    )
    shares = np.where(way > 0, gone / np.where(way > 0, way, 1.0), np.nan)
    drawn = shares[1:].reshape(plain.drawn.shape[:2])
    if np.isnan(drawn).all(axis=1).any():
        return None
    low, high = np.nanquantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=1)
    return float(shares[0]), float(low.min()), float(high.max())
