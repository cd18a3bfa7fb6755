"""The printed flags, replayed on the simulated engine, give the figures that were promised."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.core.hits import standard
from kvscope.ingest.pipeline import ingest
from kvscope.latency.file import load_profile
from kvscope.replay.settings import engine_setting, run_setting
from kvscope.replay.sweep import serve_replay
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from kvscope.tuning.file import read_recommendation
from tests.cli.shell import Streams
from tests.cli.tune.asked import document, write_trace
from tests.long import long
from tests.tuning.examples import WINDOWS, in_turn

SAMPLES = Path(__file__).parents[3] / "sample_traces"
LATENCY = """schema = 1
name = "an engine"
source = "by hand"
base_ms = 8
per_token_ms = 0.1
"""


def _replayed(flags: str, path: Path, trace: Path) -> np.ndarray[Any, Any]:
    """Return the TTFT in seconds of all requests on an engine that is started with `flags`."""
    named = dict(re.findall(r"--([a-z-]+) (\d+)", flags))
    with open_store(MEMORY) as store:
        prompts = load_prompts(store, ingest(store, str(trace)).trace)
    size = int(named.get("block-size", 16))  # the engine's own
    blocks = (int(named["num-gpu-blocks-override"]) - 1) * size // prompts.block_size
    file = read_recommendation(path)
    assert ("KvscopeScheduler" in flags) == (file.policy.name != "lru")
    setting = engine_setting(
        run_setting(standard(), load_profile("latency.toml")),
        int(named["max-num-seqs"]),
        int(named["max-num-batched-tokens"]),
    )
    workload = Workload(prompts, setting, WINDOWS)
    times = serve_replay(workload, ReplayRequest(file.policy, blocks)).served.queued_ttft_s
    assert times is not None
    return times


@pytest.mark.parametrize(
    ("sample", "blocks", "slo", "verdict"),
    [
        ("in-turn", 350, "30ms", "switch"),
        long("birth-death", 30_000, "1s", "keep-lru"),
        ("regime-change", 40_000, "20s", "keep-lru"),
        long("to-b", 40_000, "1s", "overloaded"),
        long("to-c", 30_000, "5s", "keep-lru"),
        long("agent", 60_000, "20s", "keep-lru"),
        long("to-c", 4_000, "20ms", "unreachable"),
        long("birth-death", 1_800, "100ms", "switch"),
    ],
)
def test_the_flags_keep_the_promise(
    sample: str,
    blocks: int,
    slo: str,
    verdict: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Streams,
) -> None:
    """Pool, limits and policy as printed: p50 to p99 of the held-out requests; else no flags."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latency.toml").write_text(LATENCY)
    trace = SAMPLES / f"{sample}.jsonl.gz"
    if sample == "in-turn":  # LRU loses every conversation just before it returns
        trace = write_trace(tmp_path / "in-turn.jsonl", in_turn())
    found = document(
        capsys,
        *(str(trace), "--db", MEMORY, "--slo", slo, "--policy", "wa,tlru"),
        *("--num-gpu-blocks", str(blocks + 1), "--latency", "latency.toml"),
    )
    best = found["recommendation"]
    assert best["verdict"] == verdict
    flags = best["flags"]["vllm"]
    if verdict not in {"switch", "keep-lru"}:
        assert flags is None
        assert best["policy"] == "lru"
        return
    assert shlex.split(flags)
    times = _replayed(flags, tmp_path / "recommendation.toml", trace)
    held_out = times[-found["split"]["held_out_requests"] :]
    for rank, promised in best["expected"]["queued_ttft_ms"].items():
        share = int(rank[1:]) / 100
        got = np.quantile(held_out, share, method="inverted_cdf") * 1e3
        assert got == pytest.approx(promised, rel=1e-9)
