"""The same policies in the engine capacity model, where what is being served cannot be evicted."""

from __future__ import annotations

import numpy as np

from benchmarks.judged import Figure, Floats, Judged
from benchmarks.table import Table
from kvscope.latency.profile import PRESETS
from kvscope.vllm_sim import EngineReplay, EngineSettings, StepCost, replay_engine

PROFILE = PRESETS["llama2-7b-h100-fp8"]
LEVELS = (0.7, 0.8, 0.9, 0.95)
XI_TOKENS = 8192
RUNS = (("lru", 0), ("tlru", XI_TOKENS), ("wa", 0), ("gittins", 0), ("gittins", XI_TOKENS))


def in_engine(of: Judged) -> Table:
    """How much less TEL than LRU's; no ceiling is known in this capacity model."""
    rows = []
    for level in LEVELS:
        blocks = _capacity(of, level)
        base = _tel(of, _run(of, "lru", 0, blocks))
        for name, xi in RUNS:
            done = _run(of, name, xi, blocks)
            ttft_s = np.sort(done.ttft_s[of.first :])
            rows.append(
                [
                    f"{blocks:,}",
                    f"{name}, xi = {xi // 1024}k" if xi else name,
                    f"{_hit_rate(of, done):.1%}",
                    str(Figure.of(1 - _tel(of, done) / base)) if name != "lru" else "",
                    f"{ttft_s[int(np.ceil(0.95 * len(ttft_s))) - 1]:.2f}",
                    f"{ttft_s.mean():.2f}",
                ]
            )
    return Table(
        f"{of.name}: in the engine capacity model",
        f"Reduction of TEL against lru at xi = {XI_TOKENS // 1024}k (1: all of it), and queued"
        f" TTFT; step times of {PROFILE.name}. Capacities are those at which lru has "
        + ", ".join(f"{level:.0%}" for level in LEVELS)
        + " of the ideal hit rate.",
        ("blocks", "policy", "hit rate", "less TEL", "TTFT p95, s", "TTFT mean, s"),
        rows,
    )


def _run(of: Judged, name: str, xi: int, blocks: int) -> EngineReplay:
    policy, cost = of.bound(name, float(xi)), StepCost.of(PROFILE)
    told = of.tables(policy)
    return replay_engine(of.prompts, policy, EngineSettings(blocks), cost, tables=told)


def _hit_rate(of: Judged, done: EngineReplay) -> float:
    return float(1 - of.left(done.hit_blocks).sum() / of.input_tokens.sum())


def _tel(of: Judged, done: EngineReplay) -> Floats:
    return of.sums(np.maximum(of.left(done.hit_blocks) - XI_TOKENS, 0.0))


def _capacity(of: Judged, level: float) -> int:
    """Within 2 %, the least at which LRU has that share of the ideal and turns nobody away."""
    low, high = 1, len(of.prompts.block_parent)
    while high - low > high // 50:
        middle = (low + high) // 2
        done = _run(of, "lru", 0, middle)
        enough = not done.oversized.any() and _hit_rate(of, done) >= level * of.curve.ideal
        low, high = (low, middle) if enough else (middle, high)
    return high
