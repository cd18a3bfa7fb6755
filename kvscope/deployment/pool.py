"""The KV pool: what remains of a GPU's memory for KV blocks, derived or observed.

vLLM profiles one forward pass and keeps, on each GPU,

    utilization x total - weights - activation peak - other memory - CUDA graphs

for blocks; the rank with the least memory decides. SGLang keeps the memory that is free after
loading, less a share of the total. kvscope derives each term by a rule, with a band. Compared with
95 published pools in docs/evidence/deployment.md.

Block 0 of vLLM stands for "no block", so a pool's `blocks` are vLLM's `num_gpu_blocks` less 1.

An engine reports its pool in its start-up log, or in its metrics:

| text | meaning |
|---|---|
| `num_gpu_blocks="27000"` in `vllm:cache_config_info` | vLLM's blocks, block 0 included |
| `num_gpu_blocks_override=1213`, `# GPU blocks: 5519`, `# cuda blocks: 5519` | the same |
| `GPU KV cache size: 163,168 tokens` | blocks times block size; not for hybrid models |
| `Available KV cache memory: 8.11 GiB` | bytes of one GPU, one line for each |
| `max_total_num_tokens=445871` | SGLang's tokens |
| `--kv-cache-memory=61814666240` (57.57 GiB) to fully utilize | bytes of one GPU that would fit |

For hybrid models vLLM's cache size is the number of longest requests times their length, not the
pool (vllm#54662). The last start in a log counts.

Source: vLLM 0.33.0, vllm/v1/worker/gpu_worker.py (determine_available_memory),
vllm/v1/core/kv_cache_utils.py, vllm/v1/engine/core.py and vllm/v1/metrics/loggers.py (0.8:
vllm/executor/executor_base.py); SGLang, python/sglang/srt/server_args.py
(_handle_gpu_memory_settings) and managers/scheduler.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from io import TextIOWrapper
from pathlib import Path
from typing import ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import InputError, UsageError
from kvscope.core.files import opened
from kvscope.core.units import GIB, MIB, format_size
from kvscope.deployment.config_fields import concern_the_cache
from kvscope.deployment.engines import (
    GRAPHS,
    LEAN_SAMPLER,
    MORE_NCCL,
    SECOND_RUNNER,
    SECOND_RUNNER_GRAPHS,
    Engine,
    parse_engine,
)
from kvscope.deployment.gpus import Gpu
from kvscope.deployment.models import HeadKv, Model

PoolOrigin = Literal["stated", "engine log", "metrics", "derived"]

_WEIGHTS_BAND = 0.01  # 9 of 10 published weights are closer than this
_ACTIVATION_BAND = round(0.32 * GIB)
_OTHER_BAND = round(0.2 * GIB)
_GRAPHS_BAND = round(0.5 * GIB)
_FIRST_GRAPH, _GRAPH = 100 * MIB, 5.5 * MIB  # read off the development lines of 0.20 and newer
_MOST_A_LAYER, _MOST_WITH_EXPERTS = 0.3 * MIB, 0.8 * MIB  # of a graph, in published logs
_UNIFIED_HOST = round(2.7 * GIB)  # by one development line
_COUNTED = 0.12 * GIB  # that the first runner takes more: by two development lines
_LARGEST_GRAPH = 512  # tokens
_FLASHINFER_WORKSPACE = 394 * MIB
_UNKNOWN_KV_BAND, _UNKNOWN_WEIGHTS_BAND = 0.5, 0.1  # by fields of config.json
_SGLANG_BAND = 0.05  # of the pool: two published checks were 3.5 % and 5 % off
_UNCERTAIN = 0.1  # of the total: a smaller pool is a small difference of large terms
_CHECKED_UNTIL = (0, 19)
_NVLINK_BYTES_S = 100e9  # a slower link is PCIe

_COUNT = r"(?P<value>[\d,]+)"
_METRICS = re.compile(r'^vllm:cache_config_info\{.*num_gpu_blocks="(?P<value>\d+)"')
_OVERRIDE = re.compile(rf"num_gpu_blocks_override[=: ]+{_COUNT}")
_BLOCKS = re.compile(rf"# (?:gpu|cuda) blocks: {_COUNT}", re.IGNORECASE)
_TOKENS = re.compile(rf"GPU KV cache size: {_COUNT} tokens")
_BYTES = re.compile(r"Available KV cache memory: (?P<value>[\d.]+) GiB")
_SGLANG = re.compile(r"max_total_num_tokens(?:=|\{[^}]*\} )(?P<value>[\d,.e+]+)")
_FITS = re.compile(r"--kv-cache-memory=(?P<value>\d+)`[^`]* to fully utilize")
_IN_USE = re.compile(r"Current kv cache memory in use is (?P<value>[\d.]+) GiB")
_BLOCK_SIZE = re.compile(r"\bblock_size['\"]?[=:]\s*['\"]?(?P<value>\d+)")
_PATTERNS = (_METRICS, _OVERRIDE, _BLOCKS, _TOKENS, _BYTES, _SGLANG, _FITS, _IN_USE)
_LONGEST_LINE = 2**20
_MOST_PARTS = 64  # of a line
_NAMED = 2  # unknown fields in a table
_WORTH_SAYING = 1.01  # times as many blocks
_MOST = 2**53  # blocks, tokens or GiB


class Term(Struct, frozen=True):
    """One term of the pool, in bytes on each GPU; the true value mostly lies within `band_bytes`.

    `bytes` is negative for memory that the pool does not get; `rule` says what it follows from.
    `more_bytes` extend the band towards a smaller pool, where logs differ by driver or kernels.
    """

    name: str
    bytes: int
    band_bytes: int
    rule: str
    more_bytes: int = 0


class KvPool(Struct, frozen=True):
    """The KV blocks of one replica that requests can use.

    `blocks` is the best estimate, `low_blocks` and `high_blocks` bound it; all three are equal if
    the pool is stated or observed. The engine reserves `null_blocks` more for itself;
    `num_gpu_blocks` counts both. `terms` are those of one GPU, empty unless the pool is derived.
    `layer_share` is `KvGroups.layer_share` of a hybrid model, else 1: times `blocks`, it is the
    number of blocks that would hold the KV of all layers. By the engine's log, `fitting_bytes` of
    KV would fit on each GPU, `fitting_times` x `blocks`; None and 1: unknown, or hardly more.
    """

    DOCUMENT: ClassVar[str] = (
        "value=blocks low=low_blocks high=high_blocks source=origin num_gpu_blocks block_size"
        " tokens terms fitting_bytes fitting_times"
    )
    blocks: int
    low_blocks: int
    high_blocks: int
    block_size: int
    origin: PoolOrigin
    null_blocks: int = 1
    terms: tuple[Term, ...] = ()
    notes: tuple[str, ...] = ()
    layer_share: float = 1.0
    fitting_bytes: int | None = None
    fitting_times: float = 1.0

    @property
    def num_gpu_blocks(self) -> int:
        """The engine's own count: usable blocks and, in vLLM, block 0."""
        return self.blocks + self.null_blocks

    @property
    def low_tokens(self) -> int:
        """Lower bound of the tokens whose KV the pool holds."""
        return self.low_blocks * self.block_size

    @property
    def tokens(self) -> int:
        """Tokens whose KV the pool holds."""
        return self.blocks * self.block_size

    @property
    def of_all_layers(self) -> KvPool:
        """The pool in blocks that hold the KV of all layers, as in a cache without groups."""
        return replace(self._scaled(self.layer_share), layer_share=1.0)

    @property
    def filling_the_gpu(self) -> KvPool:
        """The pool if `fitting_bytes` of each GPU held KV; unchanged if these are None."""
        return replace(self._scaled(self.fitting_times), fitting_bytes=None, fitting_times=1.0)

    def in_blocks_of(self, block_size: int) -> KvPool:
        """Return the pool in blocks of `block_size` tokens, each figure rounded down."""
        return replace(self._scaled(Fraction(self.block_size, block_size)), block_size=block_size)

    def _scaled(self, times: float | Fraction) -> KvPool:
        low, best, high = (
            int(blocks * times) for blocks in (self.low_blocks, self.blocks, self.high_blocks)
        )
        return replace(self, blocks=best, low_blocks=low, high_blocks=high)


def derive_pool(
    model: Model,
    gpu: Gpu,
    engine: Engine,
    *,
    tp: int = 1,
    dp: int = 1,
    utilization: float | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    block_size: int | None = None,
) -> KvPool:
    """Return the KV pool of a replica on `tp` GPUs; None stands for the engine's defaults.

    With vLLM's `dp` ranks, which divide the experts of an MoE model, it is the pool of one rank.

    Raises UsageError if no memory is left for KV, with the terms that take it and a remedy.
    """
    dp = dp if model.moe else 1
    size = block_size or engine.default_block_size
    sequences = max_num_seqs or gpu.default_max_num_seqs
    batched = max_num_batched_tokens or engine.default_batched_tokens(gpu)
    share = utilization or engine.default_utilization
    if engine.name == "sglang":
        terms = _sglang_terms(model, gpu, tp, utilization)
    else:
        terms = _vllm_terms(model, gpu, engine, (tp, dp), share, sequences, batched)
    if model.unknown:
        terms = (*terms, _unknown_term(model, terms))
    kv = sum(term.bytes for term in terms)
    band = sum(term.band_bytes for term in terms)
    null = engine.null_blocks
    if model.tokens_in(max(0, kv), tp)[1] // size <= null:
        raise _nothing_left(model, gpu, (tp, dp), terms)
    least, best, _ = (tokens // size - null for tokens in model.tokens_in(kv, tp))
    least_kv = kv - band - sum(term.more_bytes for term in terms)
    low = model.tokens_in(max(0, least_kv), tp)[0] // size - null
    high = model.tokens_in(kv + band, tp)[2] // size - null
    return KvPool(
        blocks=best,
        low_blocks=max(1, min(least, low)),
        high_blocks=high,
        block_size=size,
        origin="derived",
        null_blocks=null,
        terms=terms,
        notes=tuple(_notes(model, gpu, engine, kv, (tp, dp))),
    )


def stated_pool(num_gpu_blocks: int, block_size: int, engine: Engine) -> KvPool:
    """Return the pool of a stated `num_gpu_blocks`, the engine's own count."""
    usable = num_gpu_blocks - engine.null_blocks
    if usable < 1:
        raise UsageError(
            f"{num_gpu_blocks} leaves no block for requests",
            where="--num-gpu-blocks",
            remedy="give 2 or more: vLLM keeps block 0 to itself",
        )
    return KvPool(usable, usable, usable, block_size, "stated", engine.null_blocks)


def _vllm_terms(
    model: Model,
    gpu: Gpu,
    engine: Engine,
    parallel: tuple[int, int],
    share: float,
    sequences: int,
    batched: int,
) -> tuple[Term, ...]:
    tp, dp = parallel
    weights = round(model.loaded_bytes(tp, dp))
    activations = round(activation_bytes(model, engine, sequences, batched, tp, dp))
    band = _ACTIVATION_BAND
    profiled = f"profiled with {sequences:,} requests and {batched:,} tokens"
    if dp > 1:
        profiled += " of each rank"
    if dp > 1 or (model.moe and model.weight_dtype == "nvfp4"):  # kernels keep workspaces
        band = max(band, activations // 2)
    if not engine.has(LEAN_SAMPLER):  # some of these profiled the model without its sampler
        band = max(band, round(_sampler_bytes(model, engine, sequences, batched)))
    other = _outside(engine, gpu, tp * dp)
    if _on_second_runner(model, engine):  # counts each request's tokens, for penalties
        other += 4 * sequences * model.shaped().vocabulary - _COUNTED
    compiled = max(0, _compiled_bytes(model, engine, batched, tp) - activations)
    terms = [
        Term("memory for the engine", round(share * gpu.total_bytes), 0, f"{share:g} x total"),
        Term(
            "weights",
            -weights,
            round(max(_WEIGHTS_BAND * weights, model.left_out_bytes(tp, dp))),
            _weights_rule(model, tp, dp),
        ),
        Term("activations", -activations, band, profiled),
        Term("other memory", -round(other), _OTHER_BAND, "CUDA and NCCL"),
    ]
    if compiled:
        terms.append(Term("first start", -compiled, compiled, "compiles; the next one does not"))
    if engine.drafts_in_pool:
        drafter = round(model.shaped().drafter_bytes(dp) / tp)
        rule = "one layer in bf16, and what joins it to the model"
        terms.append(Term("drafter", -drafter, drafter, rule))
    unestimated = _on_second_runner(model, engine) and not engine.has(SECOND_RUNNER_GRAPHS)
    if engine.has(GRAPHS) and not unestimated:
        terms.append(_graphs(model, gpu, engine, sequences, batched))
    return tuple(terms)


def _graphs(model: Model, gpu: Gpu, engine: Engine, sequences: int, batched: int) -> Term:
    """Return the memory that vLLM estimates for its CUDA graphs.

    vLLM captures steps of 1, 2, 4, 8, 16, ... tokens piecewise, and decode steps as full graphs:
    FlashInfer needs its workspace for these, and captures none with a drafter. The estimate is
    the memory of the second graph of each kind times the number of graphs, so any other memory
    allocated meanwhile is multiplied too (vllm#45178): published logs have up to 0.3 MiB per layer
    and graph, with experts up to 0.8.

    Source: vLLM 0.32.0, vllm/config/vllm.py (_set_cudagraph_sizes), v1/worker/gpu_model_runner.py
    (profile_cudagraph_memory) and v1/attention/backends/flashinfer.py.
    """
    query = 1 + (engine.drafter.tokens if engine.drafter else 0)
    largest = min(2 * query * sequences, _LARGEST_GRAPH, batched)
    served = gpu.family == "blackwell" and gpu.in_server
    flashinfer = isinstance(model.shape, HeadKv) and (
        served or (model.dtype == "fp8" and gpu.family != "hopper")
    )
    whole = 0 if flashinfer and query > 1 else _captured(min(query * sequences, largest))
    count = _captured(largest) + whole
    taken = _FIRST_GRAPH + count * _GRAPH
    if flashinfer and whole:
        taken += _FLASHINFER_WORKSPACE
    most = (_MOST_WITH_EXPERTS if model.moe else _MOST_A_LAYER) * model.shaped().layers
    more = round(max(0, count * (most - _GRAPH) - _GRAPHS_BAND))
    return Term("CUDA graphs", -round(taken), _GRAPHS_BAND, f"{count} of them", more)


def _captured(largest: int) -> int:
    """Return how many step sizes up to `largest` have CUDA graphs: 1, 2, 4, 8, 16, ... 256, 272."""
    return sum(size <= largest for size in (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)))


def _unknown_term(model: Model, terms: Sequence[Term]) -> Term:
    """Return a term of 0 bytes for unknown config fields; its band is a share of KV or weights."""
    named = ", ".join(model.unknown[:_NAMED]) + (", ..." if len(model.unknown) > _NAMED else "")
    if concern_the_cache(model.unknown):
        band = _UNKNOWN_KV_BAND * max(0, sum(term.bytes for term in terms))
    else:
        band = _UNKNOWN_WEIGHTS_BAND * -next(t.bytes for t in terms if t.name == "weights")
    return Term("unknown fields", 0, round(band), named)


def _on_second_runner(model: Model, engine: Engine) -> bool:
    """Return whether vLLM uses its v2 runner: since 0.29, and since 0.25 for plain dense models."""
    dense = not (model.moe or model.hybrid)
    return engine.has(SECOND_RUNNER_GRAPHS) or (engine.has(SECOND_RUNNER) and dense)


def activation_bytes(
    model: Model, engine: Engine, sequences: int, batched: int, tp: int, dp: int = 1
) -> float:
    """Return the peak bytes of vLLM's profiling pass: of logits, the widest layer, or images.

    Tensor parallelism does not divide the sampler's copies of the logits. With `dp` ranks each GPU
    gathers the tokens of all ranks, and has room for all experts of each token, at full width;
    settings of `--all2all-backend` other than the default take less.

    The v2 runner profiles logits in 16 and 32 bits; indexers have room for 40 longest prompts. A
    feed-forward layer keeps the outputs of its gate and up matrices, their product (in 8 bits with
    fp8 weights) and two hidden states.

    Source: vLLM 0.32.0, vllm/model_executor/layers/fused_moe: prepare_finalize/naive_dp_ep.py,
    and workspace_shapes of experts/deep_gemm_moe.py (fp8) and triton_moe.py; vllm/v1: worker/gpu
    (_dummy_sampler_run, sample/sampler.py), attention/backends/mla/indexer.py.
    """
    shape = model.shaped()
    recent = engine.has(LEAN_SAMPLER)
    second = _on_second_runner(model, engine)
    sampler = _sampler_bytes(model, engine, sequences, batched)
    hidden = shape.hidden_size
    product = 1 if model.bits.mlp < 16 and model.weight_dtype == "fp8" else 2
    dense = batched * (4 * hidden + (4 + product) * shape.mlp_width / tp)
    routed = 0.0
    if shape.moe:
        expert = 3 * shape.expert_width / tp + 2 * hidden
        routed = 2 * batched * (shape.experts_per_token * expert + 3 * hidden)
        if dp > 1:
            width, first = shape.expert_width, 1 if model.weight_dtype == "fp8" else 2
            expert = first * max(width, hidden) + 2 * max(2 * width, hidden)
            routed = dp * batched * (shape.experts_per_token * expert + (first + 2) * hidden)
    fixed = GIB * ((0 if second else 0.14) + (0.3 if shape.moe and recent else 0))
    embedded = 4 * batched * hidden if model.vision else 0  # of the step's tokens, and its images
    images = shape.vision.peak_bytes(batched, tp)
    peak = max(max(sampler, routed) + fixed + embedded, dense + embedded, images)
    return peak + 40 * model.indexers.longest_bytes


def _sampler_bytes(model: Model, engine: Engine, sequences: int, batched: int) -> float:
    """Return the bytes of the sampler's copies of the logits in the profiling pass."""
    second, recent = _on_second_runner(model, engine), engine.has(LEAN_SAMPLER)
    each = 6 if second else 14.3 if recent else 38.5
    return each * min(sequences, batched) * model.shaped().vocabulary


def _compiled_bytes(model: Model, engine: Engine, batched: int, tp: int) -> int:
    """Return the peak bytes of compilation at a first start, which benchmarks merged kernels.

    The benchmark copies the embedding. 0 with `tp` above 1, an image encoder, or vLLM before 0.20.

    Source: vLLM 0.32.0, vllm/config/compilation.py (benchmark_combo_kernel); published logs of a
    first start and the next one.
    """
    if tp > 1 or model.vision or not engine.has(GRAPHS):
        return 0
    shape = model.shaped()
    return 2 * (shape.embedding_parameters + 2 * batched * shape.hidden_size)


def _outside(engine: Engine, gpu: Gpu, tp: int) -> float:
    """Return the bytes that CUDA, NCCL and a fused all-reduce take outside PyTorch's allocator.

    Read off published logs. If host and GPU share memory (GB10), the process's host memory counts.

    Source: vLLM 0.32.0, vllm/config/vllm.py (enable_allreduce_rms_fusion) and utils/mem_utils.py
    (MemorySnapshot).
    """
    fused = gpu.family in ("hopper", "blackwell") and gpu.link_bytes_s >= _NVLINK_BYTES_S
    alone, several = (0.25, 2.1 if fused else 0.55) if engine.has(MORE_NCCL) else (0.13, 0.55)
    host = _UNIFIED_HOST if gpu.name == "gb10" else 0
    return (alone if tp == 1 else several) * GIB + host


def _sglang_terms(model: Model, gpu: Gpu, tp: int, fraction: float | None) -> tuple[Term, ...]:
    weights = round(model.loaded_bytes(tp))
    total = gpu.total_bytes
    fraction = fraction or sglang_fraction(gpu, tp)
    context = round(_outside(Engine("vllm", (0, 33)), gpu, tp))
    kv = fraction * total - weights - context
    return (
        Term("memory for the engine", round(fraction * total), 0, f"{fraction:g} x total"),
        Term("weights", -weights, round(_SGLANG_BAND * max(0, kv)), _weights_rule(model, tp, 1)),
        Term("other memory", -context, _OTHER_BAND, "CUDA and NCCL"),
    )


def sglang_fraction(gpu: Gpu, tp: int) -> float:
    """Return SGLang's automatic `--mem-fraction-static`, without data-parallel attention.

    SGLang reserves 512 + 1.5 chunk + 2 batch + 128 tp MiB. The chunk (tokens of a prefill) and the
    batch (requests of the largest CUDA graph) follow from the GPU's memory, the batch also from tp.
    """
    gib, several = gpu.total_bytes / GIB, tp >= 4
    if gib >= 60:
        batch = 512 if several or gib >= 160 else 256
    elif gib >= 35:
        batch = 160 if several else 32
    else:
        batch = 8 if gib < 20 else 80 if several else 24
    reserved = 512 + 1.5 * gpu.sglang_chunk_tokens + 2 * batch + 128 * tp
    return round(1 - reserved * MIB / gpu.total_bytes, 3)


def _weights_rule(model: Model, tp: int, dp: int) -> str:
    divided = f", divided by {tp}" if tp > 1 else ""
    divided += f", experts by {tp * dp}" if dp > 1 else ""
    counted = "by the checkpoint's index" if model.weights_total else f"{model.weight_dtype}"
    return f"{counted}{divided}"


def _notes(model: Model, gpu: Gpu, engine: Engine, kv: int, parallel: tuple[int, int]) -> list[str]:
    notes, (tp, dp) = [], parallel
    if kv < _UNCERTAIN * gpu.total_bytes:
        share = kv / gpu.total_bytes
        notes.append(
            f"the pool is {share:.1%} of the GPU's memory, a small difference of large terms:"
            " read the engine's own figure from its log (--engine-log)"
        )
    if model.parts_assumed:
        notes.append(
            f"checkpoints in {model.weight_dtype} leave parts in 16 bits, which their folder"
            " (hf_quant_config.json) says: --model FOLDER"
        )
    if not model.uniform:
        notes.append(
            "hybrid model: the pool is a range, from all layers caching every token to windowed"
            " layers caching one window; --num-gpu-blocks states the engine's figure"
        )
    if engine.name == "sglang":
        notes.append("SGLang's pool was compared with two published figures only")
    elif dp > 1:
        notes.append(
            "one pool of data-parallel ranks was compared; graphs may take 119 GiB (vllm#53013):"
            " --engine-log"
        )
    elif engine.version > _CHECKED_UNTIL:
        notes.append(
            "38 pools of vLLM 0.20 to 0.31 were compared, 6 were over 10 % off; one start and its"
            " log settle yours (--engine-log)"
        )
    if tp > 1 and gpu.link_bytes_s < _NVLINK_BYTES_S:
        notes.append("tensor parallelism over PCIe: five pools were compared, no latency")
    return notes


def _nothing_left(
    model: Model, gpu: Gpu, parallel: tuple[int, int], terms: Sequence[Term]
) -> UsageError:
    tp, dp = parallel
    largest = min(terms, key=lambda term: term.bytes)
    available = terms[0].bytes
    sizes = ", ".join(f"{term.name} {format_size(-term.bytes)}" for term in terms if term.bytes < 0)
    ranks = f" or --dp (now {dp})" if dp > 1 else ""
    remedy = f"raise --tp (now {tp}){ranks}, quantize the weights (--weight-dtype), or a larger GPU"
    if largest.name != "weights":
        remedy = "lower --max-num-seqs or --max-num-batched-tokens, or raise --tp"
    return UsageError(
        f"{model.name} leaves no memory for KV blocks: {format_size(available)} less {sizes}",
        where=f"--gpu {gpu.name}",
        remedy=remedy,
    )


def observed_pool(
    path: Path, *, model: Model | None = None, tp: int = 1, block_size: int | None = None
) -> KvPool:
    """Return the pool that the log or the saved metrics at `path` report.

    Raises InputError for a file that cannot be read or reports no pool.
    """
    try:
        with TextIOWrapper(opened(path), encoding="utf-8", errors="replace") as lines:
            bounded = _lines_of(lines, str(path))
            return pool_in(bounded, str(path), model=model, tp=tp, block_size=block_size)
    except OSError as error:
        what = error.strerror or "cannot be read"
        raise InputError(what, where=str(path), remedy="name an engine's log") from error


def _lines_of(file: TextIOWrapper, where: str) -> Iterator[str]:
    """Yield lines, those above 1 MiB in parts. Raises InputError for a line above 64 MiB."""
    parts = 0
    while line := file.readline(_LONGEST_LINE):
        parts = 0 if line.endswith("\n") else parts + 1
        if parts > _MOST_PARTS:
            raise InputError("no lines of text", where=where, remedy="name an engine's log")
        yield line


def pool_in(
    lines: Iterable[str],
    where: str,
    *,
    model: Model | None = None,
    tp: int = 1,
    block_size: int | None = None,
) -> KvPool:
    """Return the pool that `lines` report; `block_size` applies if they state no block size.

    `where` names the lines in errors. `model` and `tp` serve to turn bytes of a GPU into tokens.
    """
    reports: dict[re.Pattern[str], list[float]] = {}
    stated_size = None
    for line in lines:
        for pattern in _PATTERNS:
            if (match := pattern.search(line)) is not None:
                if pattern in {_TOKENS, _BYTES} and _FITS in reports:  # another start
                    del reports[_FITS]
                reports.setdefault(pattern, []).append(_number(match["value"], where))
        if (match := _BLOCK_SIZE.search(line)) is not None:
            stated_size = int(_number(match["value"], where))
    sglang = _SGLANG in reports
    engine = parse_engine("sglang" if sglang else "vllm")
    size = stated_size or block_size or engine.default_block_size
    origin: PoolOrigin = "metrics" if _METRICS in reports else "engine log"
    if sglang:
        blocks = int(reports[_SGLANG][-1]) // size
    else:
        blocks = _vllm_blocks(reports, size, model, tp, where) - engine.null_blocks
    if blocks < 1:
        raise InputError("no block for requests", where=where, remedy="name another start's log")
    notes = [] if stated_size or block_size or sglang else [f"blocks of {size} tokens assumed"]
    fits, times = _fitting(reports, model, tp)
    if fits is not None:
        notes.append(
            f"the log says that --kv-cache-memory {fits} fits: {times - 1:.0%} more blocks on the"
            " same GPU, of which 150 MiB stay free"
        )
    return KvPool(
        *(blocks, blocks, blocks, size, origin, engine.null_blocks),
        notes=tuple(notes),
        fitting_bytes=fits,
        fitting_times=times,
    )


def _fitting(
    reports: Mapping[re.Pattern[str], list[float]], model: Model | None, tp: int
) -> tuple[int | None, float]:
    """Return the KV bytes that would fit on each GPU, and their ratio to the KV bytes in use.

    `reports` are the numbers in the log by the pattern that found them, in order. The result is
    (None, 1.0) if the log does not report both or the ratio is below 1.01; also for models with
    states, whose prompts take more than vLLM profiles (vllm#52872). vLLM measures what fits after
    it captured CUDA graphs; the pool rests on an estimate of these. Source: vLLM 0.32.0,
    vllm/v1/worker/gpu_worker.py (compile_or_warm_up_model).
    """
    states = model is not None and model.kinds.linear > 0
    if states or _FITS not in reports or _IN_USE not in reports:
        return None, 1.0
    fits, in_use = (min(reports[each][-tp:]) for each in (_FITS, _IN_USE))
    times = fits / (in_use * GIB) if in_use else 1.0
    return (int(fits), times) if times >= _WORTH_SAYING else (None, 1.0)


def _number(text: str, where: str) -> float:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not 0 <= value < _MOST:
        raise InputError(
            f"{text[:40]!r} is not the size of a pool", where=where, remedy="name another log"
        )
    return value


def _vllm_blocks(
    reports: dict[re.Pattern[str], list[float]],
    size: int,
    model: Model | None,
    tp: int,
    where: str,
) -> int:
    for pattern in (_METRICS, _OVERRIDE, _BLOCKS):
        if pattern in reports:
            return int(reports[pattern][-1])
    hybrid = model is not None and model.hybrid
    if _TOKENS in reports and not hybrid:
        return int(reports[_TOKENS][-1]) // size
    if _BYTES in reports and model is not None and model.uniform:
        smallest = min(reports[_BYTES][-tp:])
        return int(smallest * GIB // (model.by_block.kv_bytes_per_token(tp) * size))
    if hybrid and (_TOKENS in reports or _BYTES in reports):
        raise InputError(
            "the cache size of a hybrid model is not its pool",
            where=where,
            remedy="save the text of /metrics, which has num_gpu_blocks, or state --num-gpu-blocks",
        )
    raise InputError(
        "reports no KV pool",
        where=where,
        remedy="name a log with 'GPU KV cache size', or the saved text of /metrics",
    )
