"""The latency of an engine by roofline: arithmetic, memory and link rates of the GPU.

    TTFT = base + layers x launch + max(2 P u / (tp F m) + all-reduce, weights / (tp 0.75 BW))
           + attention FLOPs / (tp F16 0.5)

    TPOT = (weights read + KV read) / (0.71 BW) + layers x launch + 18 us x batch + 0.6 ms

u: uncached tokens; P: parameters multiplied with each; F: the GPU's dense FLOP/s at the precision
of the weights, F16 at 16 bits; m: the share of F that engines reach; BW: memory bytes a second. The
latency profile's floor is weights / (tp 0.75 BW). The shares were fitted to published measurements:
half of vLLM's TTFTs lie within 14 % and 9 of 10 within 35 %; for a model left out of the fit within
28 % and 72 % (docs/evidence/deployment.md). So a decision must hold at LOW and at HIGH times this
profile; else measure the latency with `kvscope calibrate`.

Source: Williams, Waterman, Patterson: Roofline (CACM 2009); shares fitted on 2026-11-22 to the
published figures in aiconfigurator-core 0.12.0, systems/silicon_sample.csv, and in TensorRT-LLM
0.5.0, docs/source/performance.md, section "Low Latency".
"""

from __future__ import annotations

from kvscope.deployment.architecture import Architecture, Heads
from kvscope.deployment.engines import Engine
from kvscope.deployment.gpus import Gpu
from kvscope.deployment.models import Model
from kvscope.deployment.speculative import Drafter
from kvscope.latency.profile import LatencyProfile

LOW, HIGH = 0.65, 1.65
"""Range of measured over predicted TTFT within which a decision has to hold."""

REQUEST_S = 0.025
"""Time of a request in vLLM outside of the engine's steps: HTTP, tokenizer, processes."""
LAUNCH_S, LAUNCH_TP_S = 120e-6, 25e-6  # a layer's kernels in a prefill; more with all-reduces
DECODE_LAYER_S, DECODE_LAYER_TP_S = 30e-6, 40e-6
DECODE_STEP_S, DECODE_REQUEST_S = 0.6e-3, 18e-6
_MEMORY_SHARE, DECODE_MEMORY_SHARE = 0.75, 0.71
_ATTENTION_SHARE, _LINK_SHARE, _MOE_SHARE = 0.5, 0.4, 0.35
_TYPICAL_BATCH = 16  # running requests whose experts a decode step reads
_ACTIVATION_BYTES = 2
_ALL_REDUCES = 2  # in each layer: after attention and after the MLP


def roofline(
    model: Model,
    gpu: Gpu,
    tp: int = 1,
    *,
    dp: int = 1,
    request_s: float = REQUEST_S,
    drafter: Drafter | None = None,
) -> LatencyProfile:
    """Return the latency profile of one replica on `tp` GPUs, decode costs included.

    `dp` ranks divide the experts and have equal steps: each computes experts for as many tokens as
    it sends, and reads its part of the experts that all ranks' tokens need. Tokens go to all GPUs
    and back over the link, as in vLLM's default exchange. `request_s` is seconds per request
    outside the engine's steps. Each token drafted by MTP or EAGLE adds the time of their layer and
    the output head to a step; a step decodes `drafter.per_step` tokens of a request. Raises
    InputError for a model whose config lacks fields that its weights need.
    """
    shape = model.shaped()
    dp = dp if shape.moe else 1
    rate, share = prefill_rate(model, gpu)
    per_token = 2 * shape.active_parameters / (tp * rate * share)
    per_token += _all_reduce_s(shape, gpu, tp) + _exchange_s(shape, gpu, tp, dp)
    full_pair, windowed_pair = (
        attention_flops_per_pair(shape, heads) / (tp * gpu.flops * _ATTENTION_SHARE)
        for heads in model.kinds.unlike_heads or (None, None)
    )
    full, windowed = model.kinds.attending
    if model.compressed:
        each, besides = model.compressed.look_flops(shape.heads)
        full_pair = each / full / (tp * gpu.flops * _ATTENTION_SHARE)
        per_token += besides / (tp * gpu.flops * _ATTENTION_SHARE)
    # A windowed layer attends to at most its window: a cost of the token, not of the pair.
    per_token += windowed_pair * windowed * (model.kinds.window or 0)
    launch = LAUNCH_S + (LAUNCH_TP_S if tp * dp > 1 else 0)
    weights = shape.bytes_read(model.bits, float("inf"), dp) / tp
    decode_weights = shape.bytes_read(model.bits, _TYPICAL_BATCH, dp) / tp
    bandwidth = gpu.memory_bytes_s * DECODE_MEMORY_SHARE
    layer = DECODE_LAYER_S + (DECODE_LAYER_TP_S if tp * dp > 1 else 0)
    kv_bytes, window_bytes = kv_read(model, tp)
    per_step, drafting_s = 1.0, 0.0
    if drafter is not None:
        per_step = drafter.per_step
    if drafter is not None and drafter.reads_states:
        read = decode_weights / shape.layers + 2 * shape.embedding_parameters / tp
        drafting_s = drafter.tokens * (read / bandwidth + layer)
    suffix, ranks = (f"-dp{dp}", f"{dp} ranks of ") if dp > 1 else ("", "")
    return LatencyProfile(
        name=f"{model.name}-{model.weight_dtype}-{tp}x{gpu.name}{suffix}",
        source=f"roofline of {model.name} in {model.weight_dtype} on {ranks}{tp} x {gpu.name}:"
        f" within x {LOW} and x {HIGH}, not measured",
        base_s=request_s + shape.layers * launch,
        per_token_s=per_token,
        per_token_pair_s=full_pair * full,
        floor_s=weights / (gpu.memory_bytes_s * _MEMORY_SHARE),
        request_s=request_s,
        decode_base_s=(
            decode_weights / bandwidth + shape.layers * layer + DECODE_STEP_S + drafting_s
        )
        / per_step,
        decode_request_s=(DECODE_REQUEST_S + window_bytes / bandwidth) / per_step,
        decode_context_token_s=kv_bytes / bandwidth / per_step,
    )


def kv_read(model: Model, tp: int) -> tuple[float, float]:
    """Return the KV bytes that decoding a token reads on each GPU: per context token, and constant.

    The constant part is that of windows, and with compressed attention also of chosen entries.
    """
    if model.compressed:
        return model.compressed.read_bytes
    of_full, of_windowed = model.layer_bytes_per_token(tp)
    full, windowed = model.kinds.attending
    return of_full * full, of_windowed * windowed * (model.kinds.window or 0)


def attention_flops_per_pair(shape: Architecture, heads: Heads | None = None) -> float:
    """Return one layer's attention FLOPs for a pair of tokens: score and weighted value.

    `heads` are those of the layer; None: the heads of `shape`.
    """
    if heads is None:
        return 2.0 * shape.heads * (shape.query_size + shape.value_size)
    return 2.0 * heads.queries * (heads.key_size + heads.value_size)


def prefill_rate(model: Model, gpu: Gpu) -> tuple[float, float]:
    """Return the dense FLOP/s available to a prefill, and the share of them that engines reach.

    Weights in 4 bits are computed in 16 bits on GPUs without 4-bit tensor cores.
    """
    share = _MOE_SHARE if model.moe else 1.0
    dtype = model.weight_dtype
    blackwell = gpu.family == "blackwell"
    if dtype in {"fp8", "int8"} and gpu.fp8_flops:
        reached = {"blackwell": 0.45, "ada": 0.5}.get(gpu.family, 0.65)
        return gpu.fp8_flops, reached * share
    if dtype == "nvfp4" and gpu.fp4_flops:
        return gpu.fp4_flops, 0.38 * share
    if dtype == "mxfp4" and blackwell:
        return gpu.fp8_flops, 0.55 * share
    return gpu.flops, (0.55 if blackwell else 0.62) * share


def _all_reduce_s(shape: Architecture, gpu: Gpu, tp: int) -> float:
    """Return the seconds of a token's all-reduces in all layers, by rings of `tp` GPUs."""
    if tp == 1:
        return 0.0
    moved = _ALL_REDUCES * shape.layers * shape.hidden_size * _ACTIVATION_BYTES * 2 * (tp - 1) / tp
    return moved / (gpu.link_bytes_s * _LINK_SHARE)


def _exchange_s(shape: Architecture, gpu: Gpu, tp: int, dp: int) -> float:
    """Return the seconds to send a token to the experts of all ranks and back, in all layers.

    Each layer has an all-gather and a reduce-scatter over all GPUs.

    Source: vLLM 0.32.0, vllm/distributed/device_communicators/all2all.py
    (AgRsAll2AllManager).
    """
    if dp == 1:
        return 0.0
    moved = 2 * shape.layers * shape.hidden_size * _ACTIVATION_BYTES * (tp * dp - 1) / tp
    return moved / (gpu.link_bytes_s * _LINK_SHARE)


def latency_notes(model: Model, gpu: Gpu, engine: Engine, tp: int, dp: int = 1) -> list[str]:
    """Return a note if the roofline may be further off than its band, else an empty list."""
    reasons = [
        (model.hybrid, "layers of several kinds"),
        (model.moe, f"experts over {tp * dp} GPUs" if dp > 1 else "experts"),
        (model.vision, "a vision encoder"),
        (model.weight_dtype in {"awq", "gptq"}, f"{model.weight_dtype} weights"),
        (not gpu.checked, f"{gpu.name}"),
        (tp > 1 and gpu.link_bytes_s < 100e9, "tensor parallelism over PCIe"),
        (engine.name == "sglang", "SGLang"),
    ]
    uncertain = [what for holds, what in reasons if holds]
    if not uncertain:
        return []
    what = f"the roofline was checked little or not at all for {', '.join(uncertain)}"
    return [f"{what}: measure with `kvscope calibrate`"]
