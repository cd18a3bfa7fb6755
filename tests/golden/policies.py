"""What every policy does on the sample traces: hit blocks and evictions at eight capacities.

`python -m tests.golden.policies` writes policies.json again. A change there is a change of results,
which its commit has to explain.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from kvscope.core.hits import standard
from kvscope.policies.base import Policy
from kvscope.policies.gittins import AGES, LEVELS
from kvscope.policies.registry import POLICIES
from kvscope.policies.wa import reuse_rows
from kvscope.replay.replay import NO_TABLES, Tables, replay, touch_history
from kvscope.replay.traffic import traffic
from tests.golden.samples import SAMPLES, capacities, sample

FILE = Path(__file__).with_suffix(".json")
Counts = dict[str, list[list[int]]]


def tables(policy: type[Policy], categories: int) -> Tables:
    """Return fixed tables, without an estimate.

    Category k has for wa p = 0.3, 0.5 or 0.7, a rate of 1 / (20 (k + 1)) a second and a life of
    60 (k + 1) s; for etlru next prompts of 32 (k + 1), 256 and 1,024 tokens, equally likely; for
    gittins an index of 1 / (10 (k + 1) + age's number) at each age, in all lanes.
    """
    if not policy().reads_table:
        return NO_TABLES
    numbers = range(1, categories + 1)
    if policy.name == "wa":
        k = np.array(numbers)
        rows = list(reuse_rows(0.1 + 0.2 * (1 + (k - 1) % 3), 1.0 / (20 * k), 60.0 * k))
    elif policy.name == "gittins":
        rows = [tuple(1.0 / (10 * k + age) for age in range(AGES)) for k in numbers]
        rows = [row for row in rows for _ in range(LEVELS)]
    else:
        rows = [(32.0 * k, 256.0, 1024.0) for k in numbers]
    return Tables.of(np.zeros(1, dtype=np.int64), np.array([rows]))


def counted(name: str) -> Counts:
    """Return [hit blocks, evictions] at each capacity, by policy with default parameters."""
    prompts = sample(name)
    of = traffic(prompts, standard())
    past = touch_history(of)
    counts: Counts = {}
    for policy in POLICIES:
        fixed = tables(policy, len(prompts.categories))
        runs = (
            replay(of, policy(), capacity, history=past, tables=fixed)
            for capacity in capacities(prompts)
        )
        counts[policy.name] = [
            [int(run.hit_blocks.sum(dtype=np.int64)), int(run.evictions)] for run in runs
        ]
    return counts


def text() -> str:
    """Return the golden file as it should be now, one line per policy."""
    traces = []
    for name in SAMPLES:
        lines = [
            f"    {json.dumps(policy)}: {json.dumps(counts)}"
            for policy, counts in counted(name).items()
        ]
        head = f'    "capacity_blocks": {json.dumps(capacities(sample(name)))}'
        traces.append(f"  {json.dumps(name)}: {{\n" + ",\n".join([head, *lines]) + "\n  }")
    return "{\n" + ",\n".join(traces) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
