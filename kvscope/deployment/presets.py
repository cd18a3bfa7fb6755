"""Model presets: the fields of each model's config.json that size its KV cache and its weights.

Source: the config.json of the repository that each preset names, on Hugging Face.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = dict[str, Any]
_SLIDING, _FULL = "sliding_attention", "full_attention"


def _dense(
    hidden: int,
    layers: int,
    heads: tuple[int, int, int],
    intermediate: int,
    vocabulary: int,
    **fields: Any,
) -> Config:
    """Return a config; `heads` are the attention heads, the KV heads, and the size of each."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "torch_dtype": "bfloat16",
        **fields,
    }


def _experts(count: int, per_token: int, width: int) -> Config:
    return {
        "num_experts": count,
        "num_experts_per_tok": per_token,
        "moe_intermediate_size": width,
    }


def _vision(hidden: int, layers: int, intermediate: int, kind: str) -> Config:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers}
    return {"vision_config": {**sizes, "intermediate_size": intermediate, "model_type": kind}}


def _gpt_oss(layers: int, experts: int) -> Config:
    return _dense(
        2880,
        layers,
        (64, 8, 64),
        2880,
        201_088,
        model_type="gpt_oss",
        num_local_experts=experts,
        num_experts_per_tok=4,
        layer_types=[_SLIDING, _FULL] * (layers // 2),
        sliding_window=128,
        quantization_config={"quant_method": "mxfp4"},
    )


_FP16: Config = {"torch_dtype": "float16"}
_TIED: Config = {"tie_word_embeddings": True}
_SIGLIP = _vision(1152, 27, 4304, "siglip_vision_model")
_GEMMA2: Config = {**_TIED, "model_type": "gemma2", "sliding_window": 4096}
_GEMMA3: Config = {**_TIED, "model_type": "gemma3", "sliding_window": 1024, **_SIGLIP}
_DEEPSEEK_V3 = _dense(
    7168,
    61,
    (128, 128, 128),
    18_432,
    129_280,
    model_type="deepseek_v3",
    n_routed_experts=256,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    n_shared_experts=1,
    first_k_dense_replace=3,
    kv_lora_rank=512,
    q_lora_rank=1536,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
)
_LLAMA_8B = _dense(4096, 32, (32, 8, 128), 14_336, 128_256)
_LLAMA_70B = _dense(8192, 80, (64, 8, 128), 28_672, 128_256)

PRESETS: Mapping[str, tuple[str, Config]] = {
    "vicuna-7b": (
        "lmsys/vicuna-7b-v1.5",
        _dense(4096, 32, (32, 32, 128), 11_008, 32_000, **_FP16),
    ),
    "llama2-7b": (
        "meta-llama/Llama-2-7b-hf",
        _dense(4096, 32, (32, 32, 128), 11_008, 32_000, **_FP16),
    ),
    "llama2-13b": (
        "meta-llama/Llama-2-13b-hf",
        _dense(5120, 40, (40, 40, 128), 13_824, 32_000, **_FP16),
    ),
    "llama2-70b": (
        "meta-llama/Llama-2-70b-hf",
        _dense(8192, 80, (64, 8, 128), 28_672, 32_000, **_FP16),
    ),
    "llama3-8b": ("meta-llama/Meta-Llama-3-8B", _LLAMA_8B),
    "llama3-70b": ("meta-llama/Meta-Llama-3-70B", _LLAMA_70B),
    "llama3.1-8b": ("meta-llama/Llama-3.1-8B", _LLAMA_8B),
    "llama3.1-70b": ("meta-llama/Llama-3.1-70B", _LLAMA_70B),
    "llama3.1-405b": (
        "meta-llama/Llama-3.1-405B",
        _dense(16_384, 126, (128, 8, 128), 53_248, 128_256),
    ),
    "llama3.3-70b": ("meta-llama/Llama-3.3-70B-Instruct", _LLAMA_70B),
    "mistral-7b": (
        "mistralai/Mistral-7B-v0.3",
        _dense(4096, 32, (32, 8, 128), 14_336, 32_768),
    ),
    "mistral-small-24b": (
        "mistralai/Mistral-Small-24B-Instruct-2501",
        _dense(5120, 40, (32, 8, 128), 32_768, 131_072),
    ),
    "mistral-small-3.1-24b": (
        "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
        _dense(5120, 40, (32, 8, 128), 32_768, 131_072, **_vision(1024, 24, 4096, "pixtral")),
    ),
    "mixtral-8x7b": (
        "mistralai/Mixtral-8x7B-v0.1",
        _dense(
            4096,
            32,
            (32, 8, 128),
            14_336,
            32_000,
            num_local_experts=8,
            num_experts_per_tok=2,
        ),
    ),
    "phi-4": ("microsoft/phi-4", _dense(5120, 40, (40, 10, 128), 17_920, 100_352)),
    "qwen2-7b": ("Qwen/Qwen2-7B", _dense(3584, 28, (28, 4, 128), 18_944, 152_064)),
    "qwen2-72b": ("Qwen/Qwen2-72B", _dense(8192, 80, (64, 8, 128), 29_568, 152_064)),
    "qwen2.5-0.5b": (
        "Qwen/Qwen2.5-0.5B",
        _dense(896, 24, (14, 2, 64), 4864, 151_936, **_TIED),
    ),
    "qwen2.5-1.5b": (
        "Qwen/Qwen2.5-1.5B",
        _dense(1536, 28, (12, 2, 128), 8960, 151_936, **_TIED),
    ),
    "qwen2.5-3b": (
        "Qwen/Qwen2.5-3B",
        _dense(2048, 36, (16, 2, 128), 11_008, 151_936, **_TIED),
    ),
    "qwen2.5-7b": ("Qwen/Qwen2.5-7B", _dense(3584, 28, (28, 4, 128), 18_944, 152_064)),
    "qwen2.5-14b": ("Qwen/Qwen2.5-14B", _dense(5120, 48, (40, 8, 128), 13_824, 152_064)),
    "qwen2.5-32b": ("Qwen/Qwen2.5-32B", _dense(5120, 64, (40, 8, 128), 27_648, 152_064)),
    "qwen2.5-72b": ("Qwen/Qwen2.5-72B", _dense(8192, 80, (64, 8, 128), 29_568, 152_064)),
    "qwen3-0.6b": (
        "Qwen/Qwen3-0.6B",
        _dense(1024, 28, (16, 8, 128), 3072, 151_936, **_TIED),
    ),
    "qwen3-8b": ("Qwen/Qwen3-8B", _dense(4096, 36, (32, 8, 128), 12_288, 151_936)),
    "qwen3-14b": ("Qwen/Qwen3-14B", _dense(5120, 40, (40, 8, 128), 17_408, 151_936)),
    "qwen3-32b": ("Qwen/Qwen3-32B", _dense(5120, 64, (64, 8, 128), 25_600, 151_936)),
    "qwen3-30b-a3b": (
        "Qwen/Qwen3-30B-A3B",
        _dense(2048, 48, (32, 4, 128), 6144, 151_936, **_experts(128, 8, 768)),
    ),
    "qwen3-235b-a22b": (
        "Qwen/Qwen3-235B-A22B",
        _dense(4096, 94, (64, 4, 128), 12_288, 151_936, **_experts(128, 8, 1536)),
    ),
    "gemma2-2b": ("google/gemma-2-2b", _dense(2304, 26, (8, 4, 256), 9216, 256_000, **_GEMMA2)),
    "gemma2-9b": ("google/gemma-2-9b", _dense(3584, 42, (16, 8, 256), 14_336, 256_000, **_GEMMA2)),
    "gemma2-27b": (
        "google/gemma-2-27b",
        _dense(4608, 46, (32, 16, 128), 36_864, 256_000, **_GEMMA2),
    ),
    "gemma3-4b": (
        "google/gemma-3-4b-it",
        _dense(2560, 34, (8, 4, 256), 10_240, 262_208, **_GEMMA3),
    ),
    "gemma3-12b": (
        "google/gemma-3-12b-it",
        _dense(3840, 48, (16, 8, 256), 15_360, 262_208, **_GEMMA3),
    ),
    "gemma3-27b": (
        "google/gemma-3-27b-it",
        _dense(5376, 62, (32, 16, 128), 21_504, 262_208, **_GEMMA3),
    ),
    "deepseek-v3": ("deepseek-ai/DeepSeek-V3", _DEEPSEEK_V3),
    "deepseek-r1": ("deepseek-ai/DeepSeek-R1", _DEEPSEEK_V3),
    "gpt-oss-20b": ("openai/gpt-oss-20b", _gpt_oss(24, 32)),
    "gpt-oss-120b": ("openai/gpt-oss-120b", _gpt_oss(36, 128)),
}
