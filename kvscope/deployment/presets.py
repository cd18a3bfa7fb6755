"""Model presets: the fields of each model's config.json that size its KV cache and its weights.

Source: the config.json of the repository that each preset names, on Hugging Face.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = dict[str, Any]

_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
_SLIDING, _FULL = "sliding_attention", "full_attention"


def _experts(per_token: int, width: int) -> Config:
    return {"num_experts": 128, "num_experts_per_tok": per_token, "moe_intermediate_size": width}


def _vision(hidden: int, layers: int, intermediate: int, kind: str) -> Config:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers}
    return {"vision_config": {**sizes, "intermediate_size": intermediate, "model_type": kind}}


def _gpt_oss(layers: int, experts: int) -> Config:
    return {
        "model_type": "gpt_oss",
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
        "layer_types": [_SLIDING, _FULL] * (layers // 2),
        "sliding_window": 128,
        "quantization_config": {"quant_method": "mxfp4"},
    }


def _deepseek_v4(
    experts: int, width: int, rank: int, groups: int, entries: int, ratios: list[int]
) -> Config:
    return {
        "model_type": "deepseek_v4",
        "n_routed_experts": experts,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": width,
        "n_shared_experts": 1,
        "q_lora_rank": rank,
        "qk_rope_head_dim": 64,
        "o_groups": groups,
        "o_lora_rank": 1024,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "index_topk": entries,
        "sliding_window": 128,
        "compress_ratios": ratios,
        "hc_mult": 4,
        "expert_dtype": "fp4",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }


_TIED: Config = {"tie_word_embeddings": True}
_SIGLIP = _vision(1152, 27, 4304, "siglip_vision_model")
_FURTHER: Mapping[str, Config] = {
    "fp16": {"torch_dtype": "float16"},
    "tied": _TIED,
    "mistral-small-3.1-24b": _vision(1024, 24, 4096, "pixtral"),
    "mixtral-8x7b": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3-30b-a3b": _experts(8, 768),
    "qwen3-235b-a22b": _experts(8, 1536),
    "gemma2": {**_TIED, "model_type": "gemma2", "sliding_window": 4096},
    "gemma3": {
        **_TIED,
        "model_type": "gemma3",
        "sliding_window": 1024,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        **_SIGLIP,
    },
    "deepseek": {
        "model_type": "deepseek_v3",
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
    "deepseek-v4-flash": _deepseek_v4(256, 2048, 1024, 8, 512, [0, 0, *[4, 128] * 20, 4, 0]),
    "deepseek-v4-pro": _deepseek_v4(384, 3072, 1536, 16, 1024, [128, 128, *[4, 128] * 29, 4, 0]),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
}
"""Config fields besides `_SIZES`, by the name of a preset, or by a word at the end of its row."""

_TABLE = """
 4096  32 32 32 128 11008  32000   4096 vicuna-7b lmsys/vicuna-7b-v1.5 fp16
 4096  32 32 32 128 11008  32000   4096 llama2-7b meta-llama/Llama-2-7b-hf fp16
 5120  40 40 40 128 13824  32000   4096 llama2-13b meta-llama/Llama-2-13b-hf fp16
 8192  80 64  8 128 28672  32000   4096 llama2-70b meta-llama/Llama-2-70b-hf fp16
 4096  32 32  8 128 14336 128256   8192 llama3-8b meta-llama/Meta-Llama-3-8B
 8192  80 64  8 128 28672 128256   8192 llama3-70b meta-llama/Meta-Llama-3-70B
 4096  32 32  8 128 14336 128256 131072 llama3.1-8b meta-llama/Llama-3.1-8B
 8192  80 64  8 128 28672 128256 131072 llama3.1-70b meta-llama/Llama-3.1-70B
16384 126 128  8 128 53248 128256 131072 llama3.1-405b meta-llama/Llama-3.1-405B
 8192  80 64  8 128 28672 128256 131072 llama3.3-70b meta-llama/Llama-3.3-70B-Instruct
 4096  32 32  8 128 14336  32768  32768 mistral-7b mistralai/Mistral-7B-v0.3
 5120  40 32  8 128 32768 131072  32768 mistral-small-24b mistralai/Mistral-Small-24B-Instruct-2501
 5120  40 32  8 128 32768 131072 131072 mistral-small-3.1-24b mistralai/Mistral-Small-3.1-24B-Instruct-2503
 4096  32 32  8 128 14336  32000  32768 mixtral-8x7b mistralai/Mixtral-8x7B-v0.1
 5120  40 40 10 128 17920 100352  16384 phi-4 microsoft/phi-4
 3584  28 28  4 128 18944 152064 131072 qwen2-7b Qwen/Qwen2-7B
 8192  80 64  8 128 29568 152064 131072 qwen2-72b Qwen/Qwen2-72B
  896  24 14  2  64  4864 151936  32768 qwen2.5-0.5b Qwen/Qwen2.5-0.5B tied
 1536  28 12  2 128  8960 151936 131072 qwen2.5-1.5b Qwen/Qwen2.5-1.5B tied
 2048  36 16  2 128 11008 151936  32768 qwen2.5-3b Qwen/Qwen2.5-3B tied
 3584  28 28  4 128 18944 152064 131072 qwen2.5-7b Qwen/Qwen2.5-7B
 5120  48 40  8 128 13824 152064 131072 qwen2.5-14b Qwen/Qwen2.5-14B
 5120  64 40  8 128 27648 152064 131072 qwen2.5-32b Qwen/Qwen2.5-32B
 8192  80 64  8 128 29568 152064 131072 qwen2.5-72b Qwen/Qwen2.5-72B
 1024  28 16  8 128  3072 151936  40960 qwen3-0.6b Qwen/Qwen3-0.6B tied
 4096  36 32  8 128 12288 151936  40960 qwen3-8b Qwen/Qwen3-8B
 5120  40 40  8 128 17408 151936  40960 qwen3-14b Qwen/Qwen3-14B
 5120  64 64  8 128 25600 151936  40960 qwen3-32b Qwen/Qwen3-32B
 2048  48 32  4 128  6144 151936  40960 qwen3-30b-a3b Qwen/Qwen3-30B-A3B
 4096  94 64  4 128 12288 151936  40960 qwen3-235b-a22b Qwen/Qwen3-235B-A22B
 2304  26  8  4 256  9216 256000   8192 gemma2-2b google/gemma-2-2b gemma2
 3584  42 16  8 256 14336 256000   8192 gemma2-9b google/gemma-2-9b gemma2
 4608  46 32 16 128 36864 256000   8192 gemma2-27b google/gemma-2-27b gemma2
 2560  34  8  4 256 10240 262208 131072 gemma3-4b google/gemma-3-4b-it gemma3
 3840  48 16  8 256 15360 262208 131072 gemma3-12b google/gemma-3-12b-it gemma3
 5376  62 32 16 128 21504 262208 131072 gemma3-27b google/gemma-3-27b-it gemma3
 7168  61 128 128 128 18432 129280 163840 deepseek-v3 deepseek-ai/DeepSeek-V3 deepseek
 7168  61 128 128 128 18432 129280 163840 deepseek-r1 deepseek-ai/DeepSeek-R1 deepseek
 4096  43 64  1 512     0 129280 1048576 deepseek-v4-flash deepseek-ai/DeepSeek-V4-Flash
 7168  61 128 1 512    0 129280 1048576 deepseek-v4-pro deepseek-ai/DeepSeek-V4-Pro
 2880  24 64  8  64  2880 201088 131072 gpt-oss-20b openai/gpt-oss-20b
 2880  36 64  8  64  2880 201088 131072 gpt-oss-120b openai/gpt-oss-120b
"""  # noqa: E501  # a row a model
"""A model a row: the values of `_SIZES`, its name, its repository, and words of `_FURTHER`."""


def _preset(row: str) -> tuple[str, tuple[str, Config]]:
    words = row.split()
    count = len(_SIZES)
    name, repository, *further = words[count:]
    config: Config = dict(zip(_SIZES, map(int, words[:count]), strict=True))
    config["torch_dtype"] = "bfloat16"
    for word in (name, *further):
        config |= _FURTHER.get(word, {})
    return name, (repository, config)


PRESETS: Mapping[str, tuple[str, Config]] = dict(map(_preset, _TABLE.strip().splitlines()))
"""By the name of a preset: the model's repository, and the fields of its config."""
