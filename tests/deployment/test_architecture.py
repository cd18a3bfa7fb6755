"""Weights and layers: parameter counts that are widely published, and configs of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvscope.core.errors import InputError, UsageError
from kvscope.core.units import GIB
from kvscope.deployment.architecture import layer_kinds
from kvscope.deployment.config_fields import ConfigFields
from kvscope.deployment.deployment import Deployment, resolve
from kvscope.deployment.engines import parse_engine
from kvscope.deployment.gpus import resolve_gpu
from kvscope.deployment.models import (
    HeadKv,
    KvDtype,
    Model,
    UnlikeKv,
    preset,
    preset_names,
    resolve_model,
)
from kvscope.deployment.pool import derive_pool
from kvscope.deployment.quantization import BITS, quantization

CONFIGS = Path(__file__).parent / "configs"
DENSE = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
    "torch_dtype": "bfloat16",
}


def fixture(name: str) -> Model:
    """Return the model of a config.json below configs/."""
    return resolve_model(str(CONFIGS / name))


def written(folder: Path, **fields: Any) -> Model:
    """Return the model of DENSE with some fields replaced; None takes a field away."""
    config = {key: value for key, value in {**DENSE, **fields}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return resolve_model(str(folder))


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama3.1-8b", 8.03, None),
        ("llama3-70b", 70.55, None),
        ("llama3.1-405b", 405.85, None),
        ("qwen2.5-7b", 7.62, None),
        ("qwen3-0.6b", 0.596, None),
        ("gemma2-9b", 9.24, None),
        ("phi-4", 14.66, None),
        ("mixtral-8x7b", 46.70, 12.6),
        ("qwen3-30b-a3b", 30.53, 2.7),
        ("qwen3-235b-a22b", 235.09, 21.0),
        ("deepseek-r1", 671.03, 35.7),
        ("deepseek-v4-flash", 284.36, 12.8),
        ("deepseek-v4-pro", 1573.1, 48.0),
        ("gpt-oss-120b", 116.8, 4.6),
    ],
)
def test_published_parameters(name: str, billions: float, active: float | None) -> None:
    """Totals as the model cards state them; active ones without embedding and head."""
    shape = resolve_model(name).shaped()
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.003)
    if active is not None:
        assert shape.moe
        assert shape.active_parameters / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama4-scout", 108.6),
        ("qwen3-235b-fp8", 235.09),
        ("kimi-k2.5", 1026),
        ("minimax-m2.5", 228.7),
        ("falcon-180b", 179.5),
        ("gptj-6b", 6.05),
        ("mimo-v2-flash", 309),
        ("nemotron-super-49b", 49.9),
    ],
)
def test_parameters_of_real_configs(name: str, billions: float) -> None:
    """The fields of real config.json files, nested ones included, give the published size."""
    assert fixture(name).shaped().parameters / 1e9 == pytest.approx(billions, rel=0.02)


def test_a_preset_equals_its_config() -> None:
    """A preset is what its repository's config.json says."""
    for name in ("gpt-oss-120b", "deepseek-r1"):
        file, known = fixture(name), resolve_model(name)
        assert (file.shape, file.kinds, file.bits) == (known.shape, known.kinds, known.bits)
        assert file.architecture == known.architecture


def test_weights_are_divided_and_kv_heads_replicated() -> None:
    """8 KV heads on 16 GPUs are held twice; all else is divided."""
    model = resolve_model("llama3-70b")
    assert model.weight_bytes(8) == pytest.approx(model.weight_bytes() / 8)
    projections = 2 * 8 * 128 * 8192 * 80 * 2  # keys and values of all layers, in bytes
    assert model.weight_bytes(16) == pytest.approx((model.weight_bytes() + projections) / 16)


def test_routers_and_down_projections_are_held_whole() -> None:
    """Router and MLA's down-projections are on every GPU."""
    model = resolve_model("deepseek-r1")
    shape = model.shaped()
    whole = shape.router_parameters * 2 + shape.replicated_parameters * BITS["fp8"] / 8
    assert shape.replicated_parameters == 61 * 7168 * (1536 + 512 + 64)
    assert model.weight_bytes(8) == pytest.approx((model.weight_bytes() - whole) / 8 + whole)


def test_ranks_divide_routed_experts_alone() -> None:
    """Of 256 experts a GPU has 32 of 8, 11 of 24; the two GPUs of a rank both the shared ones."""
    model = resolve_model("deepseek-r1")
    shape, byte = model.shaped(), BITS["fp8"] / 8
    routed = 58 * 256 * 3 * 7168 * 2048 * byte
    shared = 58 * 3 * 7168 * 2048 * byte
    assert shape.expert_parameters * byte == pytest.approx(routed)
    whole = model.weight_bytes()
    assert model.weight_bytes(1, 8) == pytest.approx(whole - routed * 7 / 8)
    assert model.weight_bytes(1, 24) == pytest.approx(whole - routed * (1 - 11 / 256))
    rest = model.weight_bytes(2) - routed / 2 + shared / 2
    assert model.weight_bytes(2, 4) == pytest.approx(rest + routed / 8)
    dense = resolve_model("llama3-70b")
    assert dense.weight_bytes(2, 4) == dense.weight_bytes(2)


@pytest.mark.parametrize(
    ("dtype", "gib"),
    [
        ("bf16", 14.96),
        ("fp8", 8.48),
        ("int8", 8.48),
        ("awq", 5.41),
        ("gptq", 5.41),
        ("nvfp4", 5.61),
    ],
)
def test_quantized_weights(dtype: Any, gib: float) -> None:
    """Embedding and head keep 16 bits, the rest takes the bits with their scales."""
    model = resolve_model("llama3.1-8b", weight_dtype=dtype)
    assert model.weight_dtype == dtype
    assert model.weight_bytes() / 2**30 == pytest.approx(gib, abs=0.01)


def test_mxfp4_quantizes_experts_and_pads_them() -> None:
    """The experts of gpt-oss have 4.25 bits and a hidden size padded from 2,880 to 3,072."""
    model = resolve_model("gpt-oss-20b")
    assert (model.bits.attention, model.bits.experts) == (16, 4.25)
    shape = model.shaped()
    experts = shape.expert_parameters * 4.25 / 8 * 3072 / 2880
    rest = shape.parameters - shape.expert_parameters
    assert model.weight_bytes() == pytest.approx(experts + 2 * rest)


def _attention_of(layers: int) -> list[str]:
    """Return the names of the attention modules of the first layers."""
    projections = [f"self_attn.{each}_proj" for each in "qkvo"]
    return [f"model.layers.{layer}.{each}" for layer in range(layers) for each in projections]


@pytest.mark.parametrize(
    ("config", "dtype", "attention", "note"),
    [
        ({"quant_method": "fp8"}, "fp8", 8.03, None),
        ({"quant_method": "gptq_marlin", "bits": 4}, "gptq", 4.25, None),
        ({"quant_algo": "NVFP4"}, "nvfp4", 4.5, None),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}},
                "ignore": ["re:.*self_attn.*", "lm_head"],
            },
            "gptq",
            16,
            None,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}},
                "ignore": ["model.layers.0.self_attn.q_proj", "model.layers.0.input_layernorm"],
            },
            "int8",
            8.03,
            None,
        ),
        ({"quant_method": "fp8", "ignored_layers": _attention_of(16)}, "fp8", 8.03, None),
        ({"quant_method": "fp8", "ignored_layers": _attention_of(17)}, "fp8", 16, None),
        ({"quant_method": "hqq"}, "bf16", 16, "quantization 'hqq' is unknown"),
    ],
)
def test_quantization_configs(
    config: dict[str, Any], dtype: str, attention: float, note: str | None
) -> None:
    """Each way in which configs state their quantization, with the modules that they leave out."""
    fields = ConfigFields("config.json", {**DENSE, "quantization_config": config})
    stated, bits, doubt = quantization(fields, moe=False)
    assert (stated, bits.attention) == (dtype, attention)
    assert (doubt is None) if note is None else note in str(doubt)


def test_a_checkpoints_index_wins(tmp_path: Path) -> None:
    """model.safetensors.index.json beside the config states the bytes."""
    index = {"metadata": {"total_size": 20_000_000_000}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert written(tmp_path).weight_bytes() == pytest.approx(20e9)
    assert written(tmp_path).weight_bytes(4) == pytest.approx(5e9)
    assert written(tmp_path, torch_dtype="float32").weight_bytes() == pytest.approx(10e9)
    assert written(tmp_path, vocab_size=None).weight_bytes(2) == pytest.approx(10e9)


def test_quantization_beside_the_config(tmp_path: Path) -> None:
    """NVIDIA's hf_quant_config.json counts, and a file that is not JSON is named."""
    quantized = {"quantization": {"quant_algo": "FP8"}}
    path = tmp_path / "hf_quant_config.json"
    path.write_text(json.dumps(quantized), encoding="utf-8")
    assert written(tmp_path).weight_dtype == "fp8"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"hf_quant_config\.json: not a JSON document"):
        written(tmp_path)


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({}, (32, 0, 0, None)),
        ({"sliding_window": 4096}, (0, 32, 0, 4096)),
        ({"sliding_window": 4096, "use_sliding_window": False}, (32, 0, 0, None)),
        ({"sliding_window": 4096, "max_window_layers": 20}, (20, 12, 0, 4096)),
        ({"sliding_window": 4096, "model_type": "gemma2"}, (16, 16, 0, 4096)),
        ({"sliding_window": 1024, "model_type": "gemma3_text"}, (5, 27, 0, 1024)),
        ({"attention_chunk_size": 8192, "model_type": "llama4_text"}, (8, 24, 0, 8192)),
        ({"full_attention_interval": 4}, (8, 0, 24, None)),
        ({"attn_layer_period": 8}, (4, 0, 28, None)),
        ({"hybrid_override_pattern": "M-M*" * 8}, (8, 0, 24, None)),
    ],
)
def test_layer_kinds(fields: dict[str, Any], kinds: tuple[int, int, int, int | None]) -> None:
    """Full, windowed and linear layers, as each family of configs states them."""
    layers = layer_kinds(ConfigFields("config.json", {**DENSE, **fields}))
    assert (layers.full, layers.windowed, layers.linear, layers.window) == kinds


def test_hybrid_models_of_real_configs() -> None:
    """Linear-attention layers keep no KV; state-space layers have weights kvscope cannot count."""
    linear = fixture("qwen3.5-27b")
    assert (linear.kinds.full, linear.kinds.linear) == (16, 48)
    assert linear.hybrid
    assert linear.vision
    state_space = fixture("nemotron-h-56b")
    assert state_space.hybrid
    with pytest.raises(InputError, match="hybrid_override_pattern"):
        state_space.weight_bytes()


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("nemotron-h-8b", 8.1),
        ("nemotron-3-nano-30b", 31.6),
        ("granite-4.0-h-small", 32),
        ("granite-4.0-h-tiny", 7),
        ("kimi-linear-48b", 48),
        ("jamba-v0.1", 52),
        ("falcon-h1-7b", 7.59),
        ("lfm2-1.2b", 1.17),
        ("gemma-4-31b", 30.7),
    ],
)
def test_weights_of_models_with_layers_of_several_kinds(model: str, billions: float) -> None:
    """Within 3 % of the parameters that the cards of these models state."""
    shape = fixture(model).shaped()
    assert shape.parameters == pytest.approx(billions * 1e9, rel=0.03)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("falcon_mamba", "vLLM caches no prefixes of such models by default"),
        ("mamba", "no layer attends"),
        ("bamba", "vLLM has no such model since 0.23"),
        ("zamba2", "layers that share one attention"),
    ],
)
def test_families_that_are_not_read_are_refused_by_name(
    tmp_path: Path, family: str, reason: str
) -> None:
    """Their layers would all count as full attention."""
    with pytest.raises(InputError, match=f"{family}: .*{reason}"):
        written(tmp_path, model_type=family)


def test_a_config_without_weights_still_has_kv(tmp_path: Path) -> None:
    """What weights need is named only where weights are asked for."""
    model = written(tmp_path, vocab_size=None)
    assert model.bytes_per_token == 131_072
    with pytest.raises(InputError, match="vocab_size is missing") as refusal:
        model.weight_bytes()
    assert "--num-gpu-blocks" in str(refusal.value)
    with pytest.raises(InputError, match="intermediate_size is missing"):
        written(tmp_path, intermediate_size=None).shaped()


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, "fp8"),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False},
                }
            },
            "fp8",
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, "bf16"),
        ({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}}, "bf16"),
    ],
)
def test_a_checkpoint_states_the_precision_of_its_cache(
    tmp_path: Path, beside: dict[str, object], says: str
) -> None:
    """As vLLM takes it by itself; one that is not counted is named."""
    model = written(tmp_path, **beside)
    assert model.dtype == says
    assert any("NVFP4" in note for note in model.notes) == ("NVFP4" in str(beside))
    assert resolve_model(str(tmp_path), "bf16").dtype == "bf16"


def test_an_indexer_keeps_keys_of_its_own(tmp_path: Path) -> None:
    """GLM-5: 78 layers of (576 x 2 + 132) bytes a token, on each GPU."""
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
    latent |= {"qk_nope_head_dim": 192, "v_head_dim": 256, "q_lora_rank": 2048}
    model = written(tmp_path, **latent, num_hidden_layers=78)
    assert model.bytes_per_token == model.kv_bytes_per_token(8) == 78 * (576 * 2 + 132)


@pytest.mark.parametrize(
    ("name", "dtype", "tp", "bytes_per_token"),
    [
        ("glm-5.2", "fp8", 1, 78 * 576 + 21 * 132),
        ("minimax-m3", None, 1, 60 * 2 * 4 * 128 * 2 + 57 * 256),
        ("minimax-m3", None, 4, 60 * 2 * 128 * 2 + 57 * 256),
        ("nemotron-super-49b", None, 1, 49 * 2 * 8 * 128 * 2),
        ("mimo-v2-flash", None, 1, (9 * 4 + 39 * 8) * (192 + 128) * 2),
        ("mimo-v2-flash", None, 8, (9 * 1 + 39 * 1) * (192 + 128) * 2),
    ],
)
def test_layers_that_differ_keep_what_each_keeps(
    name: str, dtype: KvDtype | None, tp: int, bytes_per_token: int
) -> None:
    """Indexers in some layers, layers without attention, and windows with heads of their own."""
    model = resolve_model(str(CONFIGS / name), dtype)
    assert model.kv_bytes_per_token(tp) == bytes_per_token
    assert not any("counted as full attention" in note for note in model.notes)


def test_fields_of_other_names_say_the_same(tmp_path: Path) -> None:
    """Those of Step-3.x, whose windowed layers have more query heads, and Kimi K3's output gate."""
    step = {
        "num_key_value_heads": None,
        "num_attention_groups": 8,
        "sliding_window": 512,
        "moe_num_experts": 64,
        "moe_top_k": 4,
        "moe_intermediate_size": 512,
        "share_expert_dim": 1024,
        "moe_layers_enum": ",".join(map(str, range(2, 32))),
        "layer_types": ["full_attention", *["sliding_attention"] * 3] * 8,
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": 48,
            "num_attention_groups": 4,
            "head_dim": 128,
        },
    }
    model = written(tmp_path, **step)
    shape = model.shaped()
    assert model.unknown == ()
    assert model.shape == UnlikeKv(HeadKv(8, 8, 128), HeadKv(24, 4, 128))
    each = [2 * 128 * 4096 * (queries + groups) for queries, groups in ((32, 8), (48, 4))]
    assert shape.attention_parameters == 8 * each[0] + 24 * each[1]
    assert shape.mlp_parameters == 2 * 3 * 4096 * 14_336
    assert shape.expert_parameters == 30 * 64 * 3 * 4096 * 512
    assert shape.shared_parameters == 30 * 3 * 4096 * 1024
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    plain, gated = (
        written(tmp_path, **latent, v_head_dim=96, mla_use_output_gate=gate).shaped()
        for gate in (False, True)
    )
    assert gated.attention_parameters - plain.attention_parameters == 32 * 32 * 96 * 4096


def test_sparse_attention_takes_blocks_of_its_kernels() -> None:
    """Of 128 tokens beside keys and values, on any GPU."""
    assert fixture("minimax-m3").default_block(resolve_gpu("h200")) == 128
    assert fixture("minimax-m2.5").default_block(resolve_gpu("h200")) == 16


def test_every_field_of_known_models_is_known() -> None:
    """Of presets and of real configs, but for parts that are not counted."""
    named = {
        name: fixture(name).unknown for name in sorted(each.name for each in CONFIGS.iterdir())
    }
    named |= {name: resolve_model(name).unknown for name in preset_names()}
    assert {name: fields for name, fields in named.items() if fields} == {}


def test_fields_that_are_not_known_are_named_and_widen_the_pool(tmp_path: Path) -> None:
    """By half where the name speaks of a cache, else by a tenth of the weights; not if unset."""
    gpu, engine = resolve_gpu("h100"), parse_engine("vllm@0.33")
    plain = written(tmp_path)
    irrelevant = written(tmp_path, rope_foo=2, foo_norm_eps=1e-6, window_foo=None, kv_foo=False)
    assert plain.unknown == irrelevant.unknown == ()
    known = derive_pool(plain, gpu, engine)
    widened = []
    for field in ("kv_compression", "num_engrams"):
        model = written(tmp_path, **{field: 4})
        assert model.unknown == (field,)
        assert any(f"does not know: {field};" in note for note in model.notes)
        pool = derive_pool(model, gpu, engine)
        assert pool.blocks == known.blocks
        assert pool.terms[-1].rule == field
        widened.append((pool.blocks - pool.low_blocks) / pool.blocks)
    assert 0.5 < widened[0] < 0.6 > 2 * widened[1]
    assert widened[1] > (known.blocks - known.low_blocks) / known.blocks


def test_latent_experts_are_as_narrow_as_they_work(tmp_path: Path) -> None:
    """Nemotron-3-Super: 120 billion parameters, of which experts of 1,024 dimensions."""
    experts = {
        "n_routed_experts": 64,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 512,
        "moe_latent_size": 256,
    }
    model = written(tmp_path, **experts).shaped()
    assert model.expert_parameters == 32 * 3 * 256 * 512 * 64
    assert model.shared_parameters == 32 * 2 * 4096 * 256


def test_layers_listed_by_their_kind_need_no_count(tmp_path: Path) -> None:
    """Nemotron-3-Ultra's list of kinds is the pattern of its predecessors."""
    pattern = json.loads((CONFIGS / "nemotron-h-8b" / "config.json").read_text())
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    kinds = [letters[letter] for letter in pattern.pop("hybrid_override_pattern")]
    del pattern["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps(pattern | {"layers_block_type": kinds}))
    by_list, by_pattern = resolve_model(str(tmp_path)), fixture("nemotron-h-8b")
    assert by_list.kinds == by_pattern.kinds
    assert by_list.shaped() == by_pattern.shaped()


def test_layers_of_unknown_kinds_count_in_full_and_are_named(tmp_path: Path) -> None:
    """An upper bound, not a model that keeps nothing."""
    model = written(tmp_path, layer_types=["gated_attention", "full_attention"] * 16)
    assert any("gated_attention" in note for note in model.notes)
    assert model.bytes_per_token == written(tmp_path).bytes_per_token


def test_published_sizes_of_compressed_attention() -> None:
    """DeepSeek-V4-Flash on 2 x H200: weights of a GPU by a start-up log, and the memory for KV.

    It was started with --enforce-eager: without CUDA graphs, and what a fused all-reduce takes.
    """
    stated = Deployment(
        gpu="h200",
        tp=2,
        model="deepseek-v4-flash",
        engine="vllm@0.25",
        gpu_memory_utilization=0.78,
        max_model_len=262_144,
    )
    terms = {term.name: term for term in resolve(stated).pool.terms}
    assert -terms["weights"].bytes / GIB == pytest.approx(74.08, rel=0.006)
    fused = (2.1 - 0.55) * GIB
    left = sum(term.bytes for term in terms.values()) - terms.pop("CUDA graphs").bytes + fused
    assert left / GIB == pytest.approx(32.08, rel=0.01)


@pytest.mark.parametrize(("ranks", "published"), [({"tp": 8}, 20.43), ({"dp": 8}, 156.9)])
def test_published_concurrency_of_compressed_attention(
    ranks: dict[str, int], published: float
) -> None:
    """DeepSeek-V4-Flash on 8 x B200, vLLM 0.25: how many requests of 1 M tokens a start-up logs.

    Source: vllm-project/recipes, issue 762.
    """
    stated = Deployment(
        gpu="b200",
        model="deepseek-v4-flash",
        engine="vllm@0.25",
        gpu_memory_utilization=0.95,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        **ranks,
    )
    found = resolve(stated)
    groups = found.model.kv_groups(1) if found.model else None
    assert groups is not None
    longest = 1_048_576
    most = [each.most_blocks(8192) or longest for each in groups.groups]
    blocks = [-(-longest // each.block_tokens) for each in groups.groups]
    held = found.pool.blocks / sum(map(min, most, blocks))
    assert held * found.replicas == pytest.approx(published, rel=0.025)


def test_parts_that_a_checkpoint_may_leave_in_16_bits_widen_the_pool() -> None:
    """`--weight-dtype nvfp4` does not say them: 21.86 GiB were logged of Qwen3.6-35B-A3B."""
    stated = fixture("qwen3.6-35b-a3b-nvfp4").quantized_to("nvfp4")
    pool = derive_pool(stated, resolve_gpu("h100"), parse_engine("vllm@0.27"))
    weights = next(term for term in pool.terms if term.name == "weights")
    assert -weights.bytes / GIB < 21.86 < (weights.band_bytes - weights.bytes) / GIB < 23
    assert any("leave parts in 16 bits" in note for note in pool.notes)
    assert not fixture("qwen3.6-35b-a3b-nvfp4").left_out_bytes()


def test_an_engines_own_blocks_of_compressed_attention(tmp_path: Path) -> None:
    """Its metrics name 256 tokens a block; one holds as much as a block that is stated."""
    metrics = tmp_path / "metrics.txt"
    metrics.write_text('vllm:cache_config_info{block_size="256",num_gpu_blocks="5001"} 1.0\n')
    stated = Deployment(gpu="h200", tp=2, model="deepseek-v4-flash")
    read = resolve(replace(stated, engine_log=str(metrics))).pool
    assert read.of_all_layers.tokens == 5000 * 256
    assert (
        read.of_all_layers.tokens
        == resolve(replace(stated, num_gpu_blocks=5001)).pool.of_all_layers.tokens
    )


def test_compressed_attention_on_one_more_gpu_is_no_smaller() -> None:
    """Its one head cannot be divided: all ranks cache the same."""
    model = preset("deepseek-v4-flash")
    assert model.kv_bytes_per_token(8) == model.kv_bytes_per_token(1) == 3915
    assert model.dtype == "fp8"
    assert not model.unknown


@pytest.mark.parametrize(
    "ratios", [[4, 16] * 16, [128] * 32, [4, 128], "4", [[4]] * 32, [*[0] * 32, 4]]
)
def test_other_compressed_attention_is_refused(tmp_path: Path, ratios: object) -> None:
    """Ratios that vLLM's caches do not have, none of 4, too few: the pool has to be stated."""
    with pytest.raises(InputError, match=r"compress_ratios does not list .* leave --model out"):
        written(tmp_path, compress_ratios=ratios, index_head_dim=128)


def test_what_compressed_attention_does_not_take() -> None:
    """Another precision, another engine, a drafter: each is refused with a remedy."""
    with pytest.raises(UsageError, match="--kv-dtype: compressed attention caches 8 bits"):
        resolve_model("deepseek-v4-flash", "bf16")
    stated = Deployment(gpu="h200", tp=2, model="deepseek-v4-flash")
    with pytest.raises(UsageError, match=r"block_size: 64, where .* blocks of 256 tokens"):
        resolve(replace(stated, block_size=64))
    assert resolve(replace(stated, block_size=256)).pool == resolve(stated).pool
    with pytest.raises(UsageError, match="not simulated in sglang"):
        resolve(replace(stated, engine="sglang@0.5"))
    with pytest.raises(UsageError, match="eagle:1 beside the compressed attention"):
        resolve(replace(stated, speculative="eagle:1"))
    drafting = resolve(replace(stated, speculative="mtp:1"))
    assert drafting.model is not None
    assert drafting.model.compressed is not None
    assert drafting.model.compressed.layers == 44
