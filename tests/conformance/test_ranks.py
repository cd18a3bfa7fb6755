"""Weights on a GPU of a data-parallel rank: as in the model that vLLM's own code builds there."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvscope.core.units import GIB
from kvscope.deployment.engines import parse_engine
from kvscope.deployment.models import read_config, resolve_model
from kvscope.deployment.pool import activation_bytes
from tests.conformance.vllm_side import ModelConfig, VllmConfig, torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.config import CacheConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.experts import deep_gemm_moe
    from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts
    from vllm.model_executor.models import ModelRegistry

pytestmark = pytest.mark.engine

SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rope_theta": 10000.0,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek_v3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "n_routed_experts": 24,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "moe_layer_freq": 1,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "kv_lora_rank": 64,
        "q_lora_rank": 96,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 24,
        "head_dim": 32,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Join the groups of a process of its own, and leave them."""
    config = VllmConfig()
    with set_current_vllm_config(config):
        store = f"file://{tmp_path / 'store'}"
        parallel_state.init_distributed_environment(1, 0, store, 0, "gloo")
        parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("tp", "dp", "expert_parallel"),
    [(1, 1, False), (2, 1, False), (1, 4, False), (1, 4, True), (2, 4, True), (1, 5, True)],
)
def test_weights_of_a_gpu(
    name: str,
    tp: int,
    dp: int,
    expert_parallel: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every matrix that the first GPU of the first rank holds, to the byte."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": name} | SHAPE | CONFIGS[name]), encoding="utf-8")
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(tmp_path), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=256
        ),
        cache_config=CacheConfig(block_size=16),
    )
    parallel = config.parallel_config
    parallel.tensor_parallel_size, parallel.data_parallel_size = tp, dp
    parallel.enable_expert_parallel = expert_parallel
    monkeypatch.setattr(parallel_state._TP, "world_size", tp)
    monkeypatch.setattr(parallel_state._DP, "world_size", dp)
    monkeypatch.setattr(parallel_state._EP, "world_size", tp * dp)
    of_all = SimpleNamespace(size=lambda: tp * dp, rank=lambda: 0)
    monkeypatch.setattr(parallel_state._EP, "device_group", of_all)
    usual = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        with set_current_vllm_config(config):
            kind, _ = ModelRegistry.resolve_model_cls(
                CONFIGS[name]["architectures"], config.model_config
            )
            model = kind(vllm_config=config)
    finally:
        torch.set_default_dtype(usual)
    matrices = (each for each in model.parameters() if each.dim() > 1)  # no norms and biases
    held = sum(each.numel() * each.element_size() for each in matrices)
    assert read_config(path).weight_bytes(tp, dp) == held


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_room_for_the_tokens_of_all_ranks(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks' steps: the workspaces of vLLM's experts, the tokens gathered, their results."""
    model = resolve_model("deepseek-v3", weight_dtype=dtype)
    shape, tokens = model.shaped(), 8 * 8192
    monkeypatch.setattr(deep_gemm_moe, "get_mk_alignment_for_contiguous_layout", lambda: (128, 128))
    kernel = SimpleNamespace(
        adjust_N_for_activation=lambda width, _: width // 2,
        block_shape=[128, 128],
        workspace_dtype=lambda dtype: dtype,
        moe_config=SimpleNamespace(in_dtype=torch.bfloat16),
    )
    experts = deep_gemm_moe.DeepGemmExperts if dtype == "fp8" else TritonExperts
    first, second, output = experts.workspace_shapes(
        kernel,
        tokens,
        2 * shape.expert_width,
        shape.hidden_size,
        shape.experts_per_token,
        shape.experts,
        shape.experts // 8,
        None,
        MoEActivation.SILU,
    )
    gathered = tokens * shape.hidden_size * (1 if dtype == "fp8" else 2)
    held = 2 * (max(prod(first), prod(output)) + prod(second) + prod(output)) + gathered
    fixed = 0.3 * GIB  # of models with experts
    known = activation_bytes(model, parse_engine("vllm@0.33"), 1024, 8192, 1, 8) - fixed
    assert known == pytest.approx(held, rel=0.01)
