"""The data-parallel ranks of one engine (`--dp`), as every command takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.deployment.deployment import RANKS_APART, Deployment, resolve
from kvscope.fleet.options import RANKS_ROUTER
from kvscope.policies.lru import Lru
from kvscope.tuning.flags import EngineLaunch, flags
from kvscope.tuning.replicas import SESSION, router_of
from tests.cli.replayed import write_short
from tests.cli.shell import Streams, document, streams_of

MODEL = ("--gpu", "h200", "--model", "deepseek-v3")
RANKS = (*MODEL, "--dp", "8")


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a trace of the sample's first 500 requests, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return write_short(tmp_path)


def test_the_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """Pool of a rank and in all, weights on a GPU, price, and the command; from a file too."""
    monkeypatch.chdir(tmp_path)
    lines = streams_of(capsys, "deployment", *RANKS, "--gpu-hour", "2.5").out.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100
    text = " ".join(" ".join(lines).split())
    assert "8 ranks of 1 x h200, deepseek-v3 in fp8, vllm@0.33" in text
    assert "18,273 blocks of 16 tokens per rank: 292,368 tokens (2,338,944 in all), derived" in text
    assert "weights -94.2 GiB 0.942 GiB fp8, experts by 8" in text
    assert "8 GPUs cost 20.00 an hour." in text
    assert "vllm serve MODEL --data-parallel-size 8 --enable-expert-parallel --max-num" in text
    assert RANKS_APART in text
    assert run(["deployment", "create", *RANKS]) == ExitCode.DONE
    assert "dp = 8" in Path("kvscope.toml").read_text(encoding="utf-8")
    made = document(capsys, "deployment")
    assert (made["tp"], made["dp"], made["replicas"], made["gpus"]) == (1, 8, 8, 8)
    assert made["latency"]["profile"] == "deepseek-v3-fp8-1xh200-dp8"


def test_flags_of_ranks() -> None:
    """Experts are divided where there are some: vLLM refuses the switch for other models."""

    def words(**stated: object) -> str:
        where = resolve(Deployment(**({"gpu": "h200"} | stated)))  # type: ignore[arg-type]
        return str(flags(Lru(), EngineLaunch.of(where, None)).vllm)

    limits = "--max-num-seqs 1024 --max-num-batched-tokens 8192"
    ranks = "--tensor-parallel-size 2 --data-parallel-size 4"
    assert words(model="deepseek-v3", tp=2, dp=4) == f"{ranks} --enable-expert-parallel {limits}"
    assert words(model="llama3-70b", tp=2, dp=4) == f"{ranks} {limits}"
    assert "parallel" not in words(model="llama3-8b")


def test_a_fleet_of_ranks_is_replicas_behind_vllms_balancer(capsys: Streams, short: str) -> None:
    """With the same pool and latency, every figure is equal; the GPUs of all ranks have a price."""
    assert (
        router_of(resolve(Deployment(gpu="h200", model="deepseek-v3", dp=8))).name == RANKS_ROUTER
    )
    assert router_of(resolve(Deployment(gpu="h200", model="qwen2-7b", replicas=8))) is SESSION
    same = ("fleet", short, "--slo", "2s", *MODEL, "--num-gpu-blocks", "3000", "--gpu-hour", "2")
    same = (*same, "--latency", "llama2-7b-a100", "--db", ":memory:")
    ranks = document(capsys, *same, "--dp", "4")
    replicas = document(capsys, *same, "--router", "vllm-dp", "--replicas", "4")
    assert ranks["fleets"] == replicas["fleets"]
    assert [row["replicas"] for row in ranks["fleets"]] == [4]
    assert (ranks["chosen"], ranks["price_hour"]) == (4, 8)
    assert (ranks["verdict"], ranks["fewest_interval"]) == ("meets-slo", None)
    both = ("--router", "vllm-dp", "--replicas", "4")
    screen = " ".join(streams_of(capsys, *same, *both).out.split())
    assert "--data-parallel-size 4 (ranks divide the experts, replicas do not: --dp 4 sim" in screen
    screen = " ".join(streams_of(capsys, *same, "--dp", "4").out.split())
    assert "4 ranks behind vllm-dp@0.32 (GPUs: 8.00 an hour) meet p95 TTFT ≤ 2 s" in screen
    assert "vllm serve MODEL --num-gpu-blocks-override 3000 --data-parallel-size 4" in screen
    assert "in vLLM they step together" in screen
    other = ("--dp", "4", "--router", "llm-d", "--slo", "1ms")
    screen = " ".join(streams_of(capsys, *same[:2], *same[4:], *other).out.split())
    assert "4 ranks behind llm-d@0.8 (GPUs: 8.00 an hour) miss p95 TTFT ≤ 1 ms" in screen
    assert "--data-parallel-external-lb, once a rank To set on llm-d@0.8: " in screen


def test_every_command_sends_requests_as_the_balancer_does(capsys: Streams, short: str) -> None:
    """`tune` judges on what `fleet` replays; `explain` and `analyze` miss the same tokens."""
    where = (*RANKS, "--db", str(Path(short).with_name("k.duckdb")))
    fleet = document(capsys, "fleet", short, *where, "--slo", "2s")
    tuned = document(
        capsys, "tune", short, *where, "--slo", "2s", "--policy", "tlru", "--gpu-hour", "2.5"
    )
    (replayed,), today = fleet["fleets"], tuned["rows"][0]
    assert (today["change"]["router"], today["change"]["replicas"]) == (RANKS_ROUTER, 8)
    assert today["hit_rate"] == replayed["hit_rate"]
    assert today["ttft_ms"]["p95"]["value"] == replayed["latencies"]["ttft_ms"]["p95"]
    assert today["price_per_hour"] == 20
    assert {row["change"]["replicas"] for row in tuned["rows"]} == {8}
    to = ("validate", short, "--model", "served", "--recommendation", "recommendation.toml")
    assert run(to) == ExitCode.USAGE
    assert "it is for 8 ranks of one engine, which validate does not" in capsys.readouterr().err
    screen = streams_of(capsys, "tune", short, *where, "--slo", "2s", "--policy", "lru").out
    assert "today: 8 ranks, lru" in screen
    explained = document(capsys, "explain", short, *where)
    assert (explained["router"], explained["workers"]) == (RANKS_ROUTER, 8)
    assert any(cause["cause"] == "routed" for cause in explained["causes"])
    analyzed = document(capsys, "analyze", short, *where)
    assert analyzed["pool"]["router"] == RANKS_ROUTER
    share = explained["hit_tokens"] / explained["input_tokens"]
    assert analyzed["pool"]["token_hit_rate"] == pytest.approx(share)


def test_one_rank_alone(capsys: Streams, short: str) -> None:
    """Its own traffic is replayed in its own pool; vLLM is not started for one rank."""
    made = document(capsys, "simulate", short, *RANKS, "--traffic", "replica", "--policy", "lru")
    assert made["results"][0]["capacity_blocks"] == 18_273
    assert run(["deployment", "create", *RANKS]) == ExitCode.DONE
    assert run(["validate", short, "--model", "x"]) == ExitCode.USAGE
    assert "one rank is not started without the others" in capsys.readouterr().err
