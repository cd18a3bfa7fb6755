"""A real vLLM on a CPU, over HTTP: what is replayed there hits what was predicted.

Its weights are random, its outputs are those that the trace carries on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.tiny_llama import tiny_llama
from kvscope.core.percentiles import percentiles
from kvscope.core.trace import OUTPUTS, Prompts
from kvscope.latency.calibration import Cell, fit, grid, measure
from kvscope.latency.profile import LatencyProfile
from kvscope.latency.targets import ServerTarget
from kvscope.policies.base import Policy
from kvscope.policies.gittins import Gittins
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.policies.wa import Wa
from kvscope.serving.client import BlockPool, block_pool, completion
from kvscope.serving.interpreter import interpreter, with_vllm
from kvscope.serving.server import Launch, VllmServer
from kvscope.tuning.file import read_recommendation
from kvscope.validate.predict import Prediction, predict
from kvscope.validate.replay import Measurement, Pace, TraceReplay
from kvscope.validate.tokens import TokenTrace
from kvscope.validate.validate import PolicyRun, recommended_run
from kvscope.vllm_sim import EngineSettings
from tests.long import long
from tests.validate.test_tokens import chats

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(interpreter().vllm is None, reason="no vLLM here: make test-engine"),
]

SIZE, BLOCKS, FEW_BLOCKS, LONGEST = 32, 400, 250, 1024
ALIVE = 60  # chats that take turns: more than fit
SETTINGS = EngineSettings(BLOCKS, 16, 2048)
POLICIES: tuple[Policy, ...] = (
    TLru({"xi_tokens": 200, "next_prompt_tokens": 60}),
    Wa({"refit_s": 60}),
    Gittins({"xi_tokens": 200, "refit_requests": 32}),
)
PROFILE = LatencyProfile("a guess", "", 5e-3, 3e-5)
ONE_CORE = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}  # beside other tests
LOGGED = {"VLLM_LOGGING_LEVEL": "INFO"}  # other tests of this process ask for less
TINY = tiny_llama(2048, "float32")  # bf16 is emulated on many CPUs


def ignore(amount: int) -> None:
    """Nobody watches."""


def launch(folder: Path, run: PolicyRun, blocks: int = BLOCKS) -> VllmServer:
    """Return a vLLM with few blocks and forced outputs."""
    (folder / "config.json").write_text(json.dumps(TINY))
    wanted = Launch(
        str(folder),
        SIZE,
        blocks,
        max_model_len=LONGEST + 1,
        max_num_seqs=SETTINGS.max_num_seqs,
        max_num_batched_tokens=SETTINGS.max_num_batched_tokens,
        forced_outputs=True,
        flags=run.flags,
        environment={**ONE_CORE, **LOGGED, **run.environment},
    )
    return VllmServer(wanted, with_vllm(sys.executable), start_s=240)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """Yield a vLLM with its own policy."""
    with launch(tmp_path_factory.mktemp("tiny"), PolicyRun()) as running:
        yield running


def replayed(
    server: VllmServer,
    prompts: Prompts,
    pace: Pace,
    policy: Policy | None = None,
    blocks: int = BLOCKS,
) -> tuple[Prediction, Measurement]:
    """Replay the requests on the engine, its cache emptied, and on its simulation."""
    assert server.endpoint.reset_cache()
    trace = TokenTrace(prompts, forced=True)
    model = server.endpoint.model().name
    measured = TraceReplay(server.endpoint, model, trace, pace, advance=ignore, stop=Event()).run()
    assert (measured.ended, measured.errors) == ("", {})
    return foreseen(prompts, policy or Lru(), pace, measured, blocks), measured


def foreseen(
    prompts: Prompts,
    policy: Policy,
    pace: Pace,
    measured: Measurement | None = None,
    blocks: int = BLOCKS,
) -> Prediction:
    """Return the prediction for the requests."""
    sent = TokenTrace(prompts, forced=True).sent(SIZE)
    settings = replace(SETTINGS, usable_blocks=blocks)
    return predict(sent, policy, settings, PROFILE, pace, measured)


def check_engine(server: VllmServer, blocks: int) -> None:
    """Compare blocks and their size, and outputs, with those that were asked for."""
    assert block_pool(server.endpoint.metrics()) == BlockPool(blocks, SIZE)
    model = server.endpoint.model().name
    prompt, said = list(range(100, 200)), list(range(300, 400))
    first = server.endpoint.complete(completion(model, prompt, 100, xargs={OUTPUTS: said}))
    assert (first.error, first.output_tokens) == ("", 100)
    then = server.endpoint.complete(completion(model, [*prompt, *said, 1, 2, 3], 1))
    assert then.cached_tokens == 199 // SIZE * SIZE  # the last output token has no KV yet


def check_request_times(server: VllmServer) -> None:
    """Its metrics of prefills come with the answers, and leave out a part of what a client sees."""
    target = ServerTarget(server.endpoint, server.endpoint.model().name, seed=3)
    seen_s = [target.read(Cell(tokens, 0)).ttft_s for tokens in (64, 512)]
    outside_s = target.request_s()
    assert outside_s is not None
    assert 0 < outside_s < np.mean(seen_s)


@pytest.mark.long
def test_one_after_the_other_every_hit_is_as_predicted(server: VllmServer, tmp_path: Path) -> None:
    """300 requests over a bounded cache, outputs included: not one token off."""
    prompts = chats(tmp_path, 300, ALIVE)
    check_engine(server, BLOCKS)
    predicted, measured = replayed(server, prompts, Pace("sequential"))
    assert measured.hit_tokens.tolist() == predicted.hit_tokens.tolist()
    assert measured.output_tokens.tolist() == prompts.output_tokens.tolist()
    whole = predict(
        TokenTrace(prompts, forced=True).sent(SIZE),
        Lru(),
        EngineSettings(100_000),
        PROFILE,
        Pace("sequential"),
    )
    assert 0 < predicted.hit_tokens.sum() < whole.hit_tokens.sum()  # the bound was felt


@pytest.mark.parametrize(
    "policy",
    [policy if isinstance(policy, Gittins) else long(policy) for policy in POLICIES],
    ids=lambda policy: policy.name,
)
def test_the_plugin_hits_what_is_predicted(tmp_path: Path, policy: Policy) -> None:
    """450 requests as `kvscope validate` sends them to its plugin: not one token off.

    They take half an hour in the trace, so that what is learned of them changes, and `gittins` has
    seen enough to leave LRU.
    """
    file = tmp_path / "recommendation.toml"
    params = ", ".join(f"{name} = {value!r}" for name, value in policy.values.items())
    file.write_text(
        f'schema = 1\nverdict = "switch"\n[target]\nslo_ms = 100\npercentile = 0.95\n'
        f'[policy]\nname = "{policy.name}"\nleaves = "{policy.evicts}"\n'
        f"params = {{ {params} }}\n[capacity]\ntokens = {BLOCKS * SIZE}\n"
        f'[latency]\nschema = 1\nname = "a guess"\nsource = ""\n'
        f"base_ms = 5\nper_token_ms = 0.03\n"
    )
    run = recommended_run(read_recommendation(file), file, overlapped=False, trace_clock=True)
    prompts = chats(tmp_path, 450, ALIVE, gap_s=4.0, longest_output=12)
    pace = Pace("sequential")
    with launch(tmp_path, run, FEW_BLOCKS) as server:
        predicted, measured = replayed(server, prompts, pace, run.policy, FEW_BLOCKS)
        check_engine(server, FEW_BLOCKS)
        check_request_times(server)
        log = server.log()
    assert f"kvscope orders free blocks by {policy.name}" in log
    assert "the engine continues without" not in log
    assert measured.hit_tokens.tolist() == predicted.hit_tokens.tolist()
    assert measured.output_tokens.tolist() == prompts.output_tokens.tolist()
    for other in (Lru(), *POLICIES):
        hits = foreseen(prompts, other, pace, blocks=FEW_BLOCKS).hit_tokens
        assert (hits.tolist() == predicted.hit_tokens.tolist()) == (other is policy)


@pytest.mark.clock
def test_sixteen_at_once_few_hits_are_off(
    server: VllmServer, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """Who ends first depends on the clock, and so what is evicted: by less than 1 % of hits."""
    predicted, measured = replayed(server, chats(tmp_path, 300, ALIVE), Pace("in-flight", 16))
    off = np.abs(measured.hit_tokens - predicted.hit_tokens)
    share = float(off.sum() / predicted.hit_tokens.sum())
    record_property("mismatched_requests", int(np.count_nonzero(off)))
    record_property("mismatched_share_of_hit_tokens", share)
    assert share < 0.01


@pytest.mark.clock
def test_calibration_predicts_the_replay(
    server: VllmServer, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """p50 and p95 of the TTFT, on a machine that others use too.

    Others only make it slower, so the least of several measurements is compared, on both sides.
    """
    model = server.endpoint.model().name
    target = ServerTarget(server.endpoint, model, seed=1)
    made = measure(target, grid(LONGEST), rounds=7, advance=ignore, stop=Event())
    least = {cell: [min(times)] for cell, times in made.ttft_s.items()}
    profile = LatencyProfile("measured", "", **fit(least).parameters)
    prompts = chats(tmp_path, 60)
    trace = TokenTrace(prompts, forced=True)
    runs = [replayed(server, prompts, Pace("sequential"))[1] for _ in range(4)]
    times = np.min([run.ttft_s for run in runs], axis=0)
    sent = trace.sent(SIZE)
    said = predict(sent, Lru(), SETTINGS, profile, Pace("sequential")).ttft_s
    was, foreseen = percentiles(times), percentiles(said)
    for name in ("p50", "p95"):
        ratio = getattr(foreseen, name) / getattr(was, name)
        record_property(f"{name}_predicted_to_measured", ratio)
        assert 0.5 < ratio < 2
