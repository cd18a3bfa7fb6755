"""The KV pool: published start-up logs, each term, and what engines report themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.deployment import FIGURES, PLANNER, median_and_p90, pool_lines
from kvscope.core.errors import InputError, UsageError
from kvscope.core.units import GIB, MIB
from kvscope.deployment.engines import Engine, parse_engine
from kvscope.deployment.gpus import GPUS, resolve_gpu
from kvscope.deployment.models import resolve_model
from kvscope.deployment.pool import (
    KvPool,
    activation_bytes,
    derive_pool,
    observed_pool,
    pool_in,
    sglang_fraction,
    stated_pool,
)
from kvscope.deployment.quantization import WeightBits
from tests.deployment.logs import advice

LLAMA = resolve_model("llama3.1-8b")
H100 = resolve_gpu("h100")
VLLM = parse_engine("vllm@0.33")


def terms(
    engine: str = "vllm@0.33", model: str = "llama3.1-8b", **options: Any
) -> dict[str, float]:
    """Return the terms in GiB of a pool on an H100."""
    pool = derive_pool(LLAMA, H100, parse_engine(engine), **options)
    return {term.name: term.bytes / GIB for term in pool.terms}


def test_published_pools() -> None:
    """The rule's errors on published pools to vLLM 0.19 are those of the evidence page."""
    lines = [line for line in pool_lines() if not line.half]
    fitted = [line.error for line in lines if line.source == PLANNER]
    others = [line.error for line in lines if line.source != PLANNER]
    assert (len(fitted), len(others)) == (31, 26)
    assert median_and_p90(fitted)[0] <= 0.005
    assert median_and_p90(others)[0] <= 0.015
    weights = [
        line.rule_weights_gib / line.weights_gib - 1
        for line in lines
        if line.weights_gib is not None
    ]
    assert median_and_p90(weights)[0] <= 0.005
    assert median_and_p90(weights)[1] <= 0.01
    assert all(line.inside for line in lines)


@pytest.mark.parametrize(("half", "count"), [("development", 17), ("held out", 11), ("fresh", 10)])
def test_published_pools_of_0_20_and_newer(half: str, count: int) -> None:
    """Each lies within its band, a tenth of the pool in the median; errors are the page's."""
    lines = [line for line in pool_lines() if line.half == half]
    assert len(lines) == count
    assert median_and_p90(line.error for line in lines)[0] <= 0.015
    assert all(line.inside for line in lines)
    assert median_and_p90(line.band_gib / line.kv_gib for line in lines)[0] < 0.12


def test_the_terms_add_up() -> None:
    """The pool is the sum of its terms, in blocks of all layers, less block 0."""
    pool = derive_pool(LLAMA, H100, VLLM)
    kv = sum(term.bytes for term in pool.terms)
    assert pool.blocks == kv // (131_072 * 16) - 1
    assert pool.num_gpu_blocks == pool.blocks + 1
    assert pool.tokens == pool.blocks * 16
    assert pool.low_blocks < pool.blocks < pool.high_blocks
    assert (pool.origin, pool.block_size) == ("derived", 16)


def test_memory_for_the_engine() -> None:
    """vLLM takes 0.92 of the memory since 0.20 and 0.9 before, unless told."""
    assert terms()["memory for the engine"] == pytest.approx(0.92 * 79.19)
    assert terms("vllm@0.19")["memory for the engine"] == pytest.approx(0.9 * 79.19)
    assert terms(utilization=0.5)["memory for the engine"] == pytest.approx(0.5 * 79.19)


def test_a_rank_has_a_pool_of_its_own() -> None:
    """DeepSeek on 8 x H200: eight ranks hold 3.5 times the tokens of one engine of eight GPUs."""
    model, gpu = resolve_model("deepseek-v3"), resolve_gpu("h200")
    ranks, one = derive_pool(model, gpu, VLLM, dp=8), derive_pool(model, gpu, VLLM, tp=8)
    gathered = 8 * 8192 * (8 * (7168 + 2 * 7168) + 3 * 7168) + 0.3 * GIB
    weights = model.loaded_bytes(1, 8)
    kv = round(0.92 * gpu.total_bytes) - round(weights) - round(gathered)
    kv -= round(1.98 * GIB + 4 * 1024 * 129_280) + round((100 + 102 * 5.5) * MIB)
    assert sum(term.bytes for term in ranks.terms) == kv
    assert ranks.blocks == kv // (61 * 576 * 2 * 16) - 1
    assert 8 * ranks.blocks == pytest.approx(3.5 * one.blocks, rel=0.02)
    terms = {term.name: term for term in ranks.terms}
    assert terms["activations"].band_bytes == -terms["activations"].bytes // 2
    assert terms["weights"].rule == "fp8, experts by 8"
    assert any("data-parallel ranks" in note for note in ranks.notes)
    with pytest.raises(UsageError, match=r"raise --tp \(now 1\) or --dp \(now 4\)"):
        derive_pool(model, gpu, VLLM, dp=4)
    assert derive_pool(LLAMA, H100, VLLM, dp=4) == derive_pool(LLAMA, H100, VLLM)


def test_the_layer_of_a_drafter_is_divided_over_ranks() -> None:
    """MTP's layer has experts too: a mean layer of DeepSeek-V3 with 1/8 of them, in bf16."""
    shape = resolve_model("deepseek-v3").shaped()
    embeddings = 2 * 129_280 * 7168
    rest = shape.parameters - embeddings - shape.expert_parameters
    layer = (rest + shape.expert_parameters / 8) / 61
    assert shape.drafter_bytes(8) == pytest.approx(2 * (layer + 2 * 7168**2))
    assert shape.drafter_bytes() > 6 * shape.drafter_bytes(8)


def test_activations() -> None:
    """The sampler's logits and 0.14 GiB decide for dense models, else their widest layer."""
    assert terms("vllm@0.24")["activations"] == pytest.approx(-14.3 * 1024 * 128_256 / GIB - 0.14)
    assert terms("vllm@0.16")["activations"] == pytest.approx(-38.5 * 1024 * 128_256 / GIB - 0.14)
    few = terms(max_num_seqs=16, max_num_batched_tokens=2048)
    widest = 2 * 2048 * (2 * 4096 + 3 * 14_336)
    assert few["activations"] == pytest.approx(-widest / GIB)
    narrower = resolve_model("llama3.1-8b", None, "fp8")
    narrow = 2048 * (4 * 4096 + 5 * 14_336)  # one of two products in 8 bits
    assert activation_bytes(narrower, VLLM, 16, 2048, 1) == pytest.approx(narrow)
    assert terms("vllm@0.24", tp=2)["activations"] == terms("vllm@0.24")["activations"]


def test_the_second_runner_profiles_fewer_copies_of_logits() -> None:
    """Logits in 16 and 32 bits, of dense models since 0.25 and of all since 0.29."""
    many: dict[str, Any] = {"max_num_seqs": 4096, "max_num_batched_tokens": 4096}
    assert terms(**many)["activations"] == pytest.approx(-6 * 4096 * 128_256 / GIB)
    experts = resolve_model("qwen3-30b-a3b")
    before, after = (
        activation_bytes(experts, parse_engine(engine), 4096, 4096, 1)
        for engine in ("vllm@0.28", "vllm@0.29")
    )
    assert before - after == pytest.approx(8.3 * 4096 * 151_936 + 0.14 * GIB)


def test_the_largest_images_of_a_step() -> None:
    """Qwen3.8-27B in 0.29: a start logged 1.89 GiB; steps of 65,536 tokens hold four images."""
    model = resolve_model(str(FIGURES / "configs" / "qwen3.6-27b"))
    one, encoder = activation_bytes(model, VLLM, 256, 8192, 1), model.shaped().vision
    assert one == encoder.peak_bytes(8192, 1) == 2 * 65_536 * (12 * 1152 + 3 * 2 * 16**2)
    assert one / GIB == pytest.approx(1.89, abs=0.02)
    assert encoder.peak_bytes(65_536, 1) == 4 * one
    assert encoder.peak_bytes(8192, 2) == 2 * 65_536 * (8 * 1152 + 3 * 2 * 16**2)


def test_a_first_start_compiles_with_a_copy_of_the_embedding() -> None:
    """Qwen3-8B on one GPU: 1.18 GiB at its peak by the log, the next start 0.19."""
    gpu = resolve_gpu("rtx-4090")
    engine = parse_engine("vllm@0.27")
    pool = derive_pool(resolve_model("qwen3-8b"), gpu, engine)
    by_name = {term.name: term for term in pool.terms}
    peak = -by_name["activations"].bytes - by_name["first start"].bytes
    assert peak == pytest.approx(2 * (151_936 + 2 * 2048) * 4096)
    assert peak / GIB == pytest.approx(1.18, abs=0.02)
    assert by_name["first start"].band_bytes == -by_name["first start"].bytes
    assert "first start" not in terms("vllm@0.19") | terms(tp=2)


def test_indexers_have_buffers_for_long_prompts() -> None:
    """GLM-5.2 with 1,048,576 tokens: the keys of 40 such prompts, 132 bytes each."""
    model = resolve_model(str(FIGURES / "configs" / "glm-5.2"))
    none = replace(model, indexers=replace(model.indexers, longest_bytes=0))
    with_buffers, without = (activation_bytes(each, VLLM, 1024, 8192, 8) for each in (model, none))
    assert with_buffers - without == 40 * 132 * 1_048_576


def test_only_nvlink_has_the_fused_all_reduce() -> None:
    """Of Hopper and Blackwell; other GPUs have NCCL's buffers alone."""
    gpus = {"h100": 2.1, "b200": 2.1, "rtx-pro-6000": 0.55, "rtx-5090": 0.55, "a100-80gb": 0.55}
    for name, gib in gpus.items():
        pool = derive_pool(LLAMA, resolve_gpu(name), parse_engine("vllm@0.24"), tp=2)
        (other,) = (term for term in pool.terms if term.name == "other memory")
        assert -other.bytes / GIB == pytest.approx(gib)


def test_the_second_runner_counts_tokens_of_requests() -> None:
    """For penalties: 4 bytes for each of 1,024 requests and 128,256 tokens."""
    more = terms("vllm@0.24")["other memory"] - terms("vllm@0.25")["other memory"]
    assert more == pytest.approx(4 * 1024 * 128_256 / GIB - 0.12)


def test_host_memory_counts_where_it_is_the_gpus() -> None:
    """On GB10, what the process has on the host is missing from the pool."""
    engine, llama = parse_engine("vllm@0.24"), resolve_model("llama3-8b")
    others = [
        next(term.bytes for term in derive_pool(llama, gpu, engine).terms if "other" in term.name)
        for gpu in (resolve_gpu("gb10"), H100)
    ]
    assert (others[1] - others[0]) / GIB == pytest.approx(2.7)


def test_mixed_precision_counts_by_part() -> None:
    """NVIDIA's Qwen3.6-35B-A3B: attention fp8, experts and head nvfp4; a start logged 20.4 GiB."""
    model = resolve_model(str(FIGURES / "configs" / "qwen3.6-35b-a3b-nvfp4"))
    assert model.bits == WeightBits(attention=8.03, experts=4.5, shared=4.5, head=4.5)
    assert model.weight_bytes(1) / GIB == pytest.approx(20.4, rel=0.02)


@pytest.mark.parametrize(
    ("engine", "tp", "gib"),
    [("0.17", 1, 0.13), ("0.17", 2, 0.55), ("0.18", 1, 0.25), ("0.24", 1, 0.25), ("0.24", 4, 2.1)],
)
def test_memory_outside_of_pytorch(engine: str, tp: int, gib: float) -> None:
    """CUDA's context, and NCCL's buffers with tensor parallelism."""
    assert terms(f"vllm@{engine}", tp=tp)["other memory"] == pytest.approx(-gib)


def test_cuda_graphs_are_deducted_since_0_20() -> None:
    """Before, they took memory outside of the share; the second model runner did not estimate."""
    graphs = (100 + 5.5 * (51 + 51)) / 1024  # 1, 2, 4, 8, ... 256, 272, ... 512
    assert terms("vllm@0.20")["CUDA graphs"] == terms("vllm@0.33")["CUDA graphs"] == -graphs
    few = terms("vllm@0.20", max_num_seqs=20)["CUDA graphs"]  # to 40 tokens, decode steps to 20
    assert few == -(100 + 5.5 * (8 + 5)) / 1024
    assert "CUDA graphs" not in terms("vllm@0.19")
    assert "CUDA graphs" not in terms("vllm@0.26")
    experts = derive_pool(resolve_model("qwen3-30b-a3b"), H100, parse_engine("vllm@0.26"))
    assert "CUDA graphs" in {term.name for term in experts.terms}


@pytest.mark.parametrize(
    ("gpu", "kv_dtype", "speculative", "mib"),
    [
        ("rtx-5090", "bf16", "", 100 + 5.5 * 13),
        ("rtx-5090", "fp8", "", 100 + 5.5 * 13 + 394),
        ("h100", "fp8", "", 100 + 5.5 * 13),
        ("b200", "bf16", "", 100 + 5.5 * 13 + 394),
        ("h100", "bf16", "+mtp:3", 100 + 5.5 * (23 + 13)),
        ("rtx-5090", "fp8", "+mtp:3", 100 + 5.5 * 23),
    ],
)
def test_flashinfer_has_a_workspace(gpu: str, kv_dtype: Any, speculative: str, mib: float) -> None:
    """It captures whole decode steps with it, and none with drafts: 20 requests, 4 tokens each."""
    model = resolve_model("llama3.1-8b", kv_dtype, "fp8")
    engine = parse_engine(f"vllm@0.24{speculative}")
    pool = derive_pool(model, resolve_gpu(gpu), engine, max_num_seqs=20)
    (graphs,) = (term.bytes for term in pool.terms if term.name == "CUDA graphs")
    assert graphs == -round(mib * MIB)


@pytest.mark.parametrize("name", ["rtx-3090", "v100", "mi355x", "mi325x", "a40", "h20", "gb10"])
def test_llama3_8b_fits_on_gpus_that_people_ask_about(name: str) -> None:
    gpu = resolve_gpu(name)
    pool = derive_pool(resolve_model("llama3-8b"), gpu, parse_engine("vllm@0.33"))
    assert 0 < pool.blocks * pool.block_size * 131_072 < gpu.total_bytes - 15 * 2**30


def test_a_pool_that_a_gpu_had() -> None:
    """vLLM 0.26 on an H200 with llama3-8b: 112.33 GiB, 57,511 blocks."""
    pool = derive_pool(resolve_model("llama3-8b"), resolve_gpu("h200"), parse_engine("vllm@0.26"))
    assert pool.low_blocks < 57_510 < pool.high_blocks
    assert pool.blocks == pytest.approx(57_510, rel=0.01)


def test_kv_heads_are_replicated() -> None:
    """With 8 KV heads, each of 16 GPUs holds one; the latent vector of MLA is never divided."""
    model = resolve_model("llama3-70b")
    assert model.kv_bytes_per_token(4) == model.bytes_per_token // 4
    assert model.kv_bytes_per_token(16) == model.kv_bytes_per_token(8)
    latent = resolve_model("deepseek-r1")
    assert latent.kv_bytes_per_token(8) == latent.bytes_per_token == 70_272


def test_hybrid_models_have_a_range_where_their_groups_are_unknown() -> None:
    """A block of gpt-oss holds 12 of 24 layers, all that vLLM's groups have."""
    model = resolve_model("gpt-oss-20b")
    assert model.tokens_in(49_152 * 1_000) == (2_000, 2_000, 2_000)
    assert not any("a range" in note for note in derive_pool(model, H100, VLLM).notes)
    linear = resolve_model(str(Path(__file__).parent / "configs" / "qwen3.5-27b"))
    assert linear.tokens_in(65_536 * 1_000) == (250, 1_000, 1_000)
    assert resolve_model("llama3-8b").tokens_in(131_072 * 1_000) == (1_000, 1_000, 1_000)


def test_a_small_pool_is_called_uncertain() -> None:
    """Below a tenth of the memory, the terms' bands are larger than what is left."""
    pool = derive_pool(resolve_model("qwen2.5-72b"), H100, VLLM, tp=2, utilization=0.97)
    assert any("a small difference of large terms" in note for note in pool.notes)
    assert pool.low_blocks < 0.8 * pool.blocks
    assert not any("small difference" in note for note in derive_pool(LLAMA, H100, VLLM).notes)


def test_no_memory_for_the_pool() -> None:
    """A model that does not fit is refused with its largest term and the remedy."""
    with pytest.raises(UsageError) as refusal:
        derive_pool(resolve_model("llama3-70b"), H100, VLLM)
    line = str(refusal.value)
    assert line.startswith("--gpu h100: llama3-70b leaves no memory for KV blocks: 72.9 GiB less")
    assert "weights 131 GiB" in line
    assert "raise --tp (now 1), quantize the weights" in line
    with pytest.raises(UsageError, match="lower --max-num-seqs"):
        derive_pool(
            resolve_model("gemma2-2b"),
            resolve_gpu("t4"),
            VLLM,
            max_num_seqs=8192,
            max_num_batched_tokens=8192,
        )


def test_sglang() -> None:
    """SGLang's share follows from its prefill chunk and graph batches; blocks are tokens."""
    reserved = (512 + 1.5 * 8192 + 2 * 256 + 128) / 1024
    assert sglang_fraction(H100, 1) == pytest.approx(1 - reserved / 79.19, abs=1e-3)
    pool = derive_pool(LLAMA, H100, parse_engine("sglang"))
    assert (pool.block_size, pool.num_gpu_blocks) == (1, pool.blocks)
    kv = sum(term.bytes for term in pool.terms)
    assert pool.blocks == kv // 131_072
    assert [sglang_fraction(GPUS[name], 4) for name in ("t4", "l4", "l40s", "b200")] == sorted(
        sglang_fraction(GPUS[name], 4) for name in ("t4", "l4", "l40s", "b200")
    )


def test_other_block_sizes() -> None:
    """A pool of 16-token blocks holds whole blocks of the trace's size."""
    pool = stated_pool(1_001, 16, VLLM)
    assert (pool.blocks, pool.num_gpu_blocks) == (1_000, 1_001)
    larger = pool.in_blocks_of(512)
    assert (larger.blocks, larger.block_size) == (31, 512)
    assert pool.in_blocks_of(16) == pool


def test_a_stated_pool_without_blocks() -> None:
    """Block 0 alone serves nobody."""
    with pytest.raises(UsageError, match="--num-gpu-blocks: 1 leaves no block for requests"):
        stated_pool(1, 16, VLLM)


LOG = """\
INFO 11-20 10:01:07 [gpu_worker.py:298] Available KV cache memory: 58.10 GiB
INFO 11-20 10:01:08 [kv_cache_utils.py:1087] GPU KV cache size: 475,952 tokens
INFO 11-20 10:01:08 [kv_cache_utils.py:1091] Maximum concurrency for 8,192 tokens: 58.10x
"""
METRICS = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="27000",sliding_window="None"} 1.0
"""
SGLANG = "[2026-11-20 10:01:08 TP0] max_total_num_tokens=445871, chunked_prefill_size=8192"


@pytest.mark.parametrize(
    ("text", "blocks", "size", "origin"),
    [
        (LOG, 29_746, 16, "engine log"),
        (
            "INFO executor_base.py:110] # cuda blocks: 5519, # CPU blocks: 9362",
            5518,
            16,
            "engine log",
        ),
        (
            "INFO gpu_executor.py:122] # GPU blocks: 7,216, # CPU blocks: 4096",
            7215,
            16,
            "engine log",
        ),
        (
            "Overriding num_gpu_blocks=29747 with num_gpu_blocks_override=1213\n" + LOG,
            1212,
            16,
            "engine log",
        ),
        (METRICS, 26_999, 32, "metrics"),
        (SGLANG, 445_871, 1, "engine log"),
        (LOG + LOG.replace("475,952", "160,016"), 10_000, 16, "engine log"),
    ],
)
def test_observed_pools(text: str, blocks: int, size: int, origin: str) -> None:
    """Each line that engines write, and the last start in a log."""
    pool = pool_in(text.splitlines(), "engine.log")
    assert (pool.blocks, pool.block_size, pool.origin) == (blocks, size, origin)
    assert pool.low_blocks == pool.high_blocks == blocks


def test_memory_that_a_log_says_fits() -> None:
    """The smallest rank decides; a start that says nothing, or hardly more, has none."""
    ranks = [advice(15 * GIB, 10.0), advice(12 * GIB, 10.0)]
    pool = pool_in([*LOG.splitlines(), *ranks], "engine.log", tp=2)
    assert (pool.fitting_bytes, pool.fitting_times) == (12 * GIB, 1.2)
    assert any("--kv-cache-memory 12884901888 fits: 20% more blocks" in note for note in pool.notes)
    assert pool.filling_the_gpu.blocks == int(1.2 * pool.blocks)
    assert pool.filling_the_gpu.fitting_bytes is None
    assert pool.in_blocks_of(32).filling_the_gpu.blocks == int(1.2 * (pool.blocks // 2))
    linear = resolve_model(str(Path(__file__).parent / "configs" / "qwen3.5-27b"))
    metrics = METRICS + advice(15 * GIB, 10.0)
    assert pool_in(metrics.splitlines(), "engine.log").fitting_bytes == 15 * GIB
    assert pool_in(metrics.splitlines(), "engine.log", model=linear).fitting_bytes is None
    for log in ([*ranks, LOG], [LOG, advice(10 * GIB, 10.0)], [LOG, advice(GIB, 0.0)]):
        assert pool_in("\n".join(log).splitlines(), "engine.log").fitting_bytes is None


def test_available_memory_of_the_smallest_rank() -> None:
    """Bytes are divided by the KV of a token on one GPU; the smallest rank decides."""
    ranks = [f"Available KV cache memory: {gib} GiB" for gib in (60.5, 10.0, 10.5)]
    pool = pool_in(ranks, "engine.log", model=LLAMA, tp=2)
    assert pool.blocks == int(10 * GIB // (65_536 * 16)) - 1
    with pytest.raises(InputError, match="reports no KV pool"):
        pool_in(ranks, "engine.log")


def test_hybrid_models_need_the_number_of_blocks() -> None:
    """The cache size of a hybrid model is not its pool."""
    linear = resolve_model(str(Path(__file__).parent / "configs" / "qwen3.5-27b"))
    with pytest.raises(InputError, match=r"engine\.log: the cache size of a hybrid model is not"):
        pool_in(LOG.splitlines(), "engine.log", model=linear)
    model = resolve_model("gpt-oss-20b")
    sized = pool_in(["Available KV cache memory: 1 GiB"], "engine.log", model=model)
    assert sized.num_gpu_blocks == 2**30 // (12 * 2 * 8 * 64 * 2 * 16)
    metrics = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0'
    assert pool_in([metrics], "metrics.txt", model=model).blocks == 99


@pytest.mark.parametrize("number", ["9" * 400, ",", "1" * 5000, "99999999999999999"])
def test_absurd_sizes_in_a_log(number: str) -> None:
    """A number that no pool has is refused, with its beginning."""
    with pytest.raises(
        InputError, match=rf"^engine.log: '{number[:17]}.*is not the size of a pool"
    ):
        pool_in([f"max_total_num_tokens={number}"], "engine.log")


def test_observed_files(tmp_path: Path) -> None:
    """A file is read line by line; one without a pool is refused with the remedy."""
    log = tmp_path / "engine.log"
    log.write_bytes(b"\xff\xfe broken\n" + LOG.encode())
    assert observed_pool(log).notes == ("blocks of 16 tokens assumed",)
    assert observed_pool(log, block_size=32).blocks == 475_952 // 32 - 1
    log.write_text("nothing here\n", encoding="utf-8")
    with pytest.raises(InputError, match="reports no KV pool; name a log with 'GPU KV cache size'"):
        observed_pool(log)
    with pytest.raises(InputError, match="No such file"):
        observed_pool(tmp_path / "missing.log")
    log.write_text("# GPU blocks: 1,", encoding="utf-8")
    with pytest.raises(InputError, match="no block for requests"):
        observed_pool(log)


def test_gpus_by_name() -> None:
    """Names in any case, common spellings, and the nearest ones for a typo."""
    assert resolve_gpu("H100").name == resolve_gpu("h100_sxm").name == "h100"
    assert resolve_gpu("NVIDIA RTX 4090").name == "rtx-4090"
    assert resolve_gpu("A100").name == "a100-80gb"
    with pytest.raises(UsageError, match="no GPU 'h1000'; did you mean h100"):
        resolve_gpu("h1000")
    with pytest.raises(UsageError, match="GPUs: a100-40gb, "):
        resolve_gpu("zzzzzzzzz")


@pytest.mark.parametrize(
    ("gpu", "sequences", "tokens"),
    [("b200", 1024, 16_384), ("h100", 1024, 8192), ("a100-80gb", 256, 2048), ("l4", 256, 2048)],
)
def test_server_defaults(gpu: str, sequences: int, tokens: int) -> None:
    """vLLM's limits by the GPU's memory, the A100 excepted."""
    known = resolve_gpu(gpu)
    assert (known.default_max_num_seqs, known.default_max_num_batched_tokens) == (sequences, tokens)


def test_engines() -> None:
    """An engine with or without its version."""
    assert parse_engine("vllm@0.19.1") == Engine("vllm", (0, 19))
    assert parse_engine("vLLM@v0.33") == parse_engine("vllm")
    assert str(parse_engine("sglang@0.5")) == "sglang@0.5"
    for wrong in ("tgi", "vllm@", "vllm@new", ""):
        with pytest.raises(UsageError, match=r"write vllm, vllm@0\.33 or sglang"):
            parse_engine(wrong)


def test_pools_are_plain_values() -> None:
    """A pool compares by its figures."""
    assert stated_pool(10, 16, VLLM) == KvPool(9, 9, 9, 16, "stated")
