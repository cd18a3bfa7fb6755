"""A real vLLM with the plugin: every request hits what the simulator says it hits."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.core.trace import Prompts
from kvscope.ingest.pipeline import ingest
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.learners import plugin_tables
from kvscope.learning.returns.file import FittedReturns
from kvscope.learning.returns.formulas import STEPS
from kvscope.policies.base import LanePolicy
from kvscope.policies.gittins import AGES, Gittins
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.policies.tlru_learned import TLruLearned
from kvscope.policies.wa import Wa
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from kvscope.tuning.file import write_policy
from kvscope.vllm_sim.paths import engine_traffic
from kvscope.vllm_sim.replay import replay_engine
from kvscope.vllm_sim.settings import EngineSettings, StepCost
from tests.conformance.conversations import Asked, prompts_of
from tests.learning.drawn_trees import drawn_ends
from tests.vllm_plugin.serving import BLOCK

pytest.importorskip("vllm", reason="no vLLM here: make test-engine brings its own")
pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
BLOCKS = 64
REQUESTS = 2000
TAIL = TLru({"xi_tokens": 256, "next_prompt_tokens": 64})
POLICIES = (Lru(), TAIL, Wa(), Gittins({"xi_tokens": 256, "next_prompt_tokens": 64}))


def recommended(path: Path, policy: LanePolicy, fitted: FittedTable | None = None) -> Path:
    """The file that kvscope would write for a policy, as far as the plugin reads it."""
    write_policy(path, policy, fitted, trace="made", block_size=BLOCK)
    return path


def ran(
    what: str, blocks: int = BLOCKS, requests: int = REQUESTS, **environment: str
) -> dict[str, Any]:
    """What the script of `tests.vllm_plugin.serving` tells, run as an operator would run vLLM."""
    sizes = ("--blocks", str(blocks), "--requests", str(requests))
    found = subprocess.run(
        [sys.executable, "-m", "tests.vllm_plugin.serving", what, *sizes],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def prompts(answer: dict[str, Any]) -> Prompts:
    """The same requests for the simulator."""
    asked = [
        Asked(tuple(one["prompt"]), tuple(one["output"]), None, one["arrival_s"])
        for one in answer["served"]
    ]
    kinds = [one["kind"] for one in answer["served"]]
    met = list(dict.fromkeys(kinds))
    category = np.array([met.index(kind) for kind in kinds], dtype=np.int32)
    return replace(prompts_of(asked, BLOCK), category=category, categories=tuple(met))


def predicted(known: Prompts, policy: LanePolicy, fitted: FittedTable | None = None) -> list[int]:
    """Each request's hit tokens as the simulator has them, a step of the engine a second."""
    seen = replay_engine(
        known,
        policy,
        EngineSettings.one_at_a_time(BLOCKS),
        StepCost(base_s=1.0),
        tables=plugin_tables(engine_traffic(known), policy, fitted),
    )
    return [int(hits) * BLOCK for hits in seen.hit_blocks]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: one.name)
def test_every_request_hits_what_was_predicted(tmp_path: Path, policy: LanePolicy) -> None:
    """2,000 requests, answered by the model and continued with its answers: not a token off."""
    path = recommended(tmp_path / "recommendation.toml", policy)
    answer = ran("conversations", KVSCOPE_RECOMMENDATION=str(path))
    assert answer["watching"] == ([] if policy.name == "lru" else ["Steering"])
    assert answer["broken"] == [False] * len(answer["watching"])
    measured = [one["hit_tokens"] for one in answer["served"]]
    known = prompts(answer)
    assert measured == predicted(known, policy)
    assert sum(measured) == answer["counted_hits"] > 0
    others = [predicted(known, one) for one in POLICIES if one.name != policy.name]
    assert measured not in others


@pytest.mark.parametrize("class_set", range(len(STEPS)))
def test_every_request_hits_what_was_predicted_of_one_fit(tmp_path: Path, class_set: int) -> None:
    """The same with a table from a file: each request is of the class that the simulator has."""
    index = np.random.default_rng(3).lognormal(-4.0, 2.0, (math.prod(STEPS[class_set]), AGES))
    fitted = FittedReturns(class_set, index, 10_800.0, 1)
    policy = Gittins({"xi_tokens": 256, "next_prompt_tokens": 64})
    path = recommended(tmp_path / "policy.toml", policy, fitted)
    answer = ran("conversations", requests=600, KVSCOPE_RECOMMENDATION=str(path))
    assert answer["broken"] == [False]
    known = prompts(answer)
    measured = [one["hit_tokens"] for one in answer["served"]]
    assert measured == predicted(known, policy, fitted)
    assert measured not in [predicted(known, one) for one in (Lru(), TAIL, policy)]


def test_ends_are_foreseen_as_the_simulator_has_them(tmp_path: Path) -> None:
    """T-LRU with trees from a file: whose conversation ends is known of each request alike."""
    fitted = drawn_ends(3)
    policy = TLruLearned({"xi_tokens": 256, "next_prompt_tokens": 64})
    path = recommended(tmp_path / "policy.toml", policy, fitted)
    answer = ran("conversations", requests=600, KVSCOPE_RECOMMENDATION=str(path))
    assert answer["broken"] == [False]
    known = prompts(answer)
    measured = [one["hit_tokens"] for one in answer["served"]]
    assert measured == predicted(known, policy, fitted)
    assert measured not in [predicted(known, one) for one in (Lru(), TAIL, policy)]


def test_five_sessions_that_take_turns(tmp_path: Path) -> None:
    """LRU gives up each history just before it is asked for; T-LRU keeps what the tail needs."""
    answer = ran("five-sessions")
    known = prompts(answer)
    assert known.input_tokens.sum() == 31_680
    assert answer["counted_hits"] == sum(predicted(known, Lru())) == 0
    path = recommended(tmp_path / "recommendation.toml", TAIL)
    answer = ran("five-sessions", KVSCOPE_RECOMMENDATION=str(path))
    measured = [one["hit_tokens"] for one in answer["served"]]
    assert measured == predicted(prompts(answer), TAIL)
    assert sum(measured) == answer["counted_hits"] == 19_360


def test_a_recording_has_vllms_hits(tmp_path: Path) -> None:
    """Recorded, ingested and replayed: as many hit tokens as vLLM counted, and nothing said."""
    answer = ran("five-sessions", 400, KVSCOPE_RECORD=str(tmp_path / "to"))
    (path,) = (tmp_path / "to").iterdir()
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert sum(line["cached_tokens"] for line in lines) == answer["counted_hits"] > 0
    assert all(line["ttft_ms"] > 0 for line in lines)
    with open_store(MEMORY) as store:
        trace = ingest(store, str(path)).trace
        told = load_prompts(store, trace)
    assert (trace.requests, trace.lineage, trace.block_size) == (60, "given", BLOCK)
    seen = replay_engine(told, Lru(), EngineSettings.one_at_a_time(400), StepCost(base_s=1.0))
    hits = [int(one) * BLOCK for one in seen.hit_blocks]
    assert hits == [one["hit_tokens"] for one in answer["served"]]
    for one in answer["served"]:
        for tokens in (one["prompt"], one["output"]):
            for said in (tokens[:3], tokens[-3:]):
                assert ",".join(map(str, said)) not in text.replace(" ", "")
        assert one["session"] not in text
