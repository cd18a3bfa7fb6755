"""recommendation.toml: what is read is what was written, and what is wrong is said in one line."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.core.errors import ExitCode, InputError
from kvscope.latency.profile import LatencyProfile
from kvscope.learning.returns.file import FittedReturns
from kvscope.learning.returns.formulas import PARTS, ROWS
from kvscope.policies.base import Policy
from kvscope.policies.gittins import AGES, Gittins
from kvscope.policies.registry import POLICIES, by_name
from kvscope.replay.tier_spec import READS, SharedPool, parse_tiers
from kvscope.tuning.bootstrap import Bootstrap
from kvscope.tuning.comparison import Canary
from kvscope.tuning.file import (
    AddedTier,
    EngineTable,
    MemoryTable,
    RecommendationFile,
    TierTable,
    read_recommendation,
    verdict_in,
    why_kept,
    write_recommendation,
)
from kvscope.tuning.flags import EngineLaunch, Flags, flags
from kvscope.tuning.rule import Verdict
from kvscope.tuning.target import Target
from kvscope.tuning.tiers import TierCandidate, TierOffer
from kvscope.tuning.tuner import TuningResult
from kvscope.validate.validate import recommended_run
from kvscope.vllm_plugin.settings import read_settings as plugin_settings
from tests.tuning.answered import BLOCK_BYTES
from tests.tuning.examples import BLOCK, PROFILE, in_turn, tuned
from tests.tuning.test_tiers import CHEAP_SSD, POOL, SIZES, WHOLE, result_of

CONTENDERS = [one for one in POLICIES if not one.hindsight]


@pytest.fixture(scope="module")
def found() -> TuningResult:
    """Return a switch to tlru."""
    return tuned(in_turn(), 0.2, capacity_blocks=350)


def _with(found: TuningResult, policy: Policy, capacity: int, target: Target) -> TuningResult:
    recommended = replace(found.recommended, policy=policy, capacity_blocks=capacity)
    return replace(found, recommended=recommended, target=target)


def _round(
    path: Path, found: TuningResult, trace: str = "a", profile: LatencyProfile = PROFILE
) -> RecommendationFile:
    best = found.recommended
    write_recommendation(
        path,
        found,
        trace=trace,
        block_size=BLOCK,
        profile=profile,
        flags=flags(best.policy, EngineLaunch(BLOCK, best.capacity_blocks)),
        capacity_bytes=12,
    )
    return read_recommendation(path)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Any policy that can run, any values that it takes, infinity included."""
    kind = draw(st.sampled_from(CONTENDERS))
    values = {
        one.name: draw(st.floats(one.low, one.high, allow_nan=False))
        for one in kind.parameters
        if draw(st.booleans())
    }
    if values.get("xi_percentile"):
        values.pop("guard", None)  # which needs a fixed xi
    return kind(values, draw(st.sampled_from([None, kind.leaves, *kind.offers])))


@settings(deadline=None, max_examples=200)
@given(
    policy=policies(),
    capacity=st.integers(0, 2**40),
    slo_s=st.floats(1e-6, 1e5),
    percentile=st.floats(0.001, 0.999),
    measure=st.sampled_from(["percentile", "violations"]),
    view=st.sampled_from(["unloaded", "queued"]),
    trace=st.text(st.characters(codec="utf-8"), max_size=20),
    base_s=st.floats(0, 10),
    per_token_s=st.floats(1e-12, 1),
    floor_s=st.floats(0, 1),
    decode_s=st.none() | st.floats(0, 1),
)
def test_what_is_read_is_what_was_written(
    found: TuningResult,
    tmp_path_factory: pytest.TempPathFactory,
    policy: Policy,
    capacity: int,
    slo_s: float,
    percentile: float,
    measure: Any,
    view: Any,
    trace: str,
    base_s: float,
    per_token_s: float,
    floor_s: float,
    decode_s: float | None,
) -> None:
    """To the last digit: policy, leaves, values, capacity, target, latency, strange names."""
    target = Target(slo_s, percentile, measure, view)
    profile = LatencyProfile(
        *(trace or "p", trace, base_s, per_token_s, per_token_s / 3),
        floor_s=floor_s,
        request_s=base_s / 2,
        decode_base_s=decode_s,
        decode_request_s=floor_s / 3,
        decode_context_token_s=floor_s / 7,
        measured_tokens=capacity,
    )
    made = _with(found, policy, capacity, target)
    path = tmp_path_factory.getbasetemp() / "recommendation.toml"
    read = _round(path, made, trace, profile)
    assert type(read.policy) is type(policy)
    assert read.policy.values == policy.values
    assert read.policy.evicts == policy.evicts
    assert read.capacity_tokens == capacity * BLOCK
    assert read.target == target
    assert read.profile == profile
    assert (read.trace, read.verdict) == (trace, "switch")


def test_a_fit_goes_along(found: TuningResult, tmp_path: Path) -> None:
    """For a policy with a table of returns; the plugin finds it where it finds the policy."""
    fit = FittedReturns(np.full((ROWS, AGES), 0.25), 7, refits=True)
    path = tmp_path / "recommendation.toml"
    policy = Gittins({"xi_tokens": 512})
    write_recommendation(
        path,
        _with(found, policy, 350, Target(0.2, 0.95)),
        trace="a",
        block_size=BLOCK,
        profile=PROFILE,
        flags=flags(policy, EngineLaunch(BLOCK, 350)),
        fitted=fit,
    )
    read = read_recommendation(path)
    assert isinstance(read.fitted, FittedReturns)
    assert np.array_equal(read.fitted.index, fit.index)
    assert (read.fitted.requests, read.fitted.refits) == (7, True)
    plugin = plugin_settings({}, {"KVSCOPE_RECOMMENDATION": str(path)})
    assert plugin.policy is not None
    assert plugin.policy.values == policy.values
    assert plugin.fitted is not None
    assert recommended_run(read, path, overlapped=False).fitted is read.fitted
    assert "KvscopeScheduler" in path.read_text(encoding="utf-8")


def test_the_deployment_and_the_canary_go_along(found: TuningResult, tmp_path: Path) -> None:
    """[deployment] reads back field by field; [canary] is for people, and for what watches it."""
    path = tmp_path / "recommendation.toml"
    where = EngineTable("2x h100, llama3-70b", "vllm@0.33", 4, 256, 8192)
    best = found.recommended
    plan = Canary("p95", 2, 7.5, 1_234.0)
    for canary, expected in (
        (plan, {"figure": "p95", "replicas": 2, "hours": 7.5, "requests_per_hour": 1_234.0}),
        (Canary("p95", None, None, 5.0), {"figure": "p95", "requests_per_hour": 5.0}),
        (None, None),
    ):
        write_recommendation(
            path,
            replace(found, canary=canary),
            trace="a",
            block_size=BLOCK,
            profile=PROFILE,
            flags=flags(best.policy, EngineLaunch(BLOCK, None, ("--max-num-seqs 256",))),
            deployment=where if canary else None,
        )
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        assert document.get("canary") == expected
        read = read_recommendation(path)
        assert read.deployment == (where if canary else None)
        assert read.flags == document["flags"]
        assert read.flags["vllm"].endswith(" --max-num-seqs 256")


def test_the_canary_of_a_switch_is_written(found: TuningResult, tmp_path: Path) -> None:
    """On the figure that decides, at the rate of requests of both later windows."""
    path = tmp_path / "recommendation.toml"
    _round(path, found)
    table = tomllib.loads(path.read_text(encoding="utf-8"))["canary"]
    assert (table["figure"], table["replicas"]) == ("p95", 1)
    assert table["requests_per_hour"] == pytest.approx(3_600 * 240 / 239)
    kept = tuned(in_turn(), 0.2, capacity_blocks=1_000)
    _round(path, kept)
    assert kept.canary is None
    assert "canary" not in tomllib.loads(path.read_text(encoding="utf-8"))


def test_the_verdict_of_a_file(found: TuningResult, tmp_path: Path) -> None:
    """As written; nothing where there is no file, or one that is no TOML or has no verdict."""
    path = tmp_path / "recommendation.toml"
    assert verdict_in(path) == ""
    for verdict in get_args(Verdict):
        _round(path, replace(found, verdict=verdict))
        assert verdict_in(path) == verdict
        assert read_recommendation(path).verdict == verdict
    for content in (b"\xff", b"= 1", b"schema = 1", b"x = " + b"[" * 20_000):
        path.write_bytes(content)
        assert verdict_in(path) == ""


def test_people_can_read_it(found: TuningResult, tmp_path: Path) -> None:
    """Comments, the gain with its interval, the flags, the expected figures; every key is TOML."""
    path = tmp_path / "recommendation.toml"
    _round(path, found)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Written by kvscope")
    assert "# verdict: switch, keep-lru, add-capacity, unreachable or overloaded." in text
    document = tomllib.loads(text)
    assert document["schema"] == 1
    assert document["target"]["slo_ms"] == 200
    best = found.recommended
    gain = best.gains["p95"]
    assert document["gain"]["p95"] == [gain.value, gain.low, gain.high]
    assert document["expected"]["recommended"]["p95_ms"] == best.outcome.ttft_ms.p95
    assert document["expected"]["lru"]["p95_ms"] == found.baseline.outcome.ttft_ms.p95
    assert document["capacity"] == {
        "tokens": 350 * BLOCK,
        "blocks": 350,
        "block_size": BLOCK,
        "bytes": 12,
    }
    assert document["flags"]["sglang"].startswith(
        """--radix-eviction-policy tlru --radix-eviction-policy-config '{"threshold":"""
    )
    assert "KvscopeScheduler" in document["flags"]["vllm"]


def test_a_percentile_with_a_point_reads_back(found: TuningResult, tmp_path: Path) -> None:
    """The gain of p99.9 is a key with a point in it."""
    target = Target(0.2, 0.999)
    bootstrap = Bootstrap(np.arange(120, dtype=np.int32) % 20, target)
    slow, fast = (
        bootstrap.figures(judged.ttft_s) for judged in (found.baseline, found.recommended)
    )
    gains = bootstrap.gains(slow, fast)
    made = _with(found, found.recommended.policy, 350, target)
    made = replace(made, recommended=replace(made.recommended, gains=gains))
    path = tmp_path / "recommendation.toml"
    assert _round(path, made).target == target
    assert set(gains) == {"p50", "p90", "p95", "p99", "p99.9", "violations", "tel"}
    assert set(tomllib.loads(path.read_text(encoding="utf-8"))["gain"]) == set(gains)


def test_unknown_intervals_and_infinite_values_are_toml(
    found: TuningResult, tmp_path: Path
) -> None:
    """Few conversations give no interval; a policy's values may be infinite."""
    few = tuned(in_turn(8, 60), 0.2, capacity_blocks=140)
    shown = replace(few, recommended=few.contenders[0].held_out)
    path = tmp_path / "recommendation.toml"
    _round(path, shown)
    value, low, high = tomllib.loads(path.read_text(encoding="utf-8"))["gain"]["p95"]
    assert value > 0
    assert (low, high) == (-math.inf, math.inf)


GOOD = """schema = 1
trace = "t"
verdict = "switch"
[target]
slo_ms = 200
percentile = 0.95
[policy]
name = "tlru"
params = { xi_tokens = 2048 }
[capacity]
tokens = 16000
[latency]
schema = 1
name = "n"
source = "s"
base_ms = 10
per_token_ms = 1
"""


def test_the_least_that_is_needed(tmp_path: Path) -> None:
    """A file written by hand: what is left out is as the policy and the target have it."""
    path = tmp_path / "r.toml"
    path.write_text(GOOD, encoding="utf-8")
    read = read_recommendation(path)
    assert read.policy.values == by_name("tlru")({"xi_tokens": 2048}).values
    assert read.policy.evicts == "leaf"
    assert read.target == Target(0.2, 0.95)


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        (GOOD, "", "schema"),
        (GOOD, "schema = ", ""),
        (GOOD, "[" * 5_000, ""),
        (GOOD, "schema = " + "9" * 5_000, ""),
        ("schema = 1\ntrace", "schema = 2\ntrace", "schema"),
        ('verdict = "switch"', 'verdict = "swich"', "verdict"),
        ('verdict = "switch"\n', "", "verdict"),
        ("[target]", "[targets]", "target"),
        ("slo_ms = 200\n", "", "target.slo_ms"),
        ("slo_ms = 200", "slo_ms = 0", "target.slo_ms"),
        ("slo_ms = 200", "slo_ms = -1", "target.slo_ms"),
        ("slo_ms = 200", "slo_ms = inf", "target.slo_ms"),
        ("slo_ms = 200", "slo_ms = nan", "target.slo_ms"),
        ("slo_ms = 200", "slo_ms = true", "target.slo_ms"),
        ("slo_ms = 200", 'slo_ms = "200"', "target.slo_ms"),
        ("slo_ms = 200", "slo_ms = [1]", "target.slo_ms"),
        ("slo_ms = 200", "slo_ms = 2020-01-01", "target.slo_ms"),
        ("slo_ms = 200", "slo_ms = 1" + "0" * 400, "target.slo_ms"),
        ("slo_ms = 200", "slo_ms = 1e9999999999999999999", ""),
        ("percentile = 0.95", "percentile = 95", "target.percentile"),
        ("percentile = 0.95", "percentile = 1.0", "target.percentile"),
        ("percentile = 0.95", "percentile = 0.95\nview = 'fast'", "target.view"),
        ("percentile = 0.95", "percentile = 0.95\nmeasure = []", "target.measure"),
        ('name = "tlru"', 'name = "tlruu"', "policy.name"),
        ('name = "tlru"', "name = 5", "policy.name"),
        ('name = "tlru"', 'name = "belady"', "policy.name"),
        ('name = "tlru"', 'name = "tlru"\nleaves = "root"', "tlru.leaves"),
        ('name = "tlru"', 'name = "tlru"\nleaves = [1]', "policy.leaves"),
        ("params = { xi_tokens = 2048 }", "", "policy.params"),
        ("params = { xi_tokens = 2048 }", "params = 3", "policy.params"),
        ("xi_tokens = 2048", "xi_tokens = -1", "tlru.xi_tokens"),
        ("xi_tokens = 2048", "xi_tokens = nan", "policy.params.xi_tokens"),
        ("xi_tokens = 2048", "xi_tokens = 'a'", "policy.params.xi_tokens"),
        ("xi_tokens = 2048", "xi_token = 2048", "tlru.xi_token"),
        ('name = "tlru"', 'name = "tlru"\nparms = 3', "policy.parms"),
        ("percentile = 0.95", "percentile = 0.95\nslo_s = 1", "target.slo_s"),
        ("tokens = 16000", "tokens = 16000\nblock = 1", "capacity.block"),
        ("[latency]", "[gain]\np95 = [1, 2]\n[latency]", "gain.p95"),
        ("[capacity]\ntokens = 16000", "", "capacity"),
        ("tokens = 16000", "tokens = -1", "capacity.tokens"),
        ("tokens = 16000", "tokens = 1.5", "capacity.tokens"),
        ("tokens = 16000", "tokens = true", "capacity.tokens"),
        ("tokens = 16000", "tokens = 1" + "0" * 30, "capacity.tokens"),
        ("base_ms = 10\n", "", "latency.base_ms"),
        ("base_ms = 10", "base_ms = -10", "latency.base_ms"),
        ("per_token_ms = 1", "per_tok_ms = 1", "latency.per_tok_ms"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, old: str, new: str, where: str) -> None:
    """File, key and remedy; never a traceback, and the exit code of unreadable input."""
    refused(tmp_path, GOOD, old, new, where)


def refused(folder: Path, text: str, old: str, new: str, where: str) -> None:
    """Check how a file is refused that has `new` in place of `old`."""
    path = folder / "r.toml"
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_recommendation(path)
    error = caught.value
    assert error.exit_code == ExitCode.INPUT
    assert str(error).startswith(str(path))
    assert where in (error.where or "")
    assert error.remedy


OLD = Path(__file__).parents[1] / "written_before"
"""Files as the first version of the format was written, by hand-made lines of text."""


@pytest.mark.parametrize(("name", "fitted"), [("tlru", None), ("gittins", 1234)])
def test_old_recommendations_are_read(name: str, fitted: int | None) -> None:
    """The same policy, target, latency and fit; and by the plugin too."""
    path = OLD / f"recommendation-{name}.toml"
    read = read_recommendation(path)
    assert (read.trace, read.verdict, read.capacity_tokens) == ('a "trace"', "switch", 5600)
    assert (read.target, read.profile) == (Target(0.2, 0.95), PROFILE)
    assert (read.policy.name, read.policy.evicts) == (name, "leaf")
    assert read.policy.values["xi_tokens"] == (57 if name == "tlru" else 512)
    assert (read.fitted.requests if read.fitted else None) == fitted
    plugin = plugin_settings({}, {"KVSCOPE_RECOMMENDATION": str(path)})
    assert plugin.policy is not None
    assert plugin.policy.values == read.policy.values
    if isinstance(read.fitted, FittedReturns):
        assert read.fitted.refits
        assert read.fitted.evidence is None
        first, second = [0.512, 0.95, 0.144], [0.191, 0.082, 0.855]
        assert read.fitted.index[:6, :3].tolist() == [first] * PARTS + [second]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x00" * 10, None])
def test_what_is_no_text_or_not_there(tmp_path: Path, content: bytes | None) -> None:
    """Bytes that are no UTF-8, and a file that does not exist."""
    path = tmp_path / "r.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"r\.toml.*;"):
        read_recommendation(path)


TIERED = EngineTable("1 x l4", "vllm@0.33", 1, 8, 512)
FLAGS = {"vllm": "--kv-transfer-config '{}'"}


@pytest.fixture(scope="module")
def without_tier() -> TuningResult:
    """Return a tuning that the files below take their figures from."""
    return result_of()


def offer(gpus: int = 1) -> TierOffer:
    """Return memory below the pool."""
    return TierOffer(candidates=SIZES, block_bytes=BLOCK_BYTES, gpus=gpus, prices=CHEAP_SSD)


def rounded(
    path: Path, result: TuningResult, candidate: TierCandidate, gpus: int = 1
) -> RecommendationFile:
    """Return what is read of a recommendation that was written."""
    table = TierTable.of(offer(gpus), candidate, BLOCK)
    write_recommendation(
        path,
        result,
        trace="t",
        block_size=BLOCK,
        profile=PROFILE,
        flags=Flags(None, FLAGS["vllm"]),
        deployment=TIERED,
        added=AddedTier(table, result.baseline, "do-now", None),
    )
    return read_recommendation(path)


@pytest.mark.parametrize(
    "candidate",
    [
        TierCandidate("vllm@0.33", 3 * 2**30),
        TierCandidate("vllm@0.32:eviction_policy=arc", WHOLE + 7, 2**33 + 1),
    ],
)
def test_simulate_finds_pool_and_tier(
    without_tier: TuningResult, tmp_path: Path, candidate: TierCandidate
) -> None:
    """Sizes and times of copies are those of the tuning to the last bit, over all of its GPUs."""
    read = rounded(tmp_path / "recommendation.toml", without_tier, candidate, gpus=3)
    assert (read.verdict, read.trace, read.deployment, read.flags) == ("switch", "t", TIERED, FLAGS)
    assert (read.target, read.profile) == (without_tier.target, PROFILE)
    assert (read.policy.name, read.capacity_tokens) == ("lru", POOL * BLOCK)
    assert read.tier is not None
    assert read.tier.offload == candidate.offload
    assert read.tier.kv_bytes_per_token * BLOCK == BLOCK_BYTES
    pool, *below = parse_tiers(read.tier.tiers(POOL), block_bytes=BLOCK_BYTES)
    assert (pool.name, pool.capacity_blocks) == ("hbm", POOL)
    assert tuple(below) == offer(3).below(candidate).tiers


def test_times_of_copies_are_exact() -> None:
    """Bandwidths that no short number stands for read back as they were."""
    memory = MemoryTable("ssd", 2**40 + 1, 6.5e9 / 3, math.pi * 1e9, 1e-4 / 3)  # type: ignore[arg-type]
    table = TierTable("vllm@0.33", 1, [MemoryTable("dram", 2**30, 25e9, 1e9 / 7, 1e-5), memory])  # type: ignore[arg-type]
    below = parse_tiers(table.tiers(9), block_bytes=1)[1:]
    for tier, stated in zip(below, table.memory, strict=True):
        assert tier.capacity_blocks == stated.bytes
        assert tier.read.bytes_per_s == stated.read_bytes_per_s
        assert tier.write_bytes_per_s == stated.write_bytes_per_s
        assert tier.read.latency_s == pytest.approx(stated.latency_s, rel=1e-15)


def test_a_pool_that_replicas_share(tmp_path: Path, without_tier: TuningResult) -> None:
    """Its link and what leaves it are kept; the link of all is the pool's own."""
    pool = SharedPool(40e9, evicts=True)
    candidate = TierCandidate("vllm@0.33", WHOLE, 10 * WHOLE, pool)
    tier = rounded(tmp_path / "r.toml", without_tier, candidate, gpus=4).tier
    assert tier is not None
    memory, files = tier.memory
    assert (memory.kind, memory.pool_bytes_per_s, memory.evict) == ("dram", None, None)
    assert (files.kind, files.pool_bytes_per_s, files.evict) == ("shared", 40e9, "lru")
    assert files.read_bytes_per_s == READS["remote"].bytes_per_s
    endless = replace(candidate, pool=SharedPool())
    again = rounded(tmp_path / "again.toml", without_tier, endless).tier
    assert again is not None
    assert (again.memory[1].pool_bytes_per_s, again.memory[1].evict) == (None, None)


@pytest.mark.parametrize(("present", "stays"), [("", False), ("keep-lru", False), ("switch", True)])
def test_what_recommends_a_change_stays(tmp_path: Path, present: str, stays: bool) -> None:
    """Unless the new file recommends one too."""
    path = tmp_path / "recommendation.toml"
    if present:
        path.write_text(f'verdict = "{present}"', encoding="utf-8")
    assert verdict_in(path) == present
    assert why_kept(path, "switch") is None
    kept = why_kept(path, "keep-lru")
    assert (kept is not None) == stays
    assert kept is None or "recommends a change and was left as it is" in kept


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ('offload = "vllm@0.33"', 'offload = "vlm"', "tier.offload"),
        ('offload = "vllm@0.33"', "", "tier.offload"),
        ('kind = "dram"', 'kind = "tape"', "tier.memory[0].kind"),
        ("bytes = 427", "bytes = -427", "tier.memory[0].bytes"),
        ("read_bytes_per_s = 25", "read_bytes_per_s = -25", "tier.memory[0].read_bytes_per_s"),
        ("write_bytes_per_s = 25000000000.0", "write_bytes_per_s = inf", "write_bytes_per_s"),
        ("latency_ms = 0.01", "latency_ms = -0.01", "tier.memory[0].latency_ms"),
        ("kv_bytes_per_token = 6", "kv_bytes_per_token = 0.6", "tier.kv_bytes_per_token"),
        ("offload =", "offlaod =", "tier.offlaod"),
    ],
)
def test_what_is_wrong_of_a_tier_is_said_in_one_line(
    without_tier: TuningResult, tmp_path: Path, old: str, new: str, where: str
) -> None:
    """The file, the key and a remedy."""
    path = tmp_path / "recommendation.toml"
    rounded(path, without_tier, SIZES[1])
    refused(tmp_path, path.read_text(encoding="utf-8"), old, new, where)
