"""What `kvscope simulate` keeps, and what it refuses in one line."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from kvscope.app import simulate
from kvscope.cli.app import run
from kvscope.core import executor
from kvscope.core.runs import Run
from kvscope.replay import run_cache as kept
from kvscope.replay import sweep
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.store import results
from tests.cli.replayed import simulated

Streams = pytest.CaptureFixture[str]


def test_the_same_run_is_not_repeated(
    trace: str, options: tuple[str, ...], capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store has is found, whatever else is asked beside it; other sources repeat it."""
    asked = (trace, *options, "--policies", "lru")
    first = simulated(capsys, *asked, "--capacity-blocks", "1,2")
    replayed: list[int] = []
    replay = sweep.make_run

    def counted(workload: Workload, one: ReplayRequest) -> Run:
        replayed.append(one.capacity_blocks)
        return replay(workload, one)

    monkeypatch.setattr(sweep, "make_run", counted)
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
    replay, keep = sweep.make_run, results.add_run

    def held_back(workload: Workload, one: ReplayRequest) -> Run:
        if one.capacity_blocks > 1:  # the second of them waits for the interrupt
            assert interrupted.wait(60)
        return replay(workload, one)

    def interrupting(*arguments: Any) -> Run:
        run = keep(*arguments)
        if not interrupted.is_set():
            signal.raise_signal(signal.SIGINT)
            interrupted.set()
        return run

    monkeypatch.setattr(sweep, "make_run", held_back)
    monkeypatch.setattr(results, "add_run", interrupting)
    monkeypatch.setattr(executor, "cores", lambda: 1)
    monkeypatch.setattr(simulate, "STORE_EVERY_S", -1.0)  # each run as it ends
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


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--policies", "lru,tlur"], 2, "--policies: unknown policy 'tlur'; did you mean tlru?"),
        (["--policies", "tlru-learned"], 2, "tlru-learned was removed; take gittins instead"),
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
        (["--policies", "lru,TTL"], 2, "--policies: ttl needs ttl_s: "),
        (["--rate-scale", "0"], 2, "--rate-scale: not above 0"),
        (["--points", "0"], 2, "--points"),
        (["--sample", "0%"], 2, "--sample"),
        (["--sample", "5%"], 2, "--sample 0.05: no error can be stated below 10%"),
        (["--sample", "50%", "--policies", "lru,sieve"], 2, "does not show what sieve does"),
        (["--coarsen", "2", "--policies", "lru,sieve"], 2, "--policies, --coarsen: "),
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
        (
            ["--tiers", "hbm=4blocks,ssd=4blocks:write=1GB/s"],
            2,
            "leave out write, or add --offload",
        ),
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
    assert "has only lengths" in capsys.readouterr().err


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
