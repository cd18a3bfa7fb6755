"""Latency profiles known by name, each with the published numbers that it follows from.

The GPU presets are the straight line through two first-token latencies at batch size 1, input 128
and 2,048 tokens, of one table: β = T(128) - 128·α, α = (T(2048) - T(128)) / 1,920. That line is the
papers' linear model (γ = 0). The table prints whole milliseconds, and 2,048 tokens is as far as it
goes: attention makes longer prompts dearer than the line says. To decide on an engine of your own,
measure it with `kvscope calibrate`.

Source: NVIDIA, "Performance of TensorRT-LLM", version 0.5.0, docs/source/performance.md, section
"Low Latency".
"""

from __future__ import annotations

from collections.abc import Mapping

from kvscope.latency.profile import LatencyProfile

DEFAULT_PROFILE = "llama2-7b-a100"
"""The T-LRU paper's own setting, one A100 with a 7B Llama in fp16 (Vicuna-7B has the same shape).

The paper says that it took a straight line but not which. On this one, its 200 ms are 3,147 tokens.
"""


def _line(name: str, engine: str, short_ms: float, long_ms: float) -> LatencyProfile:
    """The line through the first-token latencies of 128 and of 2,048 tokens."""
    per_token_ms = (long_ms - short_ms) / (2_048 - 128)
    return LatencyProfile(
        name=name,
        source=f"TensorRT-LLM 0.5.0, performance.md, Low Latency: {engine}, batch 1, input 128 "
        f"tokens {short_ms:g} ms, 2,048 tokens {long_ms:g} ms; the line through both",
        base_s=(short_ms - 128 * per_token_ms) / 1_000,
        per_token_s=per_token_ms / 1_000,
    )


_TABLE = (
    _line(DEFAULT_PROFILE, "LLaMA 7B on one A100 in FP16", 16, 133),
    _line("llama2-7b-h100-fp8", "LLaMA 7B on one H100 in FP8", 7, 36),
    _line("llama2-70b-4xa100", "LLaMA 70B on four A100 in FP16", 47, 377),
    _line("llama2-70b-4xh100-fp8", "LLaMA 70B on four H100 in FP8", 26, 109),
    LatencyProfile(
        name="small-llama-cpu",
        source="measured: vLLM 0.32 on 2 CPU cores, a Llama of hidden size 768 with 8 layers in "
        "bf16, cold prompts up to 4,096 tokens: 8.1 ms + 0.1226 ms n + 3.10e-5 ms n^2 "
        "(R^2 0.99996)",
        base_s=8.1e-3,
        per_token_s=0.1226e-3,
        per_token_pair_s=2 * 3.10e-8,  # a cold prompt of n tokens has n^2 / 2 pairs
    ),
)
PRESETS: Mapping[str, LatencyProfile] = {profile.name: profile for profile in _TABLE}
MODELS: Mapping[str, str] = {
    DEFAULT_PROFILE: "llama2-7b",
    "llama2-7b-h100-fp8": "llama2-7b",
    "llama2-70b-4xa100": "llama2-70b",
    "llama2-70b-4xh100-fp8": "llama2-70b",
}
"""Whose latency a preset is, by the names of kvscope.core.kv_size."""
