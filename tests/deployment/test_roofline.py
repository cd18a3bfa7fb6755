"""Engine versions, and the roofline."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.deployment import (
    closed_loop_points,
    idle_points,
    median_and_p90,
    tpot_points,
    tpot_s,
)
from kvscope.core.errors import UsageError
from kvscope.deployment.deployment import Deployment, resolve
from kvscope.deployment.engines import CHANGES, COMPARED, PLUGIN, parse_engine
from kvscope.deployment.gpus import resolve_gpu
from kvscope.deployment.models import resolve_model
from kvscope.deployment.roofline import HIGH, LOW, latency_notes, roofline
from kvscope.policies.lru import LruRetention
from kvscope.policies.tlru import TLru
from kvscope.tuning.flags import EngineLaunch, flags
from kvscope.vllm_sim.settings import EngineSettings

LLAMA = resolve_model("llama3.1-8b")
H100 = resolve_gpu("h100")


def test_published_ttfts() -> None:
    """The errors are those of the evidence page."""
    idle = [point.error for point in idle_points()]
    assert len(idle) == 22
    assert median_and_p90(idle) < (0.15, 0.25)
    assert median_and_p90(idle)[1] < 0.25
    loops = [point for point in closed_loop_points() if point.engine == "vllm"]
    assert len(loops) == 103
    median, p90 = median_and_p90(point.error for point in loops)
    assert median < 0.15
    assert p90 < 0.4
    inside = [LOW <= point.measured_ms / point.rule_ms <= HIGH for point in loops]
    assert sum(inside) >= 0.9 * len(loops)


def test_published_tpots() -> None:
    """1,657 times per output token, of all engines."""
    points = tpot_points()
    assert len(points) > 1_600
    median, p90 = median_and_p90(point.error for point in points)
    assert median < 0.17
    assert p90 < 0.41


@pytest.mark.parametrize(
    ("model", "dtype", "gpu", "tp", "ms"),
    [
        ("llama3.1-8b", "bf16", "a100", 1, 733),
        ("llama3.1-8b", "bf16", "h100", 1, 251),
        ("llama3-70b", "fp8", "h100", 4, 478),
    ],
)
def test_prompts_of_8192_tokens(model: str, dtype: Any, gpu: str, tp: int, ms: float) -> None:
    """The rule's figures by hand; 453 ms were measured for the last."""
    profile = roofline(resolve_model(model, weight_dtype=dtype), resolve_gpu(gpu), tp)
    assert float(profile.ttft_s(8192, 0)) * 1e3 == pytest.approx(ms, abs=0.5)


def test_short_prompts_take_the_time_to_read_the_weights() -> None:
    """The floor is all weights but the embedding at 0.75 of the memory's rate."""
    profile = roofline(LLAMA, H100)
    read = (LLAMA.weight_bytes() - 128_256 * 4096 * 2) / (0.75 * 3.35e12)
    assert profile.floor_s == pytest.approx(read)
    assert float(profile.ttft_s(1, 0)) == pytest.approx(profile.base_s + read, rel=1e-6)
    assert profile.request_s < profile.base_s


def test_tensor_parallelism_divides_and_adds_all_reduces() -> None:
    """Two GPUs halve the arithmetic and the floor, and move each layer's activations twice."""
    one, two = roofline(LLAMA, H100), roofline(LLAMA, H100, 2)
    assert two.floor_s == pytest.approx(one.floor_s / 2)
    moved = 2 * 32 * 4096 * 2 * 2 * (2 - 1) / 2 / (450e9 * 0.4)
    assert two.per_token_s == pytest.approx(one.per_token_s / 2 + moved)
    assert two.per_token_pair_s == pytest.approx(one.per_token_pair_s / 2)


def test_ranks_read_their_part_of_the_experts_and_exchange_tokens() -> None:
    """Eight ranks of one GPU: an eighth of the experts that 8 x 16 tokens touch; by hand."""
    model, h200 = resolve_model("deepseek-v3"), resolve_gpu("h200")
    alone, eight = roofline(model, h200), roofline(model, h200, dp=8)
    moved = 2 * 61 * 7168 * 2 * 7 / (450e9 * 0.4)
    assert eight.per_token_s == pytest.approx(alone.per_token_s + moved)
    assert roofline(model, h200, 2, dp=4).per_token_s == pytest.approx(
        roofline(model, h200, 2).per_token_s + moved / 2
    )
    routed = 58 * 256 * 3 * 7168 * 2048 * 8.03 / 8
    assert eight.floor_s == pytest.approx(alone.floor_s - routed * 7 / 8 / (0.75 * 4.8e12))
    touched = (1 - (1 - 8 / 256) ** 128) / 8 - (1 - (1 - 8 / 256) ** 16)
    assert eight.decode_base_s is not None
    assert alone.decode_base_s is not None
    more = touched * routed / (0.71 * 4.8e12) + 61 * 40e-6
    assert eight.decode_base_s == pytest.approx(alone.decode_base_s + more)
    assert eight.decode_context_token_s == alone.decode_context_token_s
    assert roofline(LLAMA, H100, dp=4) == roofline(LLAMA, H100)  # ranks without experts are apart


def test_decode_costs_are_the_tpot() -> None:
    """For a dense model, the profile's decode costs add up to the rule's TPOT at any batch."""
    for tp in (1, 4):
        profile = roofline(LLAMA, H100, tp)
        for batch, context in ((1, 100), (16, 2_000), (128, 8_000)):
            assert profile.decode_base_s is not None
            step = profile.decode_base_s + batch * (
                profile.decode_request_s + context * profile.decode_context_token_s
            )
            assert step == pytest.approx(tpot_s(LLAMA, H100, tp, batch, context))


def test_experts_are_read_as_the_batch_grows() -> None:
    """One request reads 8 of 128 experts, many read all of them."""
    model = resolve_model("qwen3-30b-a3b")
    shape = model.shaped()
    one, many = (shape.bytes_read(model.bits, batch) for batch in (1, 10_000))
    assert many - one == pytest.approx(shape.expert_parameters * 2 * (1 - 8 / 128))
    profile = roofline(model, H100)
    assert profile.decode_base_s is not None
    step = profile.decode_base_s + 16 * profile.decode_request_s
    assert step == pytest.approx(tpot_s(model, H100, 1, 16, 0))


def test_windowed_layers_attend_to_their_window() -> None:
    """A windowed layer costs by token, a full one by pair."""
    gemma = resolve_model("gemma2-9b")
    profile = roofline(gemma, H100)
    pair = 2 * 16 * (256 + 256) / (989e12 * 0.5)
    assert profile.per_token_pair_s == pytest.approx(21 * pair)
    arithmetic = 2 * gemma.shaped().active_parameters / (989e12 * 0.62)
    assert profile.per_token_s == pytest.approx(arithmetic + 21 * 4096 * pair)


def test_weights_of_four_bits_are_computed_in_sixteen() -> None:
    """AWQ saves memory reads, no arithmetic; NVFP4 saves both on Blackwell alone."""
    plain, awq = (
        roofline(resolve_model("llama3.1-8b", weight_dtype=dtype), H100)
        for dtype in ("bf16", "awq")
    )
    assert awq.per_token_s == plain.per_token_s
    assert awq.floor_s < 0.4 * plain.floor_s
    nvfp4 = resolve_model("llama3.1-8b", weight_dtype="nvfp4")
    assert roofline(nvfp4, H100).per_token_s == plain.per_token_s
    assert roofline(nvfp4, resolve_gpu("b200")).per_token_s < 0.3 * plain.per_token_s


def test_what_was_not_checked_is_named() -> None:
    """Notes say where the band may not hold."""
    vllm = parse_engine("vllm")
    assert latency_notes(LLAMA, H100, vllm, 1) == []
    (note,) = latency_notes(resolve_model("gpt-oss-20b"), resolve_gpu("l4"), vllm, 2)
    assert "layers of several kinds, experts, l4, tensor parallelism over PCIe" in note
    assert "kvscope calibrate" in note
    (note,) = latency_notes(resolve_model("gemma3-4b"), H100, parse_engine("sglang"), 1)
    assert "a vision encoder, SGLang" in note


GPT_OSS = Deployment(gpu="h100", model="gpt-oss-20b")


def resolved(engine: str, **more: object) -> tuple[int | None, tuple[str, ...]]:
    """Return the retention of gpt-oss in an engine, and what is said of it."""
    where = resolve(Deployment(gpu="h100", model="gpt-oss-20b", engine=engine, **more))  # type: ignore[arg-type]
    groups = where.kv_groups_for(16)
    assert groups is not None
    return groups.retention_tokens, where.notes


def test_every_row_has_a_source_and_is_of_a_known_version() -> None:
    """None lies in the future of the versions that were compared."""
    assert all(row.source and row.since <= max(COMPARED) for row in CHANGES)
    assert set(PLUGIN) <= set(COMPARED)


def test_windows_are_all_kept_before_0_29() -> None:
    """Which is what the engine does, and what its flags cannot change."""
    kept, notes = resolved("vllm@0.25")
    assert kept is None
    assert any("keeps all windows" in note and "RETENTION_INTERVAL=0" in note for note in notes)
    assert any("no setting keeps less" in note for note in resolved("vllm@0.22")[1])
    kept, notes = resolved("vllm@0.33")
    assert kept == 0
    assert not any("keeps all windows" in note for note in notes)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("0.23", "vLLM 0.23 was not compared with kvscope, 0.22 and 0.25 were"),
        ("0.19", "simulated as 0.20, the oldest"),
        ("0.35", "vLLM 0.35 is newer than this kvscope, and is simulated as 0.33"),
        ("0.28", "plugin does not load into vLLM 0.28, but into 0.26, 0.32, 0.33"),
    ],
)
def test_what_was_not_compared_is_said_first(version: str, says: str) -> None:
    """Before all else that is uncertain of the deployment."""
    assert (
        says
        in resolve(Deployment(gpu="h100", model="llama3-8b", engine=f"vllm@{version}")).notes[0]
    )


def test_a_version_that_was_compared_has_no_warning() -> None:
    """Nor has the SGLang whose prefix tree is simulated."""
    for engine in ("vllm@0.33", "vllm@0.32", "sglang"):
        assert parse_engine(engine).doubts(None) == ()
        assert parse_engine(engine).left_out == ()
    small = parse_engine("sglang:hicache_ratio=1").doubts(None)
    assert small[0].startswith("the host tier has no room beyond copies of the GPU's pool")
    assert parse_engine("sglang:hicache_write_policy=write_back").doubts(None) == ()
    (doubt,) = parse_engine("sglang@0.4").doubts(None)
    assert doubt.startswith("SGLang 0.4 was not compared with kvscope, and is simulated as 0.5")


def test_the_simulated_engine_is_of_the_version() -> None:
    """Blocks without a hash went to the end of the queue before 0.24."""
    newest, older = (
        EngineSettings(8).in_version(parse_engine(f"vllm@{v}")) for v in ("0.33", "0.22")
    )
    assert newest == EngineSettings(8)
    assert older.unhashed_last
    assert older.reserve_full_prompt
    assert not EngineSettings(8).in_version(parse_engine("vllm@0.18")).reserve_full_prompt
    assert parse_engine("vllm@0.33").simulated_as == ""
    assert parse_engine("vllm@0.22").simulated_as == "vllm@0.22"


def test_no_flag_that_a_version_lacks() -> None:
    """The retention interval has one since 0.29; the plugin loads into three versions."""
    tlru, retention = TLru({"xi_tokens": 2048, "next_prompt_tokens": 99}), LruRetention()
    older, newer = (EngineLaunch(engine=parse_engine(f"vllm@{v}")) for v in ("0.28", "0.33"))
    assert flags(tlru, older).vllm is None
    assert flags(retention, older).vllm is None
    assert flags(tlru, newer).vllm
    assert flags(retention, newer).vllm
    with pytest.raises(UsageError, match=r"needs vLLM 0\.26"):
        resolved("vllm@0.25", prefix_match_unit=16)


def test_large_batches_are_of_large_gpus_from_0_28_on() -> None:
    """By default: 16,384 tokens a step."""
    gpu = resolve_gpu("b200")
    assert parse_engine("vllm@0.28").default_batched_tokens(gpu) == 16_384
    assert parse_engine("vllm@0.27").default_batched_tokens(gpu) == 8_192
