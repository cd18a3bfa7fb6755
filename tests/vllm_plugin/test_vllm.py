"""A real vLLM with the plugin: every request hits what the simulator says it hits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.api import explain
from kvscope.app.latency import fit_to
from kvscope.core.errors import InputError
from kvscope.core.trace import Prompts
from kvscope.ingest.pipeline import ingest
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.learners import plugin_tables
from kvscope.learning.returns.file import FittedReturns
from kvscope.learning.returns.formulas import ROWS
from kvscope.policies.base import LanePolicy
from kvscope.policies.gittins import AGES, Gittins
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.policies.wa import Wa
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from kvscope.tuning.file import write_policy
from kvscope.vllm_sim.replay import replay_engine
from kvscope.vllm_sim.settings import EngineSettings, StepCost
from kvscope.vllm_sim.state import engine_traffic
from tests.conformance.conversations import TokenRequest, prompts_of
from tests.long import long
from tests.vllm_plugin.serving import BLOCK, MOST_BLOCKS

pytest.importorskip("vllm", reason="no vLLM here: make test-engine brings its own")
pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
BLOCKS = 64
REQUESTS = 250
TAIL = TLru({"xi_tokens": 256, "next_prompt_tokens": 64})
POLICIES = (
    Lru(),
    TAIL,
    Wa({"refit_s": 5000}),
    Gittins({"xi_tokens": 256, "next_prompt_tokens": 64, "refit_requests": 32}),
)


def recommended(path: Path, policy: LanePolicy, fitted: FittedTable | None = None) -> Path:
    """Write the file that kvscope would write for a policy."""
    write_policy(path, policy, fitted, trace="made", block_size=BLOCK)
    return path


class Vllm:
    """The process that serves scenarios; its start takes longer than most of them."""

    def __init__(self, stderr: IO[bytes]) -> None:
        self._stderr = stderr
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.vllm_plugin.serving"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def serve(
        self,
        what: str,
        blocks: int = BLOCKS,
        requests: int = 600,
        faults: dict[str, object] | None = None,
        *,
        guarded: bool = True,
        **environment: str,
    ) -> dict[str, Any]:
        """Return what the engine answers to a scenario."""
        assert self._process.stdin
        assert self._process.stdout
        more = {"blocks": blocks, "requests": requests, "faults": faults, "guarded": guarded}
        print(
            json.dumps({"what": what, "environment": environment} | more),
            file=self._process.stdin,
            flush=True,
        )
        line = self._process.stdout.readline()
        if not line:
            self._stderr.seek(0)
            raise AssertionError(self._stderr.read()[-2000:].decode())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=240)


@pytest.fixture(scope="module")
def vllm() -> Iterator[Vllm]:
    """One engine for all tests of this file."""
    with tempfile.TemporaryFile() as stderr:
        engine = Vllm(stderr)
        yield engine
        engine.close()


def prompts(answer: dict[str, Any]) -> Prompts:
    """Return the same requests for the simulator, which counts time from the first arrival."""
    start_s = answer["served"][0]["arrival_s"]
    trace = [
        TokenRequest(tuple(x["prompt"]), tuple(x["output"]), None, x["arrival_s"] - start_s)
        for x in answer["served"]
    ]
    kinds = [one["kind"] for one in answer["served"]]
    met = list(dict.fromkeys(kinds))
    category = np.array([met.index(kind) for kind in kinds], dtype=np.int32)
    return replace(prompts_of(trace, BLOCK), category=category, categories=tuple(met))


def predicted(
    known: Prompts, policy: LanePolicy, fitted: FittedTable | None = None, *, guarded: bool = True
) -> list[int]:
    """Return each request's hit tokens in the simulator; a step of the engine takes a second."""
    tables = plugin_tables(engine_traffic(known), policy, fitted)
    seen = replay_engine(
        known,
        policy,
        EngineSettings.one_at_a_time(BLOCKS),
        StepCost(base_s=1.0),
        tables=tables if guarded else replace(tables, choose=None),
    )
    return [int(hits) * BLOCK for hits in seen.hit_blocks]


@pytest.mark.parametrize(
    ("policy", "requests"),
    [
        *((policy, REQUESTS) for policy in POLICIES if not isinstance(policy, Wa)),
        *(long(policy, 2000) for policy in POLICIES),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_every_request_hits_what_was_predicted(
    vllm: Vllm, tmp_path: Path, policy: LanePolicy, requests: int
) -> None:
    """Requests answered by the model and continued with its answers: not a token off.

    Conversations that continue at random are best left to LRU, and so does the guard of `gittins`;
    `wa` leaves LRU after 600 requests.
    """
    path = recommended(tmp_path / "recommendation.toml", policy)
    learns = isinstance(policy, Gittins)
    what = "documents" if learns else "conversations"
    answer = vllm.serve(what, requests=requests, KVSCOPE_RECOMMENDATION=str(path))
    assert answer["observers"] == ([] if policy.name == "lru" else ["EvictionController"])
    assert answer["broken"] == [False] * len(answer["observers"])
    measured = [one["hit_tokens"] for one in answer["served"]]
    known = prompts(answer)
    assert measured == predicted(known, policy)
    assert sum(measured) == answer["counted_hits"] > 0
    alike = () if learns else (Gittins,) if requests > 600 else (Gittins, Wa)
    others = [one for one in POLICIES if one is not policy and not isinstance(one, alike)]
    assert measured not in [predicted(known, other) for other in others]


def test_every_request_hits_what_was_predicted_of_one_fit(vllm: Vllm, tmp_path: Path) -> None:
    """The same with a table from a file: each request is of the class that the simulator has.

    Without a guard, which would not let such a table be used.
    """
    index = np.random.default_rng(3).lognormal(-4.0, 2.0, (ROWS, AGES))
    fitted = FittedReturns(index, 1)
    policy = Gittins({"xi_tokens": 256, "next_prompt_tokens": 64})
    path = recommended(tmp_path / "policy.toml", policy, fitted)
    answer = vllm.serve(
        "conversations", requests=200, guarded=False, KVSCOPE_RECOMMENDATION=str(path)
    )
    assert answer["broken"] == [False]
    known = prompts(answer)
    measured = [one["hit_tokens"] for one in answer["served"]]
    assert measured == predicted(known, policy, fitted, guarded=False)
    assert measured not in [predicted(known, one) for one in (Lru(), TAIL, policy)]


QUEUE = ("FreeBlocks", "LaneHeap", "Prefixes", "EvictionController", "Recording")
ALL: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("name", "in_flight", "after", "among"),
    [
        ("tlru", 1, 0, ("FreeBlocks",)),
        ("tlru", 16, 1, QUEUE),
        *(
            pytest.param(name, in_flight, after, ALL, marks=pytest.mark.long)
            for name in ("tlru", "wa", "gittins")
            for in_flight in (1, 16)
            for after in (0, 1, 20)
        ),
    ],
)
def test_a_failure_anywhere_in_the_plugin_ends_in_lru(
    vllm: Vllm, tmp_path: Path, name: str, in_flight: int, after: int, among: tuple[str, ...]
) -> None:
    """Every function that is called fails once: all requests are served, no block is lost."""
    policy = next(policy for policy in POLICIES if policy.name == name)
    path = recommended(tmp_path / "recommendation.toml", policy)
    answer = vllm.serve(
        "faults",
        faults={"in_flight": in_flight, "after": after, "among": among},
        KVSCOPE_RECOMMENDATION=str(path),
        KVSCOPE_RECORD=str(tmp_path / "to"),
    )
    assert [fault for fault in answer["faults"] if fault[2]] == []
    failed = {place for place, times, _ in answer["faults"] if times}
    called = ("popleft_n", "remove", "append_n", "prepend_n", "get_all_free_blocks")
    if after <= 1:
        assert {f"FreeBlocks.{method}" for method in called} <= failed


def test_five_sessions_that_take_turns(vllm: Vllm, tmp_path: Path) -> None:
    """LRU gives up each history just before it is trace for; T-LRU keeps what the tail needs."""
    answer = vllm.serve("five-sessions")
    known = prompts(answer)
    assert known.input_tokens.sum() == 31_680
    assert answer["counted_hits"] == sum(predicted(known, Lru())) == 0
    path = recommended(tmp_path / "recommendation.toml", TAIL)
    answer = vllm.serve("five-sessions", KVSCOPE_RECOMMENDATION=str(path))
    measured = [one["hit_tokens"] for one in answer["served"]]
    assert measured == predicted(prompts(answer), TAIL)
    assert sum(measured) == answer["counted_hits"] == 19_360


def test_a_recording_has_vllms_hits(vllm: Vllm, tmp_path: Path) -> None:
    """Recorded, ingested and replayed: as many hit tokens as vLLM counted, and nothing said."""
    answer = vllm.serve("five-sessions", 400, KVSCOPE_RECORD=str(tmp_path / "to"))
    (path,) = (tmp_path / "to").iterdir()
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert sum(line["cached_tokens"] for line in lines) == answer["counted_hits"] > 0
    assert all(0 < line["queue_ms"] < line["ttft_ms"] < line["duration_ms"] for line in lines)
    assert {(line["lora_name"], line["cache_salt"]) for line in lines} == {(None, None)}
    with open_store(MEMORY) as store:
        trace = ingest(store, str(path)).trace
        told = load_prompts(store, trace)
    assert (trace.models, trace.tenants, trace.measured_requests) == (1, 1, 60)
    assert (trace.requests, trace.lineage, trace.block_size) == (60, "given", BLOCK)
    seen = replay_engine(told, Lru(), EngineSettings.one_at_a_time(400), StepCost(base_s=1.0))
    hits = [int(one) * BLOCK for one in seen.hit_blocks]
    assert hits == [one["hit_tokens"] for one in answer["served"]]
    for one in answer["served"]:
        for tokens in (one["prompt"], one["output"]):
            for said in (tokens[:3], tokens[-3:]):
                assert ",".join(map(str, said)) not in text.replace(" ", "")
        assert one["session"] not in text


def test_causes_injected_on_purpose_are_explained(vllm: Vllm, tmp_path: Path) -> None:
    """Evicted, diverged, salted, too short: each by its name; observed hits are as predicted."""
    answer = vllm.serve("injected-causes", 40, KVSCOPE_RECORD=str(tmp_path / "to"))
    (path,) = (tmp_path / "to").iterdir()
    explanation = explain(str(path), capacity_blocks=40).explanation
    attribution = explanation.attribution
    for number, request in enumerate(answer["served"]):
        tokens = {cause: int(of[number]) for cause, of in attribution.tokens.items()}
        assert max(tokens, key=tokens.__getitem__) == request["cause"], (number, tokens)
    assert attribution.hit_tokens.tolist() == [each["hit_tokens"] for each in answer["served"]]
    causes = {each.cause: each.tokens for each in explanation.causes}
    assert sum(causes.values()) == explanation.missed_tokens
    blocks = {"evicted": 8, "salt": 8, "diverged": 4}
    assert {cause: causes[cause] // BLOCK for cause in blocks} == blocks  # type: ignore[index]
    assert {each.cause for each in explanation.findings} == {*blocks}
    assert 0 < causes["below-block"] < explanation.input_tokens / 100  # too little for advice
    observed = explanation.observed
    assert observed is not None
    assert observed.requests == len(answer["served"])
    assert not any(each.tokens for each in observed.gaps)
    # Without the cap nothing is evicted: the engine's misses are a gap, and its cause is named.
    unbounded = explain(str(path)).explanation.observed
    assert unbounded is not None
    assert {each.cause: each.tokens for each in unbounded.gaps if each.tokens} == {
        "evicted": 8 * BLOCK
    }


def test_a_recording_has_the_latency_of_the_engine(vllm: Vllm, tmp_path: Path) -> None:
    """The profile fitted to recorded TTFTs has the median times of long and of short prompts."""
    vllm.serve("lengths", MOST_BLOCKS, 160, KVSCOPE_RECORD=str(tmp_path / "to"))
    (path,) = (tmp_path / "to").iterdir()
    with open_store(MEMORY) as store:
        trace = ingest(store, str(path)).trace
        recorded = load_prompts(store, trace)
    try:
        fitted = fit_to(trace, recorded)
    except InputError as error:
        if "is off by" in error.what:
            pytest.skip(f"a busy machine: {error.what}")
        raise
    measured = recorded.measurements
    assert measured is not None
    assert trace.measured_requests == fitted.stated == 160
    service_s = measured.ttft_s - measured.queue_s
    for low, high in ((32, 128), (1024, 2048)):
        some = (recorded.input_tokens >= low) & (recorded.input_tokens < high)
        tokens, cached = recorded.input_tokens[some], measured.cached_tokens[some]
        predicted_s = fitted.profile.ttft_s(tokens - cached, cached)
        assert np.median(service_s[some] / predicted_s) == pytest.approx(1, rel=0.2)
