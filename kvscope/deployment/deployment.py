"""The deployment: GPUs, model and engine as a user states them, and the pool and latency derived.

Every figure has an origin: measured (an engine's log or metrics, a calibration, the TTFTs of a
trace) wins over stated, stated over derived (the pool's terms, the roofline).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from kvscope.core.errors import UsageError, placed
from kvscope.core.records import defaults
from kvscope.deployment.compressed import BLOCK
from kvscope.deployment.engines import (
    AUTO_LENGTH,
    DEFAULT_ENGINE,
    JUNCTIONS,
    Engine,
    parse_engine,
    version_text,
)
from kvscope.deployment.gpus import GPU_KEYS, Gpu, described_gpu
from kvscope.deployment.kv_groups import KvGroup, KvGroups
from kvscope.deployment.models import (
    COUNTED_IN_FULL,
    NOT_COUNTED,
    KvDtype,
    Model,
    UnlikeKv,
    resolve_model,
)
from kvscope.deployment.pool import KvPool, derive_pool, observed_pool, stated_pool
from kvscope.deployment.quantization import WeightDtype
from kvscope.deployment.roofline import HIGH, LOW, latency_notes, roofline
from kvscope.deployment.speculative import not_beside, parse_drafter
from kvscope.latency.file import load_profile
from kvscope.latency.profile import FROM_TRACE, MODELS, PRESETS, TO_FIT, LatencyProfile

if TYPE_CHECKING:
    from kvscope.latency.observed import TraceFit

RANKS_APART = (
    "ranks are timed apart, as if their steps were alike: in vLLM they step together, so that one"
    " which decodes waits for one that prefills"
)
Traffic = Literal["fleet", "replica"]
Origin = Literal["measured", "stated", "derived"]
_GROUP_BLOCKS = "hybrid model: a block is one of a group of layers, not of all layers"
_LARGEST_RATE = 1e6  # of a GPU's GiB, TFLOP/s or GB/s
_BATCHED = 2048  # vLLM's on a GPU below 70 GiB, and where the GPU is not named


class Deployment(Struct, frozen=True, kw_only=True):
    """Replicas of one engine, as stated by the user; None: derived from the other fields.

    `gpu_memory_gib` to `gpu_link_gb_s` describe an unknown GPU, or replace the data of a known one.
    With `dp`, the engine has `dp` data-parallel ranks of `tp` GPUs, which divide the experts: each
    rank is a replica with a pool of its own, behind vLLM's own balancer. `traffic`: the trace has
    the requests of the whole "fleet" or one "replica". `gpu_hour` is a GPU's price for an hour.
    `max_model_len` is the longest request in tokens. `num_gpu_blocks` is the engine's own count,
    block 0 included; `engine_log` is a log or saved metrics that report the pool.
    `prefix_match_unit` is vLLM's: the tokens of a hash. `engine` is read by `parse_engine`,
    `speculative` by `parse_drafter`. `latency` is the name of a preset, the path of a profile that
    `kvscope calibrate` wrote, or "trace": fitted to the TTFTs of the trace.
    """

    gpu: str | None = None
    gpu_memory_gib: float | None = None
    gpu_tflops: float | None = None
    gpu_fp8_tflops: float | None = None
    gpu_fp4_tflops: float | None = None
    gpu_bandwidth_gb_s: float | None = None
    gpu_link_gb_s: float | None = None
    tp: int = 1
    dp: int = 1
    replicas: int = 1
    traffic: Traffic = "fleet"
    model: str | None = None
    weight_dtype: WeightDtype | None = None
    kv_dtype: KvDtype | None = None
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    prefix_match_unit: int | None = None
    engine: str = DEFAULT_ENGINE
    speculative: str | None = None
    num_gpu_blocks: int | None = None
    engine_log: str | None = None
    latency: str | None = None
    gpu_hour: float | None = None

    def __post_init__(self) -> None:
        for name in (
            "tp",
            "dp",
            "replicas",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "block_size",
            "prefix_match_unit",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{value} is below 1", where=option(name), remedy="give 1 or more")
        for name in GPU_KEYS:
            rate = getattr(self, name)
            if rate is not None and not 0 < rate <= _LARGEST_RATE:
                what = f"{rate:g} is not above 0, or beyond any GPU"
                raise UsageError(what, where=option(name), remedy="see its data sheet")
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise UsageError(
                f"{share} is no share", where=option("gpu_memory_utilization"), remedy="try 0.92"
            )
        if self.gpu_hour is not None and not 0 < self.gpu_hour < float("inf"):
            raise UsageError(
                f"{self.gpu_hour} is no price", where=option("gpu_hour"), remedy="try 2.5"
            )

    @property
    def as_table(self) -> dict[str, Any]:
        """Values of the fields that differ from their defaults, and of `engine`, by field."""
        plain = defaults(Deployment) | {"engine": None}
        return {name: value for name, value in asdict(self).items() if value != plain.get(name)}

    @property
    def described_gpu(self) -> Gpu | None:
        """The GPU with its stated data, None if unnamed. Raises UsageError if data is missing."""
        stated = {key: getattr(self, key) for key in GPU_KEYS if getattr(self, key) is not None}
        return None if self.gpu is None else described_gpu(self.gpu, stated)

    @property
    def in_words(self) -> str:
        """The stated deployment in one line."""
        dtype = f" in {self.weight_dtype}" if self.weight_dtype else ""
        model = f", {self.model}{dtype}" if self.model else ""
        drafter = f"+{self.speculative}" if self.speculative not in {None, "none"} else ""
        return f"{self.fleet_of(self.gpu)}{model}, {self.engine}{drafter}"

    def fleet_of(self, gpu: str | None) -> str:
        """Return the replicas or ranks in words, such as `4 replicas of 2 x h100`."""
        if self.dp > 1:
            return f"{self.dp} ranks of {self.tp} x {gpu or 'unknown GPU'}"
        replica = f"{self.tp} x {gpu}" if gpu else "one engine"
        return f"{self.replicas} replicas of {replica}" if self.replicas > 1 else replica


def option(field: str) -> str:
    """Return the command-line option of a field of `Deployment`, such as `--block-size`."""
    return f"--{field.replace('_', '-')}"


class ReplicaLatency(Struct, frozen=True):
    """The latency of one replica; decisions must hold at `low` and `high` times the profile."""

    DOCUMENT: ClassVar[str] = "*profile source low high"
    profile: LatencyProfile
    source: Origin
    low: float
    high: float


class ResolvedDeployment(Struct, frozen=True, kw_only=True):
    """A deployment with its pool and its latency, each with its origin.

    `latency` is that of one replica. Decisions must hold at `latency_low` and `latency_high` times
    it: the band of a fit or of the roofline; both are 1 for a profile that was calibrated, or
    stated for its own model. `model` and `gpu` are None if not named. `notes` describe
    uncertainties. `not_switchable` says why no engine flags may be printed; None if they may.
    """

    DOCUMENT: ClassVar[str] = (
        "summary gpu=gpu.name tp dp replicas gpus traffic=stated.traffic model=model.name"
        " weight_dtype=model.weight_dtype kv_dtype=model.dtype engine=engine_name"
        " gpu_memory_utilization max_num_seqs max_num_batched_tokens pool_blocks=pool"
        " latency=replica_latency gpu_hour=stated.gpu_hour price_hour switchable not_switchable"
        " notes"
    )
    stated: Deployment
    engine: Engine
    model: Model | None
    gpu: Gpu | None
    pool: KvPool
    latency: LatencyProfile
    latency_origin: Origin
    latency_low: float
    latency_high: float
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    notes: tuple[str, ...] = ()
    not_switchable: str | None = None

    @property
    def tp(self) -> int:
        """GPUs of one replica."""
        return self.stated.tp

    @property
    def dp(self) -> int:
        """Data-parallel ranks of an engine, which divide the experts."""
        return self.stated.dp

    @property
    def replicas(self) -> int:
        """Number of replicas that serve the traffic: engines, or the ranks of one."""
        return self.stated.replicas * self.dp

    @property
    def shortens_requests(self) -> bool:
        """Whether the pool may be too small for the model's longest request, so vLLM may not start.

        Flags for this deployment then have `--max-model-len auto`: vLLM takes requests that fit.
        """
        return any(_too_long(self.engine, self.model, self.pool))

    @property
    def engine_name(self) -> str:
        """The engine and its version."""
        return str(self.engine)

    @property
    def replica_latency(self) -> ReplicaLatency:
        """The latency of one replica with its origin and its band."""
        band = self.latency_low, self.latency_high
        return ReplicaLatency(self.latency, self.latency_origin, *band)

    @property
    def engines(self) -> int:
        """Number of replicas whose requests the trace has: all of them, or one."""
        return self.replicas if self.stated.traffic == "fleet" else 1

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.tp * self.replicas

    @property
    def switchable(self) -> bool:
        """Whether flags that switch the policy may be printed."""
        return self.not_switchable is None

    @property
    def pool_bytes(self) -> int | None:
        """KV bytes in the pools of all `engines`, None without a model."""
        if self.model is None:
            return None
        return self.model.bytes_for(self.pool.of_all_layers.tokens) * self.engines

    def require_fleet(self) -> None:
        """Raise UsageError where the trace holds the traffic of one replica."""
        if self.stated.traffic == "replica":
            raise UsageError(
                "a fleet needs the traffic of all replicas, and the deployment's trace holds one's",
                where="--traffic",
                remedy="take a trace of the whole fleet, with --traffic fleet",
            )

    @property
    def as_cache(self) -> ResolvedDeployment:
        """The deployment for replays without KV groups: blocks of its pool hold all layers' KV.

        The pool holds the KV of as many tokens as before, in another number of blocks.
        """
        return replace(self, pool=self.pool.of_all_layers)

    @property
    def kv_groups(self) -> KvGroups | None:
        """The result of `kv_groups_for` with blocks of one token, for answers without a trace."""
        return self.kv_groups_for(1)

    @property
    def block_tokens(self) -> int:
        """Tokens in one of the engine's blocks; the trace's may differ."""
        return _block_tokens(self.stated, self.engine, self.model, self.gpu)

    def kv_groups_for(self, trace_block: int) -> KvGroups | None:
        """Return the groups of a hybrid model for a trace with blocks of `trace_block` tokens.

        None for other models, for layers that are not `LayerKinds.alike` or whose window or state
        is unknown, and for SGLang, which caches such models differently.
        """
        if self.model is None or self.engine.name != "vllm":
            return None
        groups = self.model.kv_groups(trace_block, self.stated.block_size, self.tp)
        if groups is None:
            return None
        if groups.state_tokens:  # else hits end at blocks all the same
            groups = groups.matching(self.stated.prefix_match_unit)
        return self.engine.retaining(groups)

    @property
    def engine_doubts(self) -> tuple[str, ...]:
        """Uncertainties of the simulated cache of this engine version, in words."""
        return self.engine.doubts(self.kv_groups)

    @property
    def price_hour(self) -> float | None:
        """Price of all GPUs for an hour, None if a GPU's price is unknown."""
        return self.price_of(self.gpus)

    def price_of(self, gpus: int) -> float | None:
        """Return the price of `gpus` GPUs for an hour, None if a GPU's price is unknown."""
        return None if self.stated.gpu_hour is None else self.stated.gpu_hour * gpus

    def gpus_for(self, tokens: int) -> int:
        """Return the fewest GPUs, in whole replicas, whose pools hold the KV of `tokens` tokens."""
        return self.tp * math.ceil(tokens / self.pool.tokens)

    @property
    def summary(self) -> str:
        """The deployment in one line."""
        model = f"{self.model.name} in {self.model.weight_dtype}, " if self.model else ""
        fleet = self.stated.fleet_of(self.gpu.name if self.gpu else None)
        return f"{fleet}, {model}{self.engine}"


def resolve(
    deployment: Deployment, block_size: int | None = None, fitted: TraceFit | None = None
) -> ResolvedDeployment:
    """Return the deployment with its pool, in blocks of `block_size` tokens, and its latency.

    `block_size` is that of the trace, by default the engine's. `fitted`, a latency fitted to TTFTs
    of a trace, replaces the deployment's. Raises UsageError or InputError with the option at fault.
    """
    engine = _engine(deployment)
    _check_ranks(deployment, engine)
    with placed("--gpu"):
        gpu = deployment.described_gpu
    model = _served(deployment, engine, gpu)
    _check_drafter(deployment, engine, model)
    sequences = deployment.max_num_seqs or engine.default_num_seqs(gpu)
    batched = _step_tokens(deployment, engine, model, gpu, sequences)
    pool = _pool(deployment, engine, model, gpu, batched)
    engine = engine.in_blocks_of(pool.block_size)
    if fitted is None:
        latency, origin, doubts = _latency(deployment, engine, model, gpu)
    else:
        latency, origin, doubts = _fitted(fitted.profile, deployment, engine, model, gpu)
    blocks_differ = model is not None and model.hybrid and not model.uniform
    groups = None if model is None else model.kv_groups(1, None, deployment.tp)
    if groups is not None:
        pool = replace(pool, layer_share=groups.layer_share)
    if deployment.prefix_match_unit is not None:
        _check_match_unit(deployment, engine, model)
    band = 1.0, 1.0
    if fitted is not None:
        band = fitted.low, fitted.high
    elif origin == "derived" or doubts:  # derived, or of another model
        band = LOW, HIGH
    reason, notes = None, model.notes if model is not None else ()
    if model is not None and model.hybrid:
        if model.uniform and engine.name == "vllm":  # simulated as it is
            simulated = (COUNTED_IN_FULL, NOT_COUNTED)
            notes = tuple(note for note in notes if not note.endswith(simulated))
        else:
            kinds = f"{model.name} has layers of several kinds"
            reason = f"{kinds}, whose hits kvscope does not simulate"
    return ResolvedDeployment(
        stated=deployment,
        engine=engine,
        model=model,
        gpu=gpu,
        pool=pool.in_blocks_of(block_size) if block_size else pool,
        latency=latency,
        latency_origin=origin,
        latency_low=band[0],
        latency_high=band[1],
        max_num_seqs=sequences,
        max_num_batched_tokens=batched,
        gpu_memory_utilization=deployment.gpu_memory_utilization or engine.default_utilization,
        notes=(
            *engine.doubts(groups),
            *_unused_mean(engine, origin),
            *engine.left_out,
            *_too_long(engine, model, pool),
            *notes,
            *pool.notes,
            *([_GROUP_BLOCKS] if blocks_differ and pool.origin != "derived" else []),
            *doubts,
            *([RANKS_APART] if deployment.dp > 1 and (model is None or model.moe) else []),
        ),
        not_switchable=reason,
    )


def _too_long(engine: Engine, model: Model | None, pool: KvPool) -> Iterator[str]:
    """Yield a note if the pool may be smaller than the longest request: vLLM then does not start.

    No note for a pool from an engine's log: that engine started. Source: vLLM 0.32.0,
    vllm/v1/core/kv_cache_utils.py (check_enough_kv_cache_memory).
    """
    asked = model is not None and engine.name == "vllm" and pool.origin != "engine log"
    longest = model.longest_tokens if model and asked else None
    groups = model.kv_groups(1) if model and model.compressed else None
    pool = pool if groups is None else replace(pool, layer_share=groups.layer_share).of_all_layers
    if longest and pool.low_tokens < longest:
        holds = "may not hold" if longest <= pool.tokens else "does not hold"
        yield (
            f"the pool {holds} a request of {longest:,} tokens, the longest: vLLM starts"
            f" with {AUTO_LENGTH}, or a length that fits"
        )


def _engine(deployment: Deployment) -> Engine:
    """Return the engine with its drafter. Raises UsageError if `engine` names the drafter."""
    with placed("--engine"):
        engine = parse_engine(deployment.engine)
        if engine.drafter is not None:
            what = f"{deployment.engine} names a drafter"
            raise UsageError(what, remedy=f"take --speculative {engine.drafter}")
    if deployment.speculative is None:
        return engine
    with placed("--speculative"):
        return replace(engine, drafter=parse_drafter(deployment.speculative))


def _check_ranks(deployment: Deployment, engine: Engine) -> None:
    """Raise UsageError for `dp` above 1 with several replicas, or on another engine than vLLM."""
    if deployment.dp == 1:
        return
    if engine.name != "vllm":
        raise UsageError(
            f"data-parallel attention of {engine.name} is not simulated",
            where=option("dp"),
            remedy="take --replicas with each rank's --num-gpu-blocks, or --engine vllm@0.33",
        )
    if deployment.replicas > 1:
        raise UsageError(
            f"{deployment.replicas} engines of {deployment.dp} ranks each: one is simulated",
            where=option("replicas"),
            remedy="take --replicas 1 and the traffic of one engine, or --dp 1",
        )


def _served(deployment: Deployment, engine: Engine, gpu: Gpu | None) -> Model | None:
    """Return the stated model as served, None if none is stated.

    Raises UsageError for options that need a model, compressed attention in SGLang or in blocks of
    another size, a `max_model_len` beyond the model's, and a `tp` that does not divide its heads.
    """
    if deployment.model is None:
        for name in ("weight_dtype", "kv_dtype", "max_model_len"):
            if getattr(deployment, name):
                remedy = "name one with --model"
                raise UsageError("needs a model", where=option(name), remedy=remedy)
        return None
    with placed("--model"):
        model = resolve_model(deployment.model, deployment.kv_dtype, deployment.weight_dtype)
    model = model.served_by(engine, gpu)
    if model.compressed and engine.name != "vllm":
        what = f"the compressed attention of {model.name} is not simulated in {engine.name}"
        raise UsageError(what, where="--engine", remedy=f"take {DEFAULT_ENGINE}")
    if model.compressed and deployment.block_size not in {None, BLOCK}:
        what = f"{deployment.block_size}, where {model.name} has blocks of {BLOCK} tokens"
        raise UsageError(what, where="block_size", remedy="leave it out")
    if deployment.max_model_len is not None:
        model = model.up_to(deployment.max_model_len)
    _check_heads(model, deployment.tp)
    return model


def _step_tokens(
    deployment: Deployment, engine: Engine, model: Model | None, gpu: Gpu | None, sequences: int
) -> int:
    """Return the limit of tokens per step, by default at most `sequences` x the longest request.

    `sequences` is the limit of running requests.

    Source: vLLM 0.32.0, vllm/engine/arg_utils.py (the default).
    """
    if deployment.max_num_batched_tokens is not None:
        return deployment.max_num_batched_tokens
    usual = engine.default_batched_tokens(gpu) if gpu else _BATCHED
    if model is None or model.longest_tokens is None or engine.name != "vllm":
        return usual
    return min(usual, sequences * model.longest_tokens)


def _block_tokens(
    deployment: Deployment, engine: Engine, model: Model | None, gpu: Gpu | None
) -> int:
    """Return the block size in tokens, before vLLM enlarges blocks for a hybrid model."""
    usual = engine.default_block_size
    if engine.name == "vllm" and model is not None and gpu is not None:
        usual = model.default_block(gpu)
    return deployment.block_size or usual


def _check_drafter(deployment: Deployment, engine: Engine, model: Model | None) -> None:
    """Raise UsageError for a drafter that is not simulated.

    Drafters are simulated in vLLM only, MTP unless the model is known to lack it. In hybrid models,
    drafters with KV in the pool need `KvGroups.take_drafter`, equal heads in all layers, and no
    `prefix_match_unit`; MTP also needs states or compressed KV, EAGLE windows.
    """
    if engine.drafter is None:
        return
    if engine.name != "vllm":
        what = f"drafters of {engine.name} are not simulated"
        raise UsageError(what, where="--speculative", remedy="take --speculative none")
    if engine.drafter.method == "mtp" and model is not None and not model.mtp:
        raise UsageError(
            f"{model.name} has no layers for MTP",
            where="--speculative",
            remedy=f"take eagle:{engine.drafter.tokens} or ngram:{engine.drafter.tokens}",
        )
    if not engine.drafts_in_pool or model is None or not model.hybrid:
        return
    groups = model.kv_groups(1)
    if groups is None or isinstance(model.shape, UnlikeKv) or not groups.take_drafter:
        raise not_beside(engine.drafter, f"the hybrid layers of {model.name}")
    of_mtp = "compressed attention" if model.compressed else "linear layers"
    if (engine.drafter.method == "mtp") != bool(groups.state_tokens or model.compressed):
        kind = "windows" if engine.drafter.method == "mtp" else of_mtp
        raise not_beside(engine.drafter, f"the {kind} of {model.name}")
    if deployment.prefix_match_unit is not None:
        raise not_beside(engine.drafter, "a prefix_match_unit")


def _unused_mean(engine: Engine, origin: Origin) -> tuple[str, ...]:
    """Return a note if the latency is not "derived", and so leaves `Drafter.per_step` unused."""
    if engine.drafter is None or engine.drafter.per_step == 1 or origin == "derived":
        return ()
    return (f"--speculative @{engine.drafter.per_step:g} is not used: the latency is {origin}",)


def _check_match_unit(deployment: Deployment, engine: Engine, model: Model | None) -> None:
    """Raise UsageError if `prefix_match_unit` lacks vLLM 0.26 or a model, or vLLM refuses it."""
    where, unit = "prefix_match_unit", deployment.prefix_match_unit or 0
    if engine.name != "vllm":
        raise UsageError("is an option of vLLM", where=where, remedy="leave it out")
    if not engine.has(JUNCTIONS):
        since = version_text(JUNCTIONS.since)
        raise UsageError(f"{engine} has no such option", where=where, remedy=f"needs vLLM {since}")
    if model is None:
        raise UsageError("needs a model", where=where, remedy="name one with --model")
    size = deployment.block_size or engine.default_block_size
    groups = model.kv_groups(size, size, deployment.tp)
    (groups or KvGroups((KvGroup("full", size),))).matching(unit)


def _pool(
    deployment: Deployment, engine: Engine, model: Model | None, gpu: Gpu | None, batched: int
) -> KvPool:
    size = _block_tokens(deployment, engine, model, gpu)
    stated = deployment.block_size
    if model is not None and (model.kinds.state or model.compressed) and engine.name == "vllm":
        size = stated = model.block_tokens(size, deployment.tp)
    if deployment.engine_log is not None:
        path = Path(deployment.engine_log)
        usual = size if size != engine.default_block_size else stated
        pool = observed_pool(path, model=model, tp=deployment.tp, block_size=usual)
        # vLLM reports the tokens of a block with entries
        return replace(pool, block_size=size) if model and model.compressed else pool
    if deployment.num_gpu_blocks is not None:
        return stated_pool(deployment.num_gpu_blocks, size, engine)
    if model is None or gpu is None:
        missing = "--model" if model is None else "--gpu"
        raise UsageError(
            "the KV pool is unknown",
            where=missing,
            remedy="name --gpu and --model, or the engine's --num-gpu-blocks or --engine-log",
        )
    return derive_pool(
        model,
        gpu,
        engine,
        tp=deployment.tp,
        dp=deployment.dp,
        utilization=deployment.gpu_memory_utilization,
        max_num_seqs=deployment.max_num_seqs,
        max_num_batched_tokens=batched,
        block_size=size,
    )


def _latency(
    deployment: Deployment, engine: Engine, model: Model | None, gpu: Gpu | None
) -> tuple[LatencyProfile, Origin, list[str]]:
    """Return the latency profile, its origin, and notes on uncertainties."""
    if deployment.latency is not None and deployment.latency != FROM_TRACE:
        with placed("--latency"):
            profile = load_profile(deployment.latency)
        if PRESETS.get(profile.name) != profile:
            return profile, "measured", []
        measured_on = MODELS.get(profile.name)
        if model is None or model.name == measured_on:
            return profile, "stated", []
        note = f"latency {profile.name} is of {measured_on or 'another model'}, not {model.name}"
        return profile, "stated", [f"{note}: measure with `kvscope calibrate`"]
    if model is None or gpu is None:
        if deployment.latency == FROM_TRACE:
            return TO_FIT, "measured", []
        raise UsageError(
            "the latency is unknown",
            where="--latency",
            remedy="name the file that `kvscope calibrate` writes, or --gpu and --model",
        )
    notes = latency_notes(model, gpu, engine, deployment.tp, deployment.dp)
    if engine.drafts_in_pool and engine.drafter and engine.drafter.per_step == 1:
        notes.append(
            f"no draft is accepted: state the mean of tokens that a step yields, as in"
            f" --speculative {engine.drafter}@1.8"
        )
    if deployment.latency == FROM_TRACE:
        notes = ["a roofline until a trace is read, to whose TTFTs the latency is fitted"]
    return _roofline(deployment, engine, model, gpu), "derived", notes


def _roofline(deployment: Deployment, engine: Engine, model: Model, gpu: Gpu) -> LatencyProfile:
    return roofline(model, gpu, deployment.tp, dp=deployment.dp, drafter=engine.drafter)


def _fitted(
    profile: LatencyProfile,
    deployment: Deployment,
    engine: Engine,
    model: Model | None,
    gpu: Gpu | None,
) -> tuple[LatencyProfile, Origin, list[str]]:
    """Return the fitted profile, origin and notes; with model and GPU, decode costs by roofline."""
    if model is None or gpu is None:
        return profile, "measured", []
    derived = _roofline(deployment, engine, model, gpu)
    timed = replace(
        profile,
        request_s=profile.base_s * derived.request_s / derived.base_s,
        decode_base_s=derived.decode_base_s,
        decode_request_s=derived.decode_request_s,
        decode_context_token_s=derived.decode_context_token_s,
    )
    return timed, "measured", ["TTFTs do not show the time per output token: it is a roofline's"]


def _check_heads(model: Model, tp: int) -> None:
    shape = model.architecture
    if shape is not None and shape.heads % tp:
        fitting = [str(n) for n in (1, 2, 4, 8, 16) if shape.heads % n == 0]
        raise UsageError(
            f"{model.name} has {shape.heads} attention heads, not a multiple of {tp}",
            where="--tp",
            remedy=f"use {', '.join(fitting)}",
        )
