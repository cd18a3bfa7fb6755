"""Latency profiles: the time to first token (TTFT) of a prompt, and presets with their sources.

TTFT(u, c) = β + α·u + γ·u·(c + u/2), u uncached and c cached tokens. β is the cost of a request,
α that of a token, γ that of attending from one token to another: each of the u computed tokens
attends to the c cached ones before it and, on average, to half of the others. γ = 0 is the papers'
linear model. Where a profile has a floor, the time to read the weights once, α·u is at least that.

The GPU presets are the straight line through two first-token latencies at batch size 1, input 128
and 2,048 tokens, of one table. The table prints whole milliseconds, and 2,048 tokens is as far as
it goes: attention makes longer prompts dearer than the line says. For an engine of your own,
measure it with `kvscope calibrate`.

Source: Tail-Optimized Caching for LLM Inference, equation 2 (the linear model); NVIDIA,
"Performance of TensorRT-LLM", version 0.5.0, docs/source/performance.md, section "Low Latency".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct, field
from msgspec.structs import replace

from kvscope.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvscope.core.arrays import Float64s


PARAMETERS = ("base_s", "per_token_s", "per_token_pair_s")
STEP_PARAMETERS = (
    "floor_s",
    "request_s",
    "decode_base_s",
    "decode_request_s",
    "decode_context_token_s",
)
"""Parameters of the engine's steps, which a measured or stated profile need not have."""
TIMES = PARAMETERS + STEP_PARAMETERS
DEFAULT_PROFILE = "llama2-7b-a100"
"""The T-LRU paper's own setting, one A100 with a 7B Llama in fp16 (Vicuna-7B has the same shape).

The paper says that it took a straight line but not which. On this one, its 200 ms are 3,147 tokens.
"""


class LatencyProfile(Struct, frozen=True):
    """How long one engine takes to the first token of a prompt that does not wait.

    `base_s` is β, `per_token_s` α and `per_token_pair_s` γ, all in seconds, at least 0; a longer
    prompt takes longer, so one of the last two is above 0. `source` says where they come from.
    `intervals` holds (low, high) of a parameter, in seconds, where it was measured;
    `measured_tokens` is the longest prompt of the measurement, where that is known. `floor_s` is
    the least time of α·u, and `request_s` the part of β that passes outside of the engine's steps.
    A step that only decodes takes `decode_base_s` + `decode_request_s` for every running request +
    `decode_context_token_s` for every token before theirs; `decode_base_s` is None where decoding a
    token costs as much as a prompt's token.
    Raises UsageError for values that no engine has.
    """

    DOCUMENT: ClassVar[str] = (
        "profile=name base_ms per_token_ms per_token_pair_ms floor_ms request_ms decode_base_ms"
        " decode_request_ms decode_context_token_ms"
    )
    name: str
    source: str
    base_s: float
    per_token_s: float
    per_token_pair_s: float = 0.0
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    floor_s: float = 0.0
    request_s: float = 0.0
    decode_base_s: float | None = None
    decode_request_s: float = 0.0
    decode_context_token_s: float = 0.0
    measured_tokens: int | None = None

    def __post_init__(self) -> None:
        where = f"latency profile {self.name!r}"
        for parameter in TIMES:
            value = getattr(self, parameter)
            if value is None and parameter == "decode_base_s":
                continue
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(
                    f"{parameter} is {value}", where=where, remedy="give a time of 0 or more"
                )
        if not (self.per_token_s or self.per_token_pair_s):
            raise UsageError(
                "tokens cost no time",
                where=where,
                remedy="give per_token_s or per_token_pair_s above 0",
            )
        if self.request_s > self.base_s:
            raise UsageError(
                f"request_s is {self.request_s}", where=where, remedy="it is a part of base_s"
            )

    def __hash__(self) -> int:
        """Return a hash of all fields but `intervals`, a dict; the dashboard's cache needs it."""
        hashed = (name for name in self.__struct_fields__ if name != "intervals")
        return hash(tuple(getattr(self, name) for name in hashed))

    def ttft_s(
        self, uncached: int | NDArray[np.integer], cached: int | NDArray[np.integer]
    ) -> Float64s:
        """Return the seconds to the first token, unloaded, for each pair of token counts."""
        import numpy as np  # late: mistakes in a command are answered without it

        computed = np.asarray(uncached, dtype=np.float64)
        attended = np.asarray(cached, dtype=np.float64) + computed / 2
        if self.floor_s:
            read = np.maximum(self.floor_s, self.per_token_s * computed)
            return np.asarray(self.base_s + read + self.per_token_pair_s * computed * attended)
        per_token = self.per_token_s + self.per_token_pair_s * attended
        return np.asarray(self.base_s + computed * per_token)

    def scaled(self, factor: float) -> LatencyProfile:
        """Return the profile with all times multiplied by `factor`, which its name states."""
        times = {
            name: value * factor for name in TIMES if (value := getattr(self, name)) is not None
        }
        return replace(self, name=f"{self.name} x {factor:g}", intervals={}, **times)

    def xi_tokens(self, xi_s: float) -> int:
        """Return the most tokens that may stay uncached: the largest u with TTFT(u, 0) ≤ `xi_s`.

        0 where even an empty prompt takes longer. Raises UsageError if `xi_s` is not finite.
        """
        if not math.isfinite(xi_s):
            raise UsageError(f"{xi_s} is no latency threshold", remedy="write for example 200ms")
        budget = xi_s - self.base_s
        if budget <= 0 or self.ttft_s(0, 0) > xi_s:
            return 0
        alpha, gamma = self.per_token_s, self.per_token_pair_s
        # The quadratic's root in the form that γ = 0 does not divide by zero.
        most = math.floor(2 * budget / (alpha + math.sqrt(alpha * alpha + 2 * gamma * budget)))
        if self.floor_s and gamma:  # attention alone may fill what the floor leaves
            left = max(0.0, budget - self.floor_s)
            most = min(most, math.floor(math.sqrt(2 * left / gamma)))
        while most and self.ttft_s(most, 0) > xi_s:  # rounding: by one at the most
            most -= 1
        while self.ttft_s(most + 1, 0) <= xi_s:
            most += 1
        return most


def _line(name: str, engine: str, short_ms: float, long_ms: float) -> LatencyProfile:
    """Return the line through the first-token latencies of 128 and of 2,048 tokens."""
    per_token_ms = (long_ms - short_ms) / (2_048 - 128)
    return LatencyProfile(
        name=name,
        source=f"TensorRT-LLM 0.5.0, performance.md, Low Latency: {engine}, batch 1, input 128 "
        f"tokens {short_ms:g} ms, 2,048 tokens {long_ms:g} ms; the line through both",
        base_s=(short_ms - 128 * per_token_ms) / 1_000,
        per_token_s=per_token_ms / 1_000,
        measured_tokens=2_048,
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
        measured_tokens=4_096,
    ),
)
PRESETS: Mapping[str, LatencyProfile] = {profile.name: profile for profile in _TABLE}
FROM_TRACE = "trace"
TO_FIT = LatencyProfile(FROM_TRACE, source="", base_s=0.0, per_token_s=1.0)
"""Stands for the profile that will be fitted to a trace's TTFTs, until the trace is read."""
MODELS: Mapping[str, str] = {
    DEFAULT_PROFILE: "llama2-7b",
    "llama2-7b-h100-fp8": "llama2-7b",
    "llama2-70b-4xa100": "llama2-70b",
    "llama2-70b-4xh100-fp8": "llama2-70b",
}
"""The model of each preset, by the names of kvscope.deployment.models."""
