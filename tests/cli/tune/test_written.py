"""recommendation.toml, by every option that changes it: what is read is what was recommended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kvscope
from kvscope.cli.app import run
from kvscope.tuning.file import read_recommendation
from tests.cli.replayed import write_profile
from tests.cli.shell import Streams, streams_of
from tests.cli.tune.asked import DEPLOYED, HERE, document

pytestmark = pytest.mark.usefixtures("tuned_once")
GITTINS = ("--policy", "gittins")


@pytest.mark.parametrize(
    "more",
    [
        HERE,
        ("--max-violations", "7.5%", "--view", "queued", "--param", "tlru.ttl_s=inf", *HERE),
        ("--model", "llama3-8b", "--capacity", "700MiB"),
        ("--isolate", "conversation", *HERE),
        (*DEPLOYED, "--replicas", "2", "--tpot-slo", "50ms"),
        (*DEPLOYED, "--engine", "sglang"),
        ("--capacity-blocks", "100"),  # too little: LRU, or another capacity
        ("--slo", "20ms", *HERE),
        (*GITTINS, *HERE),
    ],
    ids=" ".join,
)
def test_the_file_is_what_was_recommended(
    trace: str, options: tuple[str, ...], capsys: Streams, more: tuple[str, ...]
) -> None:
    """Target, policy, capacity and latency, by `read_recommendation`."""
    slo = () if "--slo" in more else ("--slo", "200ms")
    base = options[:-2] if "--policy" in more else options
    printed = document(capsys, trace, *base, *slo, *more)
    best, target = printed["recommendation"], printed["target"]
    read = read_recommendation(Path("recommendation.toml"))
    assert read.verdict == best["verdict"]
    assert (read.policy.name, read.policy.evicts) == (best["policy"], best["leaves"])
    params = {name: value for name, value in best["params"].items() if name != "xi_ms"}
    finite = {name: value for name, value in read.policy.values.items() if name in params}
    assert {name: value for name, value in finite.items() if params[name] is not None} == {
        name: value for name, value in params.items() if value is not None
    }
    assert read.capacity_tokens == best["capacity_tokens"]
    assert read.target.slo_s * 1e3 == target["slo_ms"]
    assert read.target.percentile == target["percentile"]
    tpot_slo_s = read.target.tpot_slo_s
    assert (None if tpot_slo_s is None else tpot_slo_s * 1e3) == target["tpot_slo_ms"]
    assert (read.target.measure, read.target.view) == (target["measure"], target["view"])
    assert read.profile.base_s == 0.010
    assert (read.fitted is None) == (read.policy.learner != "returns")
    flags = {engine: text for engine, text in best["flags"].items() if text is not None}
    assert read.flags == flags
    assert bool(flags) == (not best["why_no_flags"])
    if read.deployment is None:
        assert printed["deployment"] is None
        assert not flags
    else:
        assert read.deployment.summary == printed["deployment"]["summary"]
        assert read.deployment.replicas == printed["replicas"]
        assert read.deployment.max_num_seqs == printed["deployment"]["max_num_seqs"]


def test_a_switch_is_not_replaced_by_another_verdict(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Without --force it stays, the note says so and the exit code is 0; a new switch replaces."""
    path = Path("recommendation.toml")
    switch = ("tune", trace, *options, "--slo", "200ms", *HERE)
    keep = ("tune", trace, *options, "--slo", "200ms", "--capacity-blocks", "1000")
    assert run([*keep]) == 0
    assert read_recommendation(path).verdict == "keep-lru"
    assert run([*switch]) == 0  # a stronger verdict replaces a weaker one
    assert read_recommendation(path).verdict == "switch"
    capsys.readouterr()
    written = path.read_bytes()
    assert "replace it with --force" in streams_of(capsys, *keep).err
    assert path.read_bytes() == written
    tuned = kvscope.tune(
        trace, slo="200ms", latency=options[3], policy="tlru", capacity_blocks=1000
    )
    tuned.save(path)
    assert path.read_bytes() == written
    tuned.save(path, force=True)
    assert read_recommendation(path).verdict == "keep-lru"
    assert run([*switch]) == 0
    assert run([*keep, "--force"]) == 0
    assert read_recommendation(path).verdict == "keep-lru"


def test_a_file_that_cannot_be_written_leaves_the_one_before(
    trace: str, options: tuple[str, ...], capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new content never takes the name, and no temporary file stays behind."""
    Path("recommendation.toml").write_text("# Written by kvscope before", encoding="utf-8")
    names = sorted(path.name for path in Path().iterdir())

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert run(["tune", trace, *options, "--slo", "200ms", *HERE]) != 0
    assert "the disk is full (" in capsys.readouterr().err
    assert Path("recommendation.toml").read_text(encoding="utf-8") == "# Written by kvscope before"
    left = {path.name for path in Path().iterdir()} - {"k.duckdb", "k.duckdb.wal"}
    assert left <= set(names)


HYBRID = {
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "torch_dtype": "bfloat16",
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
}


def test_a_switch_without_flags_is_not_written(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """An engine would run what the file says; a hybrid model's hits are not simulated."""
    monkeypatch.chdir(tmp_path)
    profile = str(write_profile(tmp_path))
    options = ("--db", str(tmp_path / "k.duckdb"), "--latency", profile, "--policy", "tlru")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(HYBRID))
    hybrid = (*options, *DEPLOYED[4:], "--model", str(config), "--slo", "200ms")
    printed = streams_of(capsys, "tune", trace, *hybrid, "--json")
    best = json.loads(printed.out)["recommendation"]
    assert (best["verdict"], best["flags"]) == ("switch", {"sglang": None, "vllm": None})
    assert "has layers of several kinds" in best["why_no_flags"]
    assert "recommendation.toml was not written (--force writes it)" in printed.err
    assert not Path("recommendation.toml").exists()
    assert run(["tune", trace, *hybrid, "--force"]) == 0
    assert Path("recommendation.toml").exists()
