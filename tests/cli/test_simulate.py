"""`kvscope simulate` as its user sees it: numbers, the JSON contract, what is kept, mistakes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from kvscope.cli.app import run
from kvscope.facts import Run
from kvscope.policies.registry import POLICIES
from kvscope.simulate import kept, sweep
from kvscope.simulate.workload import Asked, Workload
from kvscope.store import runs as stored
from tests.cli.replayed import BLOCK, simulated, write_profile, write_trace

Streams = pytest.CaptureFixture[str]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(write_trace(tmp_path))


@pytest.fixture
def options(tmp_path: Path) -> tuple[str, ...]:
    """A store of its own, and the profile of 10 ms and 1 ms a token."""
    return ("--db", str(tmp_path / "store.duckdb"), "--latency", str(write_profile(tmp_path)))


def by_policy(document: dict[str, Any], name: str) -> dict[int, dict[str, Any]]:
    """The results of one policy by capacity."""
    return {one["capacity_blocks"]: one for one in document["results"] if one["policy"] == name}


def test_the_document_keeps_its_contract(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Scripts depend on these keys; they may only grow."""
    document = simulated(capsys, trace, *options, "--capacity-blocks", "2", "--slo", "1s")
    assert document["command"] == "simulate"
    assert document["trace"]["name"] == "tiny"
    assert document["slo_ms"] == 1000
    assert document["latency"]["per_token_ms"] == 1
    assert len(document["results"]) == 5
    for result in document["results"]:
        assert set(result) >= {
            "policy",
            "params",
            "capacity_blocks",
            "capacity_bytes",
            "requests",
            "hit_tokens",
            "total_tokens",
            "token_hit_rate",
            "block_hit_rate",
            "request_hit_rate",
            "uncached_tokens",
            "ttft_ms",
            "tel_ms",
            "violations",
            "evictions",
            "hindsight",
        }
        assert set(result["uncached_tokens"]) == {"p50", "p90", "p95", "p99"}
        assert set(result["ttft_ms"]) == {"p50", "p90", "p95", "p99"}
        assert result["capacity_model"] == "cache"
        policy = next(one for one in POLICIES if one.name == result["policy"])
        assert set(result["params"]) == {parameter.name for parameter in policy.parameters}
        assert result["hindsight"] == policy.hindsight


def test_the_numbers_are_the_hand_computed_ones(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """LRU keeps the stranger's block, the optimum does not; TTFT is 10 ms and 1 ms a token."""
    document = simulated(
        capsys,
        trace,
        *options,
        *("--policies", "lru,belady", "--capacity-blocks", "1,2,3", "--slo", "1s"),
    )
    lru, belady = by_policy(document, "lru"), by_policy(document, "belady")
    assert [lru[at]["token_hit_rate"] for at in (1, 2, 3)] == pytest.approx([0, 1 / 7, 2 / 7])
    assert [belady[at]["hit_tokens"] for at in (1, 2, 3)] == [BLOCK, 2 * BLOCK, 2 * BLOCK]
    assert lru[3]["ttft_ms"] == {"p50": 1034, "p90": 1034, "p95": 1034, "p99": 1034}
    assert lru[1]["uncached_tokens"]["p99"] == 4 * BLOCK
    assert lru[1]["ttft_ms"]["p99"] == 10 + 4 * BLOCK
    assert lru[3]["tel_ms"] == pytest.approx(34 + 34)
    assert lru[3]["violations"] == 2
    assert lru[3]["request_hit_rate"] == pytest.approx(1 / 3)
    assert lru[3]["misses"]["evicted_tokens"] == 0
    assert lru[1]["misses"]["evicted_tokens"] == 2 * BLOCK
    (category,) = lru[3]["categories"][-1:]
    assert category["requests"] + sum(one["requests"] for one in lru[3]["categories"][:-1]) == 3


def test_sizes_follow_the_model(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """Vicuna-7B keeps 524,288 bytes a token: a block of 512 is 256 MiB."""
    document = simulated(
        capsys,
        trace,
        *options,
        *("--policies", "lru", "--model", "vicuna-7b", "--capacity", "512MiB,768MiB"),
    )
    assert [one["capacity_blocks"] for one in document["results"]] == [2, 3]
    assert [one["capacity_bytes"] for one in document["results"]] == [2**29, 3 * 2**28]
    assert [one["capacity_tokens"] for one in document["results"]] == [2 * BLOCK, 3 * BLOCK]


def test_points_end_where_lru_loses_nothing(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """The largest capacity of a spread gives LRU its ideal hit rate; it is added to those named."""
    document = simulated(capsys, trace, *options, "--policies", "lru", "--points", "3")
    assert document["results"][-1]["capacity_blocks"] == 3
    assert document["results"][-1]["token_hit_rate"] == pytest.approx(2 / 7)
    both = ("--points", "1", "--capacity-blocks", "1")
    more = simulated(capsys, trace, *options, "--policies", "lru", *both)
    assert [one["capacity_blocks"] for one in more["results"]] == [1, 3]


def test_parameters_take_units_and_make_variants(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Every combination of the values given is replayed; the others are as found or as declared."""
    document = simulated(
        capsys,
        trace,
        *options,
        *("--policies", "tlru,ttl", "--capacity-blocks", "2", "--slo", "1s"),
        *("--param", "tlru.next_prompt_tokens=0,1k", "--param", "tlru.leaves=leaf,any"),
        *("--param", "ttl.ttl_s=500ms,10m"),
    )
    tlru = [one for one in document["results"] if one["policy"] == "tlru"]
    assert {(one["params"]["next_prompt_tokens"], one["leaves"]) for one in tlru} == {
        (0, "leaf"),
        (0, "any"),
        (1000, "leaf"),
        (1000, "any"),
    }
    assert {one["params"]["xi_tokens"] for one in tlru} == {990}
    ttl = [one for one in document["results"] if one["policy"] == "ttl"]
    assert [one["params"]["ttl_s"] for one in ttl] == [0.5, 600]
    assert [one["hit_tokens"] for one in ttl] == [0, BLOCK]


def test_what_follows_from_the_slo_is_said(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """The xi that an SLO gives is told on stderr, unless one was chosen."""
    asked = ["simulate", trace, *options, "--capacity-blocks", "2", "--slo", "1s"]
    assert run([*asked, "--policies", "tlru"]) == 0
    assert "xi_tokens is 990, what by hand computes in 1000 ms" in capsys.readouterr().err
    assert run([*asked, "--policies", "tlru", "--param", "tlru.xi_tokens=5"]) == 0
    assert "xi_tokens is" not in capsys.readouterr().err


def test_other_tools_definitions_are_reproduced(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """libCacheSim counts all blocks; kvcache-simulator the last half of the requests' tokens."""
    asked = (trace, *options, "--policies", "lru", "--capacity-blocks", "3")
    flat = simulated(capsys, *asked, "--compat", "libcachesim")["results"][0]
    assert flat["block_hit_rate"] == pytest.approx(2 / 7)
    assert flat["misses"] is None
    half = simulated(capsys, *asked, "--compat", "kvcache-simulator")["results"][0]
    assert half["token_hit_rate"] == pytest.approx(2 / 5)


def test_tenants_apart_share_nothing(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """With a salt for each conversation, the later turn still hits its own; users are not known."""
    asked = (trace, *options, "--policies", "lru", "--capacity-blocks", "3")
    apart = simulated(capsys, *asked, "--isolate", "conversation")
    assert apart["isolate"] == "conversation"
    assert apart["results"][0]["hit_tokens"] == 2 * BLOCK
    assert run(["simulate", *asked, "--isolate", "user"]) == 3
    assert "names no users" in capsys.readouterr().err


def test_a_sample_says_its_error(options: tuple[str, ...], capsys: Streams) -> None:
    """A sampled run has an error, an exact one none, and the exact one lies within it."""
    asked = ("sample_traces/to-c.jsonl.gz", *options[:2], "--policies", "lru,fifo")
    at = ("--capacity-blocks", "20000")
    exact = simulated(capsys, *asked, *at)["results"]
    part = simulated(capsys, *asked, *at, "--sample", "50%")["results"]
    for whole, estimate in zip(exact, part, strict=True):
        assert whole["hit_rate_error"] is None
        gap = abs(whole["token_hit_rate"] - estimate["token_hit_rate"])
        assert gap <= estimate["hit_rate_error"]
        assert estimate["queued_ttft_ms"] is None
        assert estimate["requests"] < whole["requests"]


def test_coarser_blocks_say_their_error(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Two blocks as one: all requests stay, the rate is an estimate, and 2 blocks hold one."""
    asked = (trace, *options, "--policies", "lru", "--capacity-blocks", "4")
    document = simulated(capsys, *asked, "--coarsen", "2")
    (result,) = document["results"]
    assert document["coarsen"] == 2
    assert result["requests"] == 3
    assert result["token_hit_rate"] == pytest.approx(2 / 7)
    assert result["hit_rate_error"] is not None
    assert result["queued_ttft_ms"] is not None


def test_an_engine_gives_running_requests_their_blocks(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """The last request's four blocks and its output do not fit into four; in five they do."""
    asked = (trace, *options, "--policies", "lru", "--capacity-model", "engine")
    document = simulated(capsys, *asked, "--capacity-blocks", "4,5", "--slo", "1s")
    assert (document["max_num_seqs"], document["max_num_batched_tokens"]) == (128, 2048)
    small, large = document["results"]
    assert {one["capacity_model"] for one in document["results"]} == {"engine"}
    assert (small["turned_away"], large["turned_away"]) == (1, 0)
    assert small["hit_tokens"] == 0
    assert large["hit_tokens"] == 2 * BLOCK
    assert large["preemptions"] == 0
    assert small["queued_ttft_ms"]["p99"] > 0
    kept = simulated(capsys, trace, *options, "--policies", "lru", "--capacity-blocks", "5")
    assert kept["results"][0]["capacity_model"] == "cache"
    assert run(["runs", *options[:2], "--policy", "lru"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Capacity is an engine's block pool" in told
    assert "at most 128 at once, 2,048 tokens a step" in told
    assert "Capacity bounds what is kept between requests" in told


def test_the_usual_policies_are_those_that_a_model_can_run(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Without names, and for all, the others are left out; the page still has its tables."""
    at = ("--capacity-blocks", "6", "--capacity-model", "engine")
    usual = simulated(capsys, trace, *options, *at)["results"]
    assert [one["policy"] for one in usual] == ["lru", "tlru", "wa"]
    tiers = ("--tiers", "hbm=2blocks,dram=9blocks:read=1GB/s", "--model", "vicuna-7b")
    every = simulated(capsys, trace, *options, *tiers, "--policies", "all")["results"]
    assert {"lru", "tlru"} <= {one["policy"] for one in every} < {one.name for one in POLICIES}


def test_tiers_tell_what_each_gave_and_cost(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Of the last turn's two blocks HBM has one; the other, 256 MiB, is read at 1 GiB/s."""
    tiers = "hbm=2blocks, dram=9blocks:read=1GiB/s:latency=1s"
    asked = (trace, *options, "--policies", "lru", "--model", "vicuna-7b", "--tiers", tiers)
    for mode, dram_hits in (("exclusive", 1), ("write-through", 1)):
        document = simulated(capsys, *asked, "--tier-mode", mode)
        assert document["tier_mode"] == mode
        (result,) = document["results"]
        hbm, dram = result["tiers"]
        assert (hbm["name"], dram["name"]) == ("hbm", "dram")
        assert (hbm["capacity_bytes"], result["capacity_blocks"]) == (2**29, 11)
        assert hbm["hit_tokens"] + dram["hit_tokens"] == result["hit_tokens"] == 2 * BLOCK
        assert dram["hit_tokens"] == dram_hits * BLOCK
        assert dram["token_hit_rate"] == pytest.approx(dram_hits / 7)
        assert (hbm["transfer_ms"], dram["transfer_ms"]) == (0, pytest.approx(1250))
        assert result["ttft_ms"]["p99"] == pytest.approx(1034 + 1250)
        assert simulated(capsys, *asked, "--tier-mode", mode)["results"] == [result]


def test_tiers_have_a_table(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """A row a tier, with its hit rate and the wait; the summary names the tiers."""
    tiers = ["--tiers", "hbm=2blocks,dram=9blocks:read=1GiB/s", "--model", "vicuna-7b"]
    assert run(["simulate", trace, *options, *tiers, "--policies", "lru"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Capacity is that of hbm=2blocks,dram=9blocks:read=1GiB/s together, exclusive." in told
    assert "Hits by tier" in told
    assert "lru dram 9 2.25 GiB 512 14.29% 83.3ms" in told


def test_the_same_run_is_not_repeated(
    trace: str, options: tuple[str, ...], capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store has is found, whatever else is asked beside it; other sources repeat it."""
    asked = (trace, *options, "--policies", "lru")
    first = simulated(capsys, *asked, "--capacity-blocks", "1,2")
    replayed: list[int] = []
    replay = Workload.run

    def counted(workload: Workload, one: Asked) -> Run:
        replayed.append(one.capacity_blocks)
        return replay(workload, one)

    monkeypatch.setattr(Workload, "run", counted)
    again = simulated(capsys, *asked, "--capacity-blocks", "1,2,3")
    assert again["results"][:2] == first["results"]
    assert replayed == [3]
    simulated(capsys, *asked, "--capacity-blocks", "1", "--slo", "1s")
    assert replayed == [3, 1]
    monkeypatch.setattr(kept, "sources_digest", lambda: "another")
    simulated(capsys, *asked, "--capacity-blocks", "1,2")
    assert replayed == [3, 1, 1, 2]


def test_ctrl_c_keeps_what_is_finished(
    trace: str, options: tuple[str, ...], capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interrupt the runs under way end, no other starts, and all of them are kept."""
    interrupted = Event()
    replay, keep = Workload.run, stored.add

    def held_back(workload: Workload, one: Asked) -> Run:
        if one.capacity_blocks > 1:  # the second of them waits for the interrupt
            assert interrupted.wait(60)
        return replay(workload, one)

    def interrupting(*arguments: Any) -> Run:
        run = keep(*arguments)
        if not interrupted.is_set():
            signal.raise_signal(signal.SIGINT)
            interrupted.set()
        return run

    monkeypatch.setattr(Workload, "run", held_back)
    monkeypatch.setattr(stored, "add", interrupting)
    monkeypatch.setattr(sweep, "cores", lambda: 1)
    before = signal.getsignal(signal.SIGINT)
    asked = ["simulate", trace, *options, "--policies", "lru", "--json"]
    assert run([*asked, "--capacity-blocks", "1,2,3,4,5,6"]) == 130
    assert signal.getsignal(signal.SIGINT) is before
    written = capsys.readouterr()
    assert [one["capacity_blocks"] for one in json.loads(written.out)["results"]] == [1, 2]
    assert "2 of 6 runs are finished and kept" in written.err
    assert run(["runs", *options[:2], "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)["runs"]
    assert [one["capacity_blocks"] for one in kept] == [1, 2]


def test_the_first_screen_says_who_wins(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Hit rate, tail and what the optimum leaves, with the capacity in every unit."""
    asked = ["simulate", trace, *options, "--capacity-blocks", "2", "--slo", "1s"]
    assert run([*asked, "--model", "vicuna-7b", "--policies", "lru,tlru,belady"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Best hit rate without knowing the future: lru at 1 of 1 capacity." in told
    assert "The optimum would hit +14.3 pp beyond the best of them." in told
    assert "2 1,024 0.5 GiB lru 14.3% 14.3% +0.0 pp 28.6% +14.3 pp" in told
    assert "At 2 blocks, 1,024 tokens, 0.5 GiB" in told
    assert "belady* 28.57%" in told
    assert "knows the future" in told


def test_the_report_is_one_file(
    trace: str, options: tuple[str, ...], tmp_path: Path, capsys: Streams
) -> None:
    """`--html` writes the page beside the terminal's report."""
    target = tmp_path / "policies.html"
    asked = ["simulate", trace, *options, "--policies", "lru,belady", "--capacity-blocks", "2"]
    assert run([*asked, "--html", str(target)]) == 0
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert f"report written to {target}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--policies", "lru,tlur"], 2, "--policies: unknown policy 'tlur'; did you mean tlru?"),
        (["--param", "tlru.xi_token=2"], 2, "--param tlru.xi_token: tlru has no parameter"),
        (["--param", "tlru.xi_token=2"], 2, "did you mean xi_tokens?"),
        (["--param", "tlru.xi_tokens=2s"], 2, "--param tlru.xi_tokens: '2s' is not a number"),
        (["--param", "slru.protected_uses=2"], 2, "add slru to --policies"),
        (["--param", "tlru"], 2, "write for example tlru.xi_tokens=2000"),
        (["--param", "tlru.leaves=all"], 2, "take leaf or any"),
        (["--param", "tlru.xi_percentile=95"], 2, "p95"),
        (["--capacity", "1GiB"], 2, "--capacity: bytes need a model; name one with --model"),
        (["--capacity", "1KiB", "--model", "vicuna-7b"], 2, "a block of vicuna-7b takes 0.25 GiB"),
        (["--kv-dtype", "fp8"], 2, "--kv-dtype: needs a model"),
        (["--latency", "llama2-7b-a10"], 2, "--latency: no latency profile"),
        (["--slo", "200"], 2, "200ms"),
        (["--rate-scale", "0"], 2, "--rate-scale: not above 0"),
        (["--points", "0"], 2, "--points"),
        (["--sample", "0%"], 2, "--sample"),
        (["--compat", "libcachesim", "--warmup", "20%"], 2, "leave out --outputs and --warmup"),
        (["--coarsen", "0"], 2, "--coarsen"),
        (["--max-num-seqs", "4"], 2, "--max-num-seqs: only an engine has it; add --capacity-model"),
        (["--max-num-batched-tokens", "4"], 2, "--max-num-batched-tokens: only an engine has it"),
        (["--capacity-model", "engine", "--policies", "lfu"], 2, "--policies: lfu cannot order"),
        (["--capacity-model", "engine", "--policies", "lfu"], 2, "an engine; take lru, thr"),
        (["--capacity-model", "engine", "--sample", "50%"], 2, "leave out --sample and --coarsen"),
        (["--capacity-model", "engine", "--outputs", "ignored"], 2, "leave out --compat and --out"),
        (["--tier-mode", "exclusive"], 2, "--tier-mode: needs tiers; add --tiers"),
        (["--tiers", "hbm=4blocks", "--capacity-blocks", "4"], 2, "--tiers: tiers have capacities"),
        (["--tiers", "hbm=4blocks", "--points", "4"], 2, "leave out --capacity"),
        (["--tiers", "hbm=4blocks", "--capacity-model", "engine"], 2, "replayed without tiers"),
        (["--tiers", "hbm=4blocks", "--sample", "50%"], 2, "--tiers: tiers are not replayed on a"),
        (["--tiers", "hbm=4blocks", "--policies", "belady"], 2, "blocks of exclusive tiers; take"),
        (["--tiers", "hbm=4GiB"], 2, "--tiers hbm: bytes need a model"),
        (["--tiers", "hbm=4blocks,dram=4blocks"], 2, "name a model with --model"),
        (["--tiers", "hbm"], 2, "--tiers: 'hbm' is no tier; write for example hbm=40GiB"),
    ],
)
def test_mistakes_get_one_line_and_an_exit_code(
    arguments: list[str],
    code: int,
    message: str,
    trace: str,
    options: tuple[str, ...],
    capsys: Streams,
) -> None:
    """Every mistake is told in one line with its place, its value and a remedy."""
    assert run(["simulate", trace, *options, *arguments]) == code
    written = capsys.readouterr()
    assert written.out == ""
    assert message in written.err.splitlines()[-1]


def test_lengths_cannot_be_replayed(
    tmp_path: Path, options: tuple[str, ...], capsys: Streams
) -> None:
    """A trace without hashes is refused as input, with the reason."""
    path = tmp_path / "lengths.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    assert run(["simulate", str(path), *options]) == 3
    assert "tells lengths only" in capsys.readouterr().err


def test_refit_is_for_those_who_fit(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """`--refit` reaches wa and nobody else; what --param says stands."""
    at = ("--capacity-blocks", "4", "--policies", "lru,wa")
    usual = simulated(capsys, trace, *options, *at)["results"]
    assert [one["params"].get("refit_s") for one in usual] == [None, 600]
    soon = simulated(capsys, trace, *options, *at, "--refit", "2m")["results"]
    assert [one["params"].get("refit_s") for one in soon] == [None, 120]
    named = (*at, "--refit", "2m", "--param", "wa.refit_s=1h")
    assert simulated(capsys, trace, *options, *named)["results"][1]["params"]["refit_s"] == 3_600
    assert run(["simulate", trace, *options, *at, "--refit", "5s"]) == 2
    assert "--refit: 5s is outside [1m, " in capsys.readouterr().err
