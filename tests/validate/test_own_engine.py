"""`kvscope validate` on engines that it starts itself, here fakes: by turns, and as they fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvscope.cli.app import run
from kvscope.core.errors import EngineError
from kvscope.deployment.presets import PRESETS
from kvscope.serving.server import Launch
from kvscope.store import results, traces
from kvscope.store.db import open_store
from kvscope.validate.validate import PolicyRun, own_vllm
from tests.cli.shell import Streams
from tests.serving import fake_vllm
from tests.serving.test_server import gone
from tests.validate.commands import asked, document, tolerant

ROOT = str(Path(fake_vllm.__file__).parents[2])
ADVICE = """schema = 1
trace = "chats"
verdict = "switch"
target = { slo_ms = 10.0, percentile = 0.95 }
capacity = { tokens = 960 }

[policy]
name = "tlru"
leaves = "leaf"
params = { xi_tokens = 200.0, next_prompt_tokens = 50.0 }

[latency]
schema = 1
name = "made up"
source = "a test"
base_ms = 4.0
per_token_ms = 0.05
"""


def test_an_engine_of_its_own_runs_the_policies_by_turns(
    trace: str, capsys: Streams, tmp_path: Path
) -> None:
    """LRU and what is recommended, twice, as A B B A, each on an engine with its own flags."""
    advice = tmp_path / "recommendation.toml"
    advice.write_text(ADVICE)
    python = fake_vllm.interpreter(tmp_path)
    folder = Path(trace).parent
    both = ["--model", "a/model", "--python", python, "--recommendation", str(advice)]
    more = ["--sequential", "--repeats", "2", "--json", "--max-requests", "30"]
    latency = ["--latency", str(folder / "latency.toml")]
    run(["validate", trace, "--db", ":memory:", *latency, *both, *more])
    told = document(capsys)
    runs = told["runs"]
    assert [one["policy"] for one in runs] == ["lru", "tlru", "tlru", "lru"]
    assert runs[0]["flags"] == []
    assert runs[1]["flags"][:1] == ["--scheduler-cls"]
    assert runs[0]["mismatched_requests"] == runs[3]["mismatched_requests"] == 0
    assert {"predicted", "measured"} == set(told["gain"])


def test_another_retention_interval_is_a_flag_of_vllm_itself(
    trace: str, capsys: Streams, tmp_path: Path
) -> None:
    """Of a hybrid model: LRU has vLLM's default; without the model's folder it is refused."""
    advice = tmp_path / "recommendation.toml"
    policy = 'name = "lru-retention"\nleaves = "any"\nparams = { retention_tokens = 1000.0 }'
    before, _, rest = ADVICE.partition('name = "tlru"')
    advice.write_text(before + policy + "\n\n[latency]" + rest.partition("[latency]")[2])
    model = tmp_path / "gpt-oss"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(PRESETS["gpt-oss-20b"][1]))
    common = ["validate", trace, "--db", ":memory:", "--recommendation", str(advice), "--json"]
    limits = ["--latency", str(Path(trace).parent / "latency.toml"), "--max-requests", "30"]
    options = own(tmp_path, *common[1:], *limits)[2:]
    run(["validate", *options, "--model", str(model)])
    runs = document(capsys)["runs"]
    assert [each["policy"] for each in runs] == ["lru", "lru-retention"]
    assert [each["flags"] for each in runs] == [[], ["--prefix-cache-retention-interval", "992"]]
    assert run(["validate", *options, "--model", "a/model"]) == 2
    assert "keeps more windows or states, which this model does not have" in capsys.readouterr().err


def test_an_engine_with_other_blocks_than_predicted_is_refused() -> None:
    """A CPU that keeps the states of linear attention in 32 bits has larger blocks than a GPU."""
    metrics = 'vllm:cache_config_info{block_size="1152",num_gpu_blocks="14"} 1.0'
    endpoint = SimpleNamespace(metrics=lambda: metrics, model=lambda: None)

    @contextmanager
    def server(launch: Launch) -> Iterator[Any]:
        yield SimpleNamespace(log=lambda: "", endpoint=endpoint)

    launch: Any = Launch("a/model", 32, 13, 9, 1, 9)
    start: Any = server
    with own_vllm(launch, start, 1152)(PolicyRun()):
        pass
    refused = pytest.raises(EngineError, match=r"blocks of 1152 tokens, not the 544 .* bfloat16")
    with refused, own_vllm(launch, start, 544)(PolicyRun()):
        pass


def recommending(folder: Path, name: str = "tlru") -> list[str]:
    """Return the options that also run the recommendation."""
    advice = folder / "recommendation.toml"
    both = ADVICE.replace(", next_prompt_tokens = 50.0", "")  # which etlru has none of
    advice.write_text(both.replace('"tlru"', f'"{name}"'))
    return ["--replay", "both", "--recommendation", str(advice)]


def own(folder: Path, *options: str) -> list[str]:
    """Return the options that start an engine."""
    sizes = ("--capacity-blocks", "60", "--engine-block-size", "16")
    python = fake_vllm.interpreter(folder)
    return ["--model", "a/model", "--python", python, "--sequential", *sizes, *options]


def test_a_policy_that_no_engine_runs_is_refused_in_a_line(
    trace: str, capsys: Streams, tmp_path: Path
) -> None:
    """Exit code 2, before anything starts."""
    log = tmp_path / "log"
    more = recommending(tmp_path, "etlru")
    assert run(asked(trace, *own(tmp_path, "--server-log", str(log)), *more)) == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("error")]
    assert "neither vLLM nor kvscope's plugin runs etlru; tune with --policy lru," in line
    assert not log.exists()


def test_a_recommendation_that_lies_here_is_named(
    trace: str, capsys: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody validates by accident what was tuned for another trace."""
    recommending(tmp_path)
    monkeypatch.chdir(tmp_path)
    options = asked(trace, *own(tmp_path, "--json"), "--replay", "both")
    run(options)
    streams = capsys.readouterr()
    run([one for one in options if one != "--json"])
    assert "tlru leaves=leaf xi_tokens=200 next_prompt_tokens=256" in capsys.readouterr().out
    assert "using recommendation.toml of this folder: tlru, for the trace chats" in streams.err
    assert [one["policy"] for one in json.loads(streams.out)["runs"]] == ["lru", "tlru"]


def test_what_fit_exported_is_validated(trace: str, capsys: Streams, tmp_path: Path) -> None:
    """A policy without a target: the blocks are named, and no SLO is judged."""
    path = tmp_path / "policy.toml"
    made = ["fit", trace, "--db", ":memory:", "--export", str(path), "--policy", "wa"]
    assert run(made) == 0
    capsys.readouterr()
    options = own(tmp_path, "--recommendation", str(path), "--json", "--max-requests", "30")
    run(asked(trace, *options, "--replay", "both"))
    printed = document(capsys)
    assert [one["policy"] for one in printed["runs"]] == ["lru", "wa"]
    assert printed["slo_ms"] is None
    unnamed = ["--model", "a/model", "--python", fake_vllm.interpreter(tmp_path)]
    assert run(asked(trace, *unnamed, "--replay", "both", "--recommendation", str(path))) == 2
    assert "--capacity-blocks: the size of the cache is unknown" in capsys.readouterr().err


DEPLOYMENT = """schema = 1
tp = 2
replicas = 4
num_gpu_blocks = 61
block_size = 16
max_num_seqs = 8
gpu_memory_utilization = 0.8
latency = "latency.toml"
"""


def test_one_replica_of_a_deployment_is_started(
    trace: str, capsys: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kvscope.toml settles pool, limits, latency, flags and the share; options win over it."""
    monkeypatch.chdir(tmp_path)  # where latency.toml is
    (tmp_path / "kvscope.toml").write_text(DEPLOYMENT)
    python = fake_vllm.interpreter(tmp_path)
    command = ["validate", trace, "--db", "store.duckdb", "--model", "a/model", "--python", python]
    command += ["--replay", "lru", "--sequential"]
    run([*command, "--json"])
    first = document(capsys)
    flags = " ".join(first["engine"]["flags"])
    assert "--num-gpu-blocks-override 61 " in flags
    assert "--max-num-seqs 8 --max-num-batched-tokens 2048" in flags
    assert flags.endswith("--tensor-parallel-size 2 --gpu-memory-utilization 0.8")
    assert (first["latency"], first["engine"]["blocks"]) == ("the fake's own", 60)
    assert first["requests"]["sent"] < 0.6 * first["requests"]["of"]
    assert first["deployment"]["replicas"] == 4
    options = ["--share", "50%", "--tp", "4", "--max-num-seqs", "16"]
    run([*command, *options])
    streams = capsys.readouterr()
    assert "to 120 blocks" not in streams.err
    assert "120 blocks of 16 tokens" in streams.out
    assert "--max-num-seqs 16" in " ".join(streams.out.split())
    assert "Deployment: 4 replicas of one engine, vllm@0.33." in streams.out
    with open_store("store.duckdb") as store:
        known = results.all_validations(store, traces.find(store, None))
    assert [each["deployment"]["tp"] for each in known] == [4, 2]
    run([*command, "--deployment", "-", "--capacity-blocks", "30", "--json"])
    assert document(capsys)["deployment"] is None


def test_the_recommendation_of_a_deployment_is_for_one_replica(
    trace: str, capsys: Streams, tmp_path: Path
) -> None:
    """Its pool is not divided, its limits are those of the engine, and it gets its share."""
    advice = tmp_path / "recommendation.toml"
    table = 'summary = "four"\nengine = "vllm@0.33"\nreplicas = 4\nmax_num_seqs = 8\n'
    advice.write_text(f"{ADVICE}\n[deployment]\n{table}max_num_batched_tokens = 512\n")
    command = asked(trace, "--model", "a/model", "--python", fake_vllm.interpreter(tmp_path))
    command += ["--recommendation", str(advice), "--engine-block-size", "16", "--sequential"]
    run([*command, "--json"])
    found = document(capsys)
    assert found["engine"]["blocks"] == 60
    assert "--max-num-seqs 8 --max-num-batched-tokens 512" in " ".join(found["engine"]["flags"])
    assert found["requests"]["sent"] < found["requests"]["of"]


@pytest.mark.parametrize(
    "says",
    [
        "ERROR [adapter] kvscope does nothing, and vLLM evicts by LRU; recommendation.toml: gone",
        "WARNING [adapter] kvscope leaves the eviction order to vLLM: prefix caching is off",
    ],
)
def test_an_engine_without_the_policy_is_not_taken_for_one_with_it(
    trace: str, capsys: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    """Exit code 5 with the plugin's own words; LRU, which needs no plugin, has been measured."""
    monkeypatch.setenv("FAKE_SAYS", says)
    more = recommending(tmp_path)
    assert run(asked(trace, *own(tmp_path, "--json"), *more)) == 5
    told = document(capsys)
    assert [one["policy"] for one in told["runs"]] == ["lru"]
    assert says.partition("] ")[2] in told["ended"]


def test_an_engine_that_does_not_start_shows_its_last_words(
    trace: str, capsys: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 5, its log's end and one line."""
    monkeypatch.setenv("FAKE_VLLM", "fails")
    assert run(asked(trace, *own(tmp_path))) == 5
    told = capsys.readouterr().err
    assert "| ValueError: no such model" in told
    assert (
        "error: vLLM: ended before it was ready (exit status 1); see its last lines above" in told
    )


def test_one_that_starts_for_lru_alone_leaves_that(
    trace: str, capsys: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 5; what was measured is printed, and stored as what ended early."""
    monkeypatch.setenv("FAKE_VLLM", "fails-with-plugin")
    enough = own(tmp_path, "--capacity-blocks", "1000", "--json")
    assert run(asked(trace, *enough, *recommending(tmp_path), *tolerant(trace))) == 5
    streams = capsys.readouterr()
    assert "| ValueError: no such model" in streams.err
    told = json.loads(streams.out)
    assert [one["policy"] for one in told["runs"]] == ["lru"]
    assert {check["passed"] for check in told["checks"]} == {True}
    assert told["verdict"] == "inconclusive"
    with open_store(str(Path(trace).parent / "store.duckdb")) as store:
        (kept,) = results.all_validations(store, traces.find(store, None))
        assert "before it was ready" in kept["ended"]


def test_an_engine_that_dies_in_the_middle_shows_its_last_words(
    trace: str, capsys: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 5, its log's end on standard error, and what was measured on standard output.

    What it left running itself is ended.
    """
    pids = tmp_path / "pids"
    monkeypatch.setenv("FAKE_PIDS", str(pids))
    monkeypatch.setenv("FAKE_DIES_AT", str(3 + 40))
    python = fake_vllm.interpreter(tmp_path)
    own = ["--model", "a/model", "--python", python, "--capacity-blocks", "60", "--sequential"]
    assert run(asked(trace, *own, "--engine-block-size", "16", "--json")) == 5
    streams = capsys.readouterr()
    assert "| RuntimeError: engine core died" in streams.err
    (only,) = json.loads(streams.out)["runs"]
    assert only["counted"] == 24
    assert "in the middle of the replay" in only["ended"]
    with open_store(str(Path(trace).parent / "store.duckdb")) as store:
        (kept,) = results.all_validations(store, traces.find(store, None))
        (stored,) = results.validation_runs(store, kept["validation_id"])
        assert "in the middle of the replay" in kept["ended"]
        assert (len(stored["measured_ttft_s"]), stored["ended"]) == (24, only["ended"])
    assert gone(pids)


def test_ctrl_c_while_the_engine_starts_leaves_nothing_running(trace: str, tmp_path: Path) -> None:
    """Exit code 130 at once, though the engine never answers."""
    pids = tmp_path / "pids"
    with subprocess.Popen(
        [sys.executable, "-m", "kvscope", *asked(trace, *own(tmp_path))],
        env=os.environ | {"PYTHONPATH": ROOT, "FAKE_PIDS": str(pids), "FAKE_VLLM": "hangs"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until = time.monotonic() + 60
        while not pids.exists() or len(pids.read_text().split()) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert gone(pids)


def test_ctrl_c_leaves_nothing_running(trace: str, tmp_path: Path) -> None:
    """Exit code 130, partial results, and neither the engine nor its children."""
    pids, log = tmp_path / "pids", tmp_path / "log"
    python = fake_vllm.interpreter(tmp_path)
    own = [
        "--model",
        "a/model",
        "--python",
        python,
        "--capacity-blocks",
        "60",
        "--sequential",
        "--json",
    ]
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kvscope",
            *asked(trace, *own, "--repeats", "500", "--server-log", str(log)),
        ],
        env=os.environ | {"PYTHONPATH": ROOT, "FAKE_PIDS": str(pids), "FAKE_PER_TOKEN_S": "3e-4"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until = time.monotonic() + 60
        while "INFO ready" not in (log.read_text() if log.exists() else ""):
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(4.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out)["ended"] == "interrupted"
    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
