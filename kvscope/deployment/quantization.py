"""The precision of a model's weights: bits by part, from the quantization that a config states.

Source: vLLM 0.33.0, vllm/model_executor/layers/quantization; Hugging Face transformers,
`quantization_config`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from kvscope.deployment.config_fields import ConfigFields

WeightDtype = Literal["bf16", "fp8", "int8", "awq", "gptq", "nvfp4", "mxfp4"]
WEIGHT_DTYPES: tuple[WeightDtype, ...] = get_args(WeightDtype)
BITS: Mapping[WeightDtype, float] = {
    "bf16": 16,
    "fp8": 8.03,  # a scale for each block of 128 x 128 values
    "int8": 8.03,
    "awq": 4.25,  # a scale and a zero point for each group of 128 values
    "gptq": 4.25,
    "nvfp4": 4.5,  # an 8-bit scale for each group of 16 values
    "mxfp4": 4.25,  # an 8-bit scale for each group of 32 values
}
UNQUANTIZED_BITS = 16  # embedding, router and vision encoder
_PARTS = {
    "attention": "_attn",
    "mlp": r"mlp\.[gud]",
    "experts": r"\.experts",
    "shared": "shared_",
    "head": "lm_head",
}


class WeightBits(Struct, frozen=True):
    """Bits per parameter in each part of a model, including the scales of quantized parts.

    `experts` are the routed experts, `shared` those that every token passes, `head` is the output
    head. Embeddings, router and vision encoder have 16 bits, as a head tied to the embedding does.
    """

    attention: float = 16
    mlp: float = 16
    experts: float = 16
    shared: float = 16
    head: float = 16


def weight_bits(dtype: WeightDtype, *, moe: bool) -> WeightBits:
    """Return the bits by part if all but the output head is quantized to `dtype`.

    In MoE models, `mxfp4` quantizes the experts alone, as in gpt-oss.
    """
    bits = BITS[dtype]
    if dtype == "mxfp4" and moe:
        return WeightBits(experts=bits)
    return WeightBits(bits, bits, bits, bits)


def quantization(config: ConfigFields, *, moe: bool) -> tuple[WeightDtype, WeightBits, str | None]:
    """Return the precision of the weights, their bits by part, and a note if it is unknown.

    Source: Hugging Face `quantization_config`; NVIDIA modelopt's hf_quant_config.json.
    """
    stated = config.get("quantization_config", "quantization", default={})
    if not isinstance(stated, Mapping) or not stated:
        return "bf16", WeightBits(), None
    dtype = _quantized_to(stated)
    if dtype is None:
        method = stated.get("quant_method") or stated.get("quant_algo")
        note = f"quantization {method!r} is unknown: weights counted with 16 bits"
        return "bf16", WeightBits(), f"{note}; override with --weight-dtype"
    mixed = stated.get("quantized_layers")
    bits = _mixed_bits(mixed) if isinstance(mixed, Mapping) else weight_bits(dtype, moe=moe)
    if config.get("expert_dtype") == "fp4":
        bits = replace(bits, experts=BITS["mxfp4"])
    left_out = ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers")
    names = [str(name) for key in left_out for name in stated.get(key) or ()]
    layers = config.count("num_hidden_layers", "n_layer", "num_layers")
    if _left_out(names, r"self_attn(\.?\*|\.[qkvo]_proj)?$", layers):
        bits = replace(bits, attention=UNQUANTIZED_BITS)
    if _left_out(names, r"shared_experts?\b", layers):
        bits = replace(bits, shared=UNQUANTIZED_BITS)
    return dtype, bits, None


def _mixed_bits(modules: Mapping[str, Any]) -> WeightBits:
    """Return the bits by part from modelopt's precision of each module; others have 16 bits."""
    by_part: dict[str, float] = {}
    for name, stated in modules.items():
        algorithm = str(stated.get("quant_algo")).lower().removeprefix("w4a16_")
        bits = [bits for dtype, bits in BITS.items() if dtype == algorithm]
        by_part |= {part: bits[0] for part, its in _PARTS.items() if bits and re.search(its, name)}
    return WeightBits(**by_part)


def _left_out(names: Sequence[str], pattern: str, layers: int) -> bool:
    """Return whether a part of the model is unquantized in more than half of its `layers`.

    `names` are the unquantized modules. `pattern`, a regular expression, finds the part in a name,
    behind the name of the layer. A matching name with a `*` stands for all layers.
    """
    matches = [match for name in names if (match := re.search(pattern, name))]
    if any("*" in match.string for match in matches):
        return True
    return len({match.string[: match.start()] for match in matches}) > layers // 2


def _quantized_to(stated: Mapping[str, Any]) -> WeightDtype | None:
    method = str(stated.get("quant_method") or "").lower()
    algorithm = str(stated.get("quant_algo") or "").lower()
    for dtype in WEIGHT_DTYPES:
        if method.removesuffix("_marlin") == dtype or algorithm == dtype:
            return dtype
    groups = stated.get("config_groups")
    if not isinstance(groups, Mapping):
        return "fp8" if method == "compressed-tensors" else None
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            wide, floating = weights.get("num_bits") == 8, weights.get("type") == "float"
            if wide:
                return "fp8" if floating else "int8"
            return "nvfp4" if floating else "gptq"
    return None
