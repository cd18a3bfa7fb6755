"""recommendation.toml of `kvscope tune --tiers`: what its readers find in it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvscope.core.errors import InputError
from kvscope.policies.tlru import TLru
from kvscope.replay.tier_spec import parse_tiers
from kvscope.tuning.file import (
    EngineTable,
    MemoryTable,
    RecommendationFile,
    TierTable,
    read_recommendation,
    verdict_in,
    why_kept,
    write_tier_recommendation,
)
from kvscope.tuning.tier_trial import TierCandidate, TierPlan, tiers_of
from kvscope.tuning.tiers import TierTuning
from kvscope.vllm_plugin.settings import read_settings
from tests.tuning.examples import BLOCK, PROFILE
from tests.tuning.test_tune_tiers import BLOCK_BYTES, POOL, WHOLE, plan, tuned

WHERE = EngineTable("1 x l4", "vllm@0.33", 1, 8, 512)
FLAGS = {"vllm": "--kv-transfer-config '{}'"}


@pytest.fixture(scope="module")
def paying() -> TierTuning:
    """Return a tuning that recommends CPU memory."""
    return tuned(plan(candidates=plan().candidates[1:2]))


def rounded(path: Path, result: TierTuning, made: TierPlan) -> RecommendationFile:
    """Return what is read of a tuning that was written."""
    write_tier_recommendation(
        path, result, made, trace="t", profile=PROFILE, flags=FLAGS, deployment=WHERE
    )
    return read_recommendation(path)


def with_tier(result: TierTuning, candidate: TierCandidate) -> TierTuning:
    """Return a tuning that recommends another tier, with the figures of its own."""
    assert result.choice is not None
    validated, judged = result.choice
    return replace(result, choice=(validated, replace(judged, candidate=candidate)))


@pytest.mark.parametrize(
    "candidate",
    [
        TierCandidate("vllm@0.33", "dram", 3 * 2**30),
        TierCandidate("sglang-hicache:write_policy=write_back", "dram", WHOLE + 7, 2**33 + 1),
        TierCandidate("lmcache", "ssd", WHOLE),
    ],
)
def test_simulate_finds_pool_and_tier(
    paying: TierTuning, tmp_path: Path, candidate: TierCandidate
) -> None:
    """Sizes and times of copies are those of the tuning to the last bit, over all of its GPUs."""
    made = plan(gpus=3)
    path = tmp_path / "recommendation.toml"
    read = rounded(path, with_tier(paying, candidate), made)
    assert (read.verdict, read.trace, read.deployment, read.flags) == ("pays", "t", WHERE, FLAGS)
    assert (read.target, read.profile) == (made.target, PROFILE)
    assert (read.policy.name, read.capacity_tokens) == ("lru", POOL * BLOCK)
    assert read.tier is not None
    assert read.tier.offload == candidate.offload
    assert read.tier.left_out == candidate.spec.left_out
    assert read.tier.kv_bytes_per_token * BLOCK == BLOCK_BYTES
    pool, *below = parse_tiers(read.tier.tiers(POOL), block_bytes=BLOCK_BYTES)
    assert (pool.name, pool.capacity_blocks) == ("hbm", POOL)
    lru = pool.policy
    tuned_with = tiers_of(made, candidate)
    assert [replace(each, policy=lru) for each in below] == [
        replace(each, policy=lru) for each in tuned_with
    ]


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


def test_no_tier_is_the_pool_alone(paying: TierTuning, tmp_path: Path) -> None:
    """Its figures are then those of the recommendation too, and there is nothing to confirm."""
    path = tmp_path / "recommendation.toml"
    none = replace(paying, verdict="keep-none", canary=None)
    read = rounded(path, none, plan())
    assert (read.verdict, read.tier) == ("keep-none", None)
    assert "\n[canary]" not in path.read_text(encoding="utf-8")


def test_a_canary_confirms_the_gain(paying: TierTuning) -> None:
    """On the figure that decides, one engine after the other."""
    assert paying.canary is not None
    assert (paying.canary.figure, paying.canary.replicas) == ("p95", 1)
    assert paying.canary.requests_per_hour == pytest.approx(3_600, rel=0.01)


def test_the_plugin_finds_the_policy_of_the_tier(paying: TierTuning, tmp_path: Path) -> None:
    """The pool keeps LRU; a policy in `--additional-config` goes before the file's."""
    path = tmp_path / "recommendation.toml"
    offload = "vllm@0.33:eviction_policy=tlru:xi_tokens=4096:guard=0"
    rounded(path, with_tier(paying, TierCandidate(offload, "dram", WHOLE)), plan())
    environment = {"KVSCOPE_RECOMMENDATION": str(path)}
    settings = read_settings({}, environment)
    assert settings.policy is not None
    assert settings.policy.name == "lru"
    chunks = settings.for_chunks(TLru)
    assert chunks is not None
    assert (chunks[0].values["xi_tokens"], chunks[0].values["guard"]) == (4096, 0)
    stated = {"cpu_tier": {"name": "tlru", "params": {"xi_tokens": 99}}}
    chunks = read_settings({"kvscope": stated}, environment).for_chunks(TLru)
    assert chunks is not None
    assert chunks[0].values["xi_tokens"] == 99
    path.write_text(path.read_text(encoding="utf-8").replace('"tlru"', '"trlu"'), encoding="utf-8")
    with pytest.raises(InputError, match="trlu"):
        read_settings({}, environment)


def test_a_plain_tier_has_no_policy(paying: TierTuning, tmp_path: Path) -> None:
    """Then vLLM's own order stays in force."""
    path = tmp_path / "recommendation.toml"
    rounded(path, paying, plan())
    settings = read_settings({}, {"KVSCOPE_RECOMMENDATION": str(path)})
    assert settings.cpu_tier is None
    assert settings.for_chunks(TLru) is None


@pytest.mark.parametrize(
    ("present", "replaced_by"),
    [
        ("", "switch keep-lru pays helps set-interval keep-none"),
        ("keep-lru", "switch keep-lru pays helps set-interval keep-none"),
        ("keep-none", "switch keep-lru pays helps set-interval keep-none"),
        ("switch", "switch"),
        ("pays", "pays"),
        ("helps", "pays helps"),
        ("set-interval", "pays helps set-interval"),
    ],
)
def test_what_recommends_a_change_stays(tmp_path: Path, present: str, replaced_by: str) -> None:
    """Unless the new file recommends one of its kind that is no weaker."""
    path = tmp_path / "recommendation.toml"
    if present:
        path.write_text(f'verdict = "{present}"', encoding="utf-8")
    assert verdict_in(path) == present
    changes = {"switch": "switch", "set-interval": "retention interval"}
    for verdict in ("switch", "keep-lru", "pays", "helps", "set-interval", "keep-none"):
        kept = why_kept(path, verdict)  # type: ignore[arg-type]
        assert (kept is None) == (verdict in replaced_by.split())
        what = changes.get(present, "tier")
        assert kept is None or f"recommends a {what} and was left as it is" in kept


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
        ("left_out", "leftout", "tier.leftout"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    paying: TierTuning, tmp_path: Path, old: str, new: str, where: str
) -> None:
    """The file, the key and a remedy."""
    path = tmp_path / "recommendation.toml"
    rounded(path, paying, plan())
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_recommendation(path)
    assert str(caught.value).startswith(str(path))
    assert where in (caught.value.where or "")
    assert caught.value.remedy
