"""Hybrid models from end to end: what analyze, simulate and tune say of a model with windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kvscope
from kvscope.core.errors import UsageError
from kvscope.latency.file import write_profile
from kvscope.latency.profile import LatencyProfile
from tests.app.answers import ANSWER, BLOCK, PROMPT, write_answers

STATES = Path(__file__).parents[1] / "deployment" / "configs" / "qwen3-next-80b"
POOL = {"model": "gpt-oss-20b", "num_gpu_blocks": 30_000}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kvscope.OpenTrace]:
    """Yield 150 chats of three turns, whose answers are longer than their prompts."""
    path = write_answers(tmp_path_factory.mktemp("hybrid"))
    with kvscope.open_trace(path, block_size=BLOCK) as opened:
        yield opened


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the file of a latency that was measured: 10 ms, and 0.1 ms a token."""
    path = tmp_path_factory.mktemp("latency") / "latency.toml"
    write_profile(path, LatencyProfile("measured", "here", 0.01, 1e-4))
    return str(path)


def test_analyze_says_what_windows_let_hit(trace: kvscope.OpenTrace) -> None:
    """Prompts alone by default; all of the history, as full attention has it, without a limit."""
    document = kvscope.analyze(trace, gpu="h100", **POOL).to_dict()
    rates = {each["interval_tokens"]: each["token_hit_rate"] for each in document["retention"]}
    tokens = sum(turn * (PROMPT + ANSWER) + PROMPT for turn in range(3))
    prompts = sum(turn * (PROMPT + ANSWER) + PROMPT - 1 for turn in range(2))
    assert rates[0] == pytest.approx(prompts / tokens)
    assert rates[None] == pytest.approx(document["ideal_hit_rate"])
    assert rates[0] < rates[1024] < rates[None]


def test_tune_recommends_an_interval_with_its_flag(trace: kvscope.OpenTrace, measured: str) -> None:
    """Answers are hit then: fewer tokens to compute, so the SLO is met."""
    result = kvscope.tune(trace, slo="250ms", latency=measured, **POOL).to_dict()
    chosen = result["recommendation"]
    assert (chosen["verdict"], chosen["policy"]) == ("switch", "lru-retention")
    flags = chosen["flags"]["vllm"]
    assert flags.startswith("--prefix-cache-retention-interval ")
    assert "--scheduler-cls" not in flags
    unguarded = [words for words in result["words"] if "has no guard" in words]
    assert unguarded == [
        "lru-retention has no guard: it can fall below LRU once the traffic changes."
    ]


def test_a_recommendation_is_replayed_on_the_groups_that_it_was_tuned_for(
    trace: kvscope.OpenTrace, measured: str, tmp_path: Path
) -> None:
    """The same hits as by the deployment: more than full attention in as many blocks would miss."""
    path = tmp_path / "recommendation.toml"
    kvscope.tune(trace, slo="250ms", latency=measured, **POOL).save(path)
    again = kvscope.simulate(trace, recommendation=str(path)).to_dict()
    policy = next(run for run in again["results"] if run["policy"] == "lru-retention")
    options = {"policy": "lru-retention", "latency": measured, **POOL}
    interval = policy["params"]["retention_tokens"] or "inf"
    (stated,) = kvscope.simulate(
        trace, param=[f"lru-retention.retention_tokens={interval}"], **options
    ).to_dict()["results"]
    assert policy["token_hit_rate"] == stated["token_hit_rate"] > 0


def test_explain_tells_windows_that_were_never_kept_from_evicted_ones(
    trace: kvscope.OpenTrace, measured: str
) -> None:
    """An ample pool evicts nothing: answers are missed, and their blocks were computed before."""
    ample = {"latency": measured, "model": "gpt-oss-20b"}

    def causes(**options: object) -> dict[str, int]:
        told = kvscope.explain(trace, **ample, **options).to_dict()
        return {each["cause"]: each["tokens"] for each in told["causes"] if each["tokens"]}

    by_default = causes(num_gpu_blocks=1_000_000)
    assert by_default["not-kept"] >= 150 * 2 * (ANSWER - 1) * BLOCK
    assert "evicted" not in by_default
    every = causes(
        num_gpu_blocks=1_000_000,
        policy="lru-retention",
        param=["lru-retention.retention_tokens=inf"],
    )
    assert not {"not-kept", "evicted"} & set(every)
    assert causes(num_gpu_blocks=9_000)["evicted"] > 0


@pytest.mark.long
def test_fleets_replay_the_groups_on_simulated_engines(
    trace: kvscope.OpenTrace, measured: str, tmp_path: Path
) -> None:
    """One replica hits what one engine does, and what counts all layers alike is said."""
    common = {"slo": "1s", "replicas": 1, "router": "round-robin", "latency": measured, **POOL}
    study = kvscope.simulate_fleet(trace, time_model="engine", warmup=0.0, **common)
    (fleet,) = study.to_dict()["fleets"]
    (engine,) = kvscope.simulate(trace, policy="lru", latency=measured, **POOL).to_dict()["results"]
    assert fleet["hit_rate"] == pytest.approx(engine["token_hit_rate"])
    study.save_html(tmp_path / "fleet.html")
    assert "Simulated vLLMs cache layers in groups" in (tmp_path / "fleet.html").read_text()


def test_hits_within_blocks_of_states_follow_the_deployment(
    trace: kvscope.OpenTrace, measured: str, tmp_path: Path
) -> None:
    """Blocks of 576 tokens and a trace of 64: `prefix_match_unit` lets a turn hit its last one."""
    file, rates = tmp_path / "kvscope.toml", {}
    for unit in ("", "prefix_match_unit = 64\n", "prefix_match_unit = 32\n"):
        file.write_text(
            f'schema = 1\ngpu = "h100"\nmodel = "{STATES}"\nnum_gpu_blocks = 40000\n'
            f'latency = "{measured}"\n{unit}'
        )
        if "32" in unit:
            with pytest.raises(UsageError, match="64 tokens do not divide a prefix_match_unit"):
                kvscope.simulate(trace, policy="lru", deployment=str(file))
            continue
        (lru,) = kvscope.simulate(trace, policy="lru", deployment=str(file)).to_dict()["results"]
        rates[unit] = lru["token_hit_rate"]
    plain, fine = rates.values()
    tokens = sum(turn * (PROMPT + ANSWER) + PROMPT for turn in range(3))
    assert fine == pytest.approx(
        sum(turn * (PROMPT + ANSWER) + PROMPT - 1 for turn in range(2)) / tokens
    )
    assert plain < fine


def test_the_engines_blocks_may_be_smaller_than_the_traces(
    trace: kvscope.OpenTrace, measured: str, tmp_path: Path
) -> None:
    """The deployment states 16 tokens, the trace has 64: in ample room as with blocks of 64."""
    file, hits = tmp_path / "kvscope.toml", []
    for size in (16, 64):
        file.write_text(
            f'schema = 1\nmodel = "gpt-oss-20b"\nnum_gpu_blocks = 90000\nblock_size = {size}\n'
            f'latency = "{measured}"\n'
        )
        (lru,) = kvscope.simulate(trace, policy="lru", deployment=str(file)).to_dict()["results"]
        hits.append(lru["token_hit_rate"])
    assert hits[0] == hits[1] > 0
