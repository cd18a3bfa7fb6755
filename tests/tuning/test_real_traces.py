"""Published traces, where KVSCOPE_TRACES names a folder that holds them."""

from __future__ import annotations

import os
from itertools import permutations
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvscope.characterize.windows import round_windows
from kvscope.core.hits import standard
from kvscope.core.trace import Prompts, Trace
from kvscope.ingest.formats.base import ReadOptions
from kvscope.ingest.pipeline import IngestOptions, ingest
from kvscope.latency.file import load_profile
from kvscope.policies.registry import by_name
from kvscope.replay.policy_options import Variant
from kvscope.replay.settings import run_setting
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from kvscope.tuning.bootstrap import Bootstrap, Gain
from kvscope.tuning.target import LIKELY, Target
from kvscope.tuning.tuner import TuningOptions, TuningResult, tune
from tests.tuning.examples import quiet

MOONCAKE, AGENTS = "mooncake_conversation.jsonl.gz", "weka_agent_sessions.jsonl.gz"
SPLITS = (0.3, 0.4, 0.5)
VARIANTS = tuple(Variant(by_name(one)) for one in ("tlru", "threshold-lru", "ttl"))
pytestmark = pytest.mark.slow


def _prompts(name: str) -> tuple[Trace, Prompts]:
    path = Path(os.environ.get("KVSCOPE_TRACES", "/nowhere")) / name
    if not path.is_file():
        pytest.skip("KVSCOPE_TRACES names no folder with this trace")
    placed = ReadOptions(session_arrivals=0.01 if name == AGENTS else None)
    with open_store(MEMORY) as store:
        trace = ingest(store, str(path), IngestOptions(read=placed)).trace
        return trace, load_prompts(store, trace)


def _tuned(name: str, slo_s: float, capacity: int) -> tuple[Prompts, dict[float, TuningResult]]:
    """Return what is recommended when 30, 40 or 50 % of the requests are held out."""
    trace, prompts = _prompts(name)
    options = TuningOptions(Target(slo_s), VARIANTS, capacity)
    return prompts, {
        judged: tune(
            prompts,
            run_setting(standard(), load_profile()),
            replace(options, held_out=judged),
            round_windows(trace),
            lineage=trace.lineage,
            progress=quiet,
        )
        for judged in SPLITS
    }


def _better_or_lru(found: TuningResult) -> None:
    """Check that the recommendation has a lower held-out p95 than LRU, or is LRU."""
    best = found.recommended
    if found.choice is None:
        assert best.policy.name == "lru" or best is found.enough
        return
    assert not best.harms
    assert best.target_s < found.baseline.target_s
    assert found.choice is not None
    assert found.choice.later.likely >= LIKELY
    assert found.choice.validation.target_s >= found.infinite.target_s


def _halves(prompts: Prompts, found: TuningResult) -> list[Gain]:
    """Return the chosen policy's gain in both halves of the held-out window."""
    assert found.choice is not None
    conversation = prompts.conversation[-found.split.held_out_requests :]
    half = len(conversation) // 2
    gains = []
    for part in (slice(half), slice(half, None)):
        bootstrap = Bootstrap(conversation[part], found.target)
        before, after = (
            bootstrap.figures(one.ttft_s[part]) for one in (found.baseline, found.choice.held_out)
        )
        gains.append(bootstrap.gains(before, after)["p95"])
    return gains


def test_mooncake_conversations() -> None:
    """At 2 s and 8,000 blocks: T-LRU, surely better, however the trace is split.

    The gains that 30, 40 and 50 % of the requests measure lie within each other's intervals in
    at least five of six cases (their judged parts overlap), and of the two halves that judge in
    the widest split, which share no request, each one's gain lies within the other's interval.
    """
    prompts, found = _tuned(MOONCAKE, 2.0, 8_000)
    gains = []
    for one in found.values():
        _better_or_lru(one)
        assert one.choice is not None
        assert one.choice.held_out.policy.name == "tlru"
        gains.append(one.choice.held_out.gains["p95"])
    within = [one.low <= two.value <= one.high for one, two in permutations(gains, 2)]
    assert sum(within) >= 5
    first, second = _halves(prompts, found[0.5])
    assert first.low <= second.value <= first.high
    assert second.low <= first.value <= second.high


@pytest.mark.parametrize("capacity", [10_000, 40_000])
def test_agent_sessions(capacity: int) -> None:
    """Sessions that share nothing and hold almost all of their history: whatever is said, it holds.

    Recommended is LRU, or what is better in the judged requests, however the trace is split.
    """
    _, found = _tuned(AGENTS, 2.0, capacity)
    for one in found.values():
        _better_or_lru(one)
