"""The models of the stages: config.json files as vLLM reads them, and small ones of their kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvscope.deployment.presets import PRESETS

Config = dict[str, Any]
_LLAMA: Config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_MLA: Config = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10_944,
    "vocab_size": 102_400,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": False,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def _preset(name: str, **fields: Any) -> Config:
    config = {key: value for key, value in PRESETS[name][1].items() if key != "vision_config"}
    return config | {"max_position_embeddings": 16_384, "hidden_act": "silu"} | fields


CONFIGS: dict[str, Config] = {
    "llama3-8b": _preset("llama3-8b", **_LLAMA, rope_theta=500_000.0),
    "qwen2.5-14b": _preset(
        "qwen2.5-14b", architectures=["Qwen2ForCausalLM"], model_type="qwen2", rms_norm_eps=1e-6
    ),
    "qwen3-30b-a3b": _preset(
        "qwen3-30b-a3b", architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe"
    ),
    "deepseek-v2-lite": _MLA,
    "gemma3-4b": _preset(
        "gemma3-4b",
        architectures=["Gemma3ForCausalLM"],
        model_type="gemma3_text",
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=256,
    ),
}
_SMALL: Config = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_experts": 8,
    "n_routed_experts": 8,
    "vocab_size": 2048,
    "torch_dtype": "float32",
    "max_position_embeddings": 2048,
}


def write_model(folder: Path, name: str, *, small: bool = False) -> Path:
    """Write the config.json of a model into a folder of its name, and return that.

    With `small` the sizes are those that a CPU computes in milliseconds.
    """
    config = dict(CONFIGS[name])
    if small:
        config |= {key: value for key, value in _SMALL.items() if key in config}
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return path
