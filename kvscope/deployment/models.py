"""Models by shape: the KV cache of a token and the weights, from a config.json or a preset."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import InputError, UsageError
from kvscope.core.files import json_object
from kvscope.deployment.architecture import (
    MIXED,
    NUMBERED,
    Architecture,
    LayerKinds,
    architecture,
    layer_heads,
    layer_kinds,
    unknown_layers,
    usual_fields,
)
from kvscope.deployment.compressed import BLOCK, CompressedKv
from kvscope.deployment.config_fields import ConfigFields, check_family, has_mtp
from kvscope.deployment.engines import Engine
from kvscope.deployment.gpus import Gpu
from kvscope.deployment.kv_groups import KvGroups, kv_groups
from kvscope.deployment.presets import PRESETS
from kvscope.deployment.quantization import WeightBits, WeightDtype, quantization, weight_bits

KvDtype = Literal["fp32", "fp16", "bf16", "fp8", "int8"]

_BYTES: Mapping[KvDtype, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
_CONFIG_DTYPES: Mapping[str, KvDtype] = {
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}
_USUAL_BLOCK = 16
_LATENT_BLOCK = 128  # the least block of MLA beside linear attention
_SPARSE_BLOCK = 128  # of sparse attention beside keys and values
_INDEX_SCALED, _SCALE_BYTES = 128, 4  # an indexer's keys have a scale for so many values
_NESTED = ("text_config", "llm_config", "language_config")
_INDEX = "model.safetensors.index.json"
_QUANTIZATION = "hf_quant_config.json"


class HeadKv(Struct, frozen=True):
    """Cache of keys and values of every KV head (MHA, GQA, MQA), in each of `layers`.

    `head_size` is the mean of the elements in a key and in a value.
    """

    layers: int
    kv_heads: int
    head_size: int

    @property
    def values_per_token(self) -> int:
        """Values cached for each token."""
        return self.values_on_rank(1)

    def values_on_rank(self, tp: int) -> int:
        """Return the values that each of `tp` ranks caches for a token: at least one KV head's."""
        return 2 * self.layers * -(-self.kv_heads // tp) * self.head_size


class LatentKv(Struct, frozen=True):
    """Cache of one compressed vector and one rotary key per token (MLA), in each of `layers`."""

    layers: int
    latent_size: int
    rope_size: int

    @property
    def values_per_token(self) -> int:
        """Values cached for each token."""
        return self.layers * (self.latent_size + self.rope_size)

    def values_on_rank(self, tp: int) -> int:
        """Return the values that each rank caches for a token: all of them, whatever `tp`."""
        return self.values_per_token


class UnlikeKv(Struct, frozen=True):
    """Cache of keys and values where the heads of full and of windowed layers differ.

    With `widest`, only the kind with more values counts: it sets the size of a block of vLLM's
    pool, which layers of either kind may use.
    """

    full: HeadKv
    windowed: HeadKv
    widest: bool = False

    @property
    def layers(self) -> int:
        """Number of layers of both kinds; with `widest`, of the kind that has more."""
        if self.widest:
            return max(self.full.layers, self.windowed.layers)
        return self.full.layers + self.windowed.layers

    @property
    def values_per_token(self) -> int:
        """Values cached for each token."""
        return self.values_on_rank(1)

    def values_on_rank(self, tp: int) -> int:
        """Return the values that each of `tp` ranks caches for a token."""
        both = self.full.values_on_rank(tp), self.windowed.values_on_rank(tp)
        return max(both) if self.widest else sum(both)

    def of_block(self, layers: int) -> UnlikeKv:
        """Return the shape of a block that holds `layers` layers of either kind."""
        full, windowed = (replace(kind, layers=layers) for kind in (self.full, self.windowed))
        return UnlikeKv(full, windowed, widest=True)

    def times(self, tp: int) -> tuple[int, int]:
        """Return how many times the usual tokens a block of full and of windowed layers holds.

        All blocks have equal bytes. Blocks of the kind with fewer values per token hold more tokens
        if the ratio of values is whole; else both factors are 1, and these blocks have padding.
        """
        full, windowed = (
            replace(kind, layers=1).values_on_rank(tp) for kind in (self.full, self.windowed)
        )
        if max(full, windowed) % min(full, windowed):
            return 1, 1
        return max(1, windowed // full), max(1, full // windowed)


class Indexers(Struct, frozen=True):
    """The index caches of sparse attention: `bytes` per token in each of `layers`, on each GPU.

    The bytes do not depend on `--kv-cache-dtype`. A layer's keys of the longest prompt take
    `longest_bytes`: vLLM's profiling makes room for several such prompts. 0 for MiniMax-M3, where
    no such room is counted. With compressed attention, the keys are part of the model's `shape`,
    and only `longest_bytes` is above 0.
    """

    layers: int = 0
    bytes: int = 0
    longest_bytes: int = 0


class Model(Struct, frozen=True):
    """A model: its KV cache, and its weights if the whole shape is known.

    `unknown` are the fields of its config that kvscope does not know. `notes` name sizes that are
    only approximate. `architecture` is None if the config lacks fields that weights need, which
    `architecture_missing` names. `weights_total` is the bytes that a checkpoint's index states;
    they win over bytes counted from the shape. With `mtp` the model has layers for multi-token
    prediction. vLLM's longest request has `longest_tokens` by default, None if unknown. With
    `parts_assumed`, all parts count as quantized, though checkpoints leave some unquantized.
    """

    DOCUMENT: ClassVar[str] = "name dtype bytes_per_token notes"
    name: str
    shape: HeadKv | LatentKv | UnlikeKv | CompressedKv
    dtype: KvDtype
    source: str
    notes: tuple[str, ...] = ()
    kinds: LayerKinds = LayerKinds(0)
    architecture: Architecture | None = None
    architecture_missing: str = ""
    weight_dtype: WeightDtype = "bf16"
    bits: WeightBits = WeightBits()
    weights_total: int | None = None
    mtp: bool = False
    indexers: Indexers = Indexers()
    unknown: tuple[str, ...] = ()
    longest_tokens: int | None = None
    parts_assumed: bool = False

    @property
    def bytes_per_token(self) -> int:
        """Bytes of KV cache for one token, over all layers and GPUs."""
        return self.shape.values_per_token * _BYTES[self.dtype] + self._index_bytes

    @property
    def hybrid(self) -> bool:
        """Whether some layers cache windows, states or compressed KV instead of all tokens' KV."""
        return self.kinds.hybrid or self.compressed is not None

    @property
    def compressed(self) -> CompressedKv | None:
        """The caches of compressed attention, None for other models."""
        return self.shape if isinstance(self.shape, CompressedKv) else None

    @property
    def layers_per_block(self) -> int | None:
        """Number of layers whose KV one block of vLLM's pool holds; None if unknown."""
        if not self.hybrid:
            return self.shape.layers
        groups = self.kv_groups(1)
        return None if groups is None else max(group.layers for group in groups.groups)

    def kv_groups(
        self, trace_block: int, engine_block: int | None = None, tp: int = 1
    ) -> KvGroups | None:
        """Return vLLM's groups of a hybrid model; None for other models, or if they are unknown.

        `engine_block` is the tokens per block with which vLLM starts: by default `trace_block`, or
        vLLM's own default with linear attention; `block_tokens` then enlarges blocks for states.
        """
        if self.compressed:
            return self.compressed.kv_groups()
        usual = trace_block if self.kinds.state is None else _USUAL_BLOCK
        times = self.shape.times(tp) if isinstance(self.shape, UnlikeKv) else (1, 1)
        return kv_groups(self.kinds, self.block_tokens(engine_block or usual, tp), *times)

    def default_block(self, gpu: Gpu) -> int:
        """Return vLLM's default block size on a GPU, in tokens.

        16, unless MLA kernels (Hopper, Blackwell), MiniMax-M3 or compressed attention set it.

        Source: vLLM 0.20.0, 0.28.0 and 0.32.0, vllm/platforms/cuda.py (_get_backend_priorities) and
        get_supported_kernel_block_sizes of the backends in vllm/v1/attention/backends/mla, and of
        vllm/models/minimax_m3/common/sparse_attention.py.
        """
        if self.indexers.bytes and isinstance(self.shape, HeadKv):
            return _SPARSE_BLOCK
        if self.compressed:
            return BLOCK
        if not isinstance(self.shape, LatentKv) or gpu.family not in {"hopper", "blackwell"}:
            return _USUAL_BLOCK
        if self.indexers.bytes:  # sparse attention
            return 64
        if gpu.family == "blackwell":  # FlashInfer, but on workstations
            return 32 if gpu.in_server else _USUAL_BLOCK
        return 64 if self.dtype == "fp8" else _USUAL_BLOCK  # FlashMLA, else FlashAttention

    def block_tokens(self, engine_block: int, tp: int = 1) -> int:
        """Return the tokens per block after vLLM starts with blocks of `engine_block` tokens.

        A block of linear attention is one state, and all blocks have equal bytes: vLLM enlarges
        blocks of attention until a state fits. Compressed attention: its smallest block.
        Source: vLLM 0.33.0, vllm/platforms/interface.py (_align_hybrid_block_size).
        """
        state = self.kinds.state
        if self.compressed:
            return self.compressed.kv_groups().block_tokens
        if state is None or kv_groups(self.kinds, engine_block) is None:
            return engine_block
        least = max(engine_block, _LATENT_BLOCK if isinstance(self.shape, LatentKv) else 1)
        step = math.lcm(least, state.export_tokens or 1)
        layer = self.by_layer.shape.values_on_rank(tp) * _BYTES[self.dtype]
        return step * -(-state.bytes_on_rank(tp) // (layer * step))

    def served_by(self, engine: Engine, gpu: Gpu | None) -> Model:
        """Return the model with the additions of an engine on a GPU to its KV.

        They are a drafter's KV (a layer, its tokens in linear states) and states' `export_tokens`.
        """
        if engine.drafts_in_pool and self.compressed:
            caches = replace(self.compressed, ratios=(*self.compressed.ratios, 0))
            return replace(self, shape=caches)
        if engine.drafts_in_pool and not isinstance(self.shape, UnlikeKv | CompressedKv):
            kinds, drafter = replace(self.kinds, full=self.kinds.full + 1), engine.drafter
            if kinds.state is not None and drafter is not None:
                kinds = replace(kinds, state=kinds.state.with_drafts(drafter.tokens))
            shape = replace(self.shape, layers=self.shape.layers + 1)
            indexers = replace(self.indexers, layers=self.indexers.layers + 1)
            return replace(self, kinds=kinds, shape=shape, indexers=indexers).served_by(
                replace(engine, drafter=None), gpu
            )
        state = self.kinds.state
        if state is None or state.export is None or engine.name != "vllm":
            return self
        tokens = state.export.tokens_in(engine.version, gpu.family if gpu else None)
        kinds = replace(self.kinds, state=replace(state, export_tokens=tokens))
        return replace(self, kinds=kinds)

    @property
    def by_block(self) -> Model:
        """The model with only the layers whose KV one block of vLLM's pool holds."""
        return self._of_layers(self.layers_per_block or self.shape.layers)

    @property
    def by_layer(self) -> Model:
        """The model with one layer's KV (the widest if heads differ), to size blocks for states."""
        return self._of_layers(1)

    def _of_layers(self, layers: int) -> Model:
        if isinstance(self.shape, UnlikeKv):
            return replace(self, shape=self.shape.of_block(layers))
        if self.compressed:
            return replace(self, shape=replace(self.compressed, of_block=True))
        indexed = min(layers, self.indexers.layers)
        indexers = replace(self.indexers, layers=indexed)
        return replace(self, shape=replace(self.shape, layers=layers), indexers=indexers)

    @property
    def moe(self) -> bool:
        """Whether tokens are routed to experts."""
        return self.architecture is not None and self.architecture.moe

    @property
    def vision(self) -> bool:
        """Whether the model has a vision encoder."""
        return self.architecture is not None and self.architecture.vision.hidden_size > 0

    @property
    def uniform(self) -> bool:
        """Whether the bytes of a block are known, so that the pool is a number, not a range."""
        return self.layers_per_block is not None

    def bytes_for(self, tokens: int) -> int:
        """Return the bytes of KV cache for `tokens` tokens."""
        return tokens * self.bytes_per_token

    def blocks_in(self, size_bytes: int, block_size: int) -> int:
        """Return the whole blocks of `block_size` tokens that fit into `size_bytes`."""
        return size_bytes // self.bytes_for(block_size)

    def kv_bytes_per_token(self, tp: int = 1) -> int:
        """Return the bytes of KV cache that each of `tp` GPUs keeps for one token.

        Windowed layers are counted in full. KV heads are replicated where there are fewer of them
        than GPUs, and MLA's latent vector always.
        """
        return self.shape.values_on_rank(tp) * _BYTES[self.dtype] + self._index_bytes

    @property
    def _index_bytes(self) -> int:
        """Bytes of a token's indexer keys (sparse attention) on each GPU, over all layers."""
        return self.indexers.layers * self.indexers.bytes

    def layer_bytes_per_token(self, tp: int = 1) -> tuple[float, float]:
        """Return a token's KV bytes on each GPU in one full and in one windowed layer."""
        if isinstance(self.shape, UnlikeKv):
            full, windowed = (
                kind.values_on_rank(tp) * _BYTES[self.dtype] / max(1, kind.layers)
                for kind in (self.shape.full, self.shape.windowed)
            )
            return full, windowed
        layer = self.kv_bytes_per_token(tp) / self.shape.layers
        return layer, layer

    def tokens_in(self, size_bytes: float, tp: int = 1) -> tuple[int, int, int]:
        """Return how many tokens fit into `size_bytes` of each GPU: least, best, most.

        The three are equal if the bytes of a block are known (`uniform`); a block then holds one
        group's layers. Else the least assumes that all layers cache every token, the best that the
        layers of `shape` do, the most that windowed layers cache one window.
        """
        if self.uniform:
            tokens = int(size_bytes // self.by_block.kv_bytes_per_token(tp))
            return tokens, tokens, tokens
        counted = self.kv_bytes_per_token(tp)
        best = int(size_bytes // counted)
        layer = counted // self.shape.layers
        least = int(size_bytes // (layer * self.kinds.total))
        if not self.kinds.full:
            return least, best, best
        windows = layer * self.kinds.windowed * (self.kinds.window or 0)
        most = int(max(0.0, size_bytes - windows) // (layer * self.kinds.full))
        return min(least, best), best, max(most, best)

    def weight_bytes(self, tp: int = 1, dp: int = 1) -> float:
        """Return the bytes of weights on each of the `tp` GPUs of one of `dp` ranks.

        Raises InputError if neither the config nor a checkpoint's index determines them.
        """
        if self.architecture is None:
            if self.weights_total is not None and dp == 1:
                return self.weights_total / tp
            raise InputError(
                f"no weights without more of the shape: {self.architecture_missing}",
                where=self.source,
                remedy=f"put the checkpoint's {_INDEX} into its folder, or state --num-gpu-blocks",
            )
        counted = self.architecture.weight_bytes(self.bits, tp, dp)
        if self.weights_total is None:
            return counted
        return counted * self.weights_total / self.architecture.weight_bytes(self.bits)

    def loaded_bytes(self, tp: int = 1, dp: int = 1) -> float:
        """Return the bytes that loading takes on each GPU: the weights and the rotary tables.

        Raises InputError as `weight_bytes` does.
        """
        tables = self.architecture.rotary_bytes if self.architecture is not None else 0
        return self.weight_bytes(tp, dp) + tables

    def left_out_bytes(self, tp: int = 1, dp: int = 1) -> float:
        """Return the bytes more per GPU if only experts (dense: MLP) are quantized.

        0 without `parts_assumed`.
        """
        if not self.parts_assumed:
            return 0.0
        kept = ("attention", "shared", "mlp") if self.moe else ("attention",)
        bits = replace(self.bits, **dict.fromkeys(kept, 16.0))
        return replace(self, bits=bits).weight_bytes(tp, dp) - self.weight_bytes(tp, dp)

    def shaped(self) -> Architecture:
        """Return `architecture`. Raises InputError with the missing fields if it is None."""
        if self.architecture is None:
            raise InputError(
                self.architecture_missing,
                where=self.source,
                remedy="name a preset, or state --num-gpu-blocks and --latency",
            )
        return self.architecture

    def up_to(self, tokens: int) -> Model:
        """Return the model for requests of at most `tokens` tokens.

        Raises UsageError if `tokens` exceeds the model's own limit, which vLLM refuses too.
        """
        longest = self.longest_tokens
        if longest is not None and tokens > longest:
            what = f"{self.name} takes requests of {longest:,} tokens at most, not {tokens:,}"
            raise UsageError(what, where="--max-model-len", remedy=f"give {longest} or fewer")
        buffered = self.indexers.longest_bytes * tokens // (longest or tokens)
        indexers = replace(self.indexers, longest_bytes=buffered)
        return replace(self, longest_tokens=tokens, indexers=indexers)

    def quantized_to(self, dtype: WeightDtype) -> Model:
        """Return the model with weights in `dtype` instead of its config's precision."""
        bits = weight_bits(dtype, moe=self.moe)
        assumed = dtype == "nvfp4"  # all parts of published ones with other precisions are
        return replace(
            self, weight_dtype=dtype, bits=bits, weights_total=None, parts_assumed=assumed
        )


_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "seq_len")
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def resolve_model(
    text: str, dtype: KvDtype | None = None, weight_dtype: WeightDtype | None = None
) -> Model:
    """Return the model that `text` names: a preset, a config.json, or a folder that holds one.

    An id of the Hugging Face hub (`ORG/NAME`) names the config.json in its cache on this machine.
    `dtype` overrides the precision of the cache, `weight_dtype` that of the weights. Raises
    UsageError for an unknown preset (with the nearest names) and for another `dtype` than fp8 with
    compressed attention, InputError for an unreadable config or one that lacks fields. A preset's
    exact name wins over a folder of that name: write `./name` for the folder.
    """
    path = Path(text)
    if text not in PRESETS and (os.path.lexists(path) or path.suffix == ".json"):
        model = read_config(path / "config.json" if path.is_dir() else path)
    elif text.rpartition("/")[2].lower() not in PRESETS and (known := _in_hub_cache(text)):
        model = replace(read_config(known), name=text)
    else:
        model = preset(text)
    if model.compressed and dtype not in {None, "fp8"}:
        what = f"compressed attention caches 8 bits a value, not {dtype}"
        raise UsageError(what, where="--kv-dtype", remedy="leave it out")
    model = replace(model, dtype=dtype) if dtype else model
    return model.quantized_to(weight_dtype) if weight_dtype else model


def preset_names() -> tuple[str, ...]:
    """Return the names that `resolve_model` knows without a config.json."""
    return tuple(PRESETS)


def preset(text: str) -> Model:
    """Return the preset `text`, in any case, with or without an organisation (`ORG/NAME`).

    Raises UsageError with the nearest names.
    """
    name = text.rsplit("/", 1)[-1].lower()
    if name in PRESETS:
        return _preset(name)
    near = get_close_matches(name, PRESETS, n=3, cutoff=0.5)
    remedy = f"did you mean {', '.join(near)}" if near else f"presets: {', '.join(PRESETS)}"
    more = f", or download it: hf download {text} config.json" if _HUB_ID.fullmatch(text) else ""
    raise UsageError(
        f"no model preset {text!r}", remedy=f"{remedy}, or name the model's config.json{more}"
    )


def _in_hub_cache(text: str) -> Path | None:
    """Return the path of a Hugging Face id's config.json in the local cache, None without one.

    Source: huggingface_hub, "Understand caching": refs/main names the snapshot.
    """
    if not _HUB_ID.fullmatch(text):
        return None
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = cache / f"models--{text.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    path = folder / "snapshots" / revision / "config.json"
    return path if path.is_file() else None


@cache
def _preset(name: str) -> Model:
    repository, config = PRESETS[name]
    source = f"config.json of {repository}"
    return _model(name, ConfigFields(source, config), None)


def read_config(path: Path) -> Model:
    """Return the model that the Hugging Face config.json at `path` describes.

    Files beside it count: model.safetensors.index.json for the weight bytes, hf_quant_config.json
    if `path` states no quantization. Raises InputError for an unreadable or incomplete file.
    """
    config = json_object(path, "name a config.json or a preset")
    inner: dict[str, Any] = next(
        (config[key] for key in _NESTED if isinstance(config.get(key), dict)), {}
    )
    beside = _beside(path, _QUANTIZATION)
    stated = {**beside, **config, **inner}
    fields = ConfigFields(str(path), stated | usual_fields(stated))
    metadata = _beside(path, _INDEX).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return _model(path.resolve().parent.name, fields, total)


def _beside(config: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in the file `name` in the folder of `config`, empty if missing."""
    path = config.with_name(name)
    return json_object(path, "remove it") if os.path.lexists(path) and path.is_file() else {}


def _model(name: str, config: ConfigFields, total: object) -> Model:
    check_family(config)
    layers, notes = _layers(config)
    dtype, doubts = _dtype(config)
    shape = _shape(config, layers)
    known = architecture(config)
    indexers = _indexers(config, layers)
    moe = not isinstance(known, str) and known.moe
    weight_dtype, bits, doubt = quantization(config, moe=moe)
    weights = total if isinstance(total, int) and total > 0 else None
    if weights and dtype == "fp32" and weight_dtype == "bf16":
        weights //= 2  # vLLM serves a float32 checkpoint in 16 bits
    mtp = has_mtp(config)
    unknown = () if isinstance(known, str) else config.unknown
    if unknown:
        notes.append(
            f"fields of config.json that kvscope does not know: {', '.join(unknown)};"
            " the engine's log settles what they change (--engine-log)"
        )
    if isinstance(shape, CompressedKv):
        dtype, doubts = "fp8", []
    return Model(
        name,
        shape,
        dtype,
        config.where,
        (*notes, *doubts, *([doubt] if doubt else [])),
        kinds=layer_kinds(config),
        architecture=None if isinstance(known, str) else known,
        architecture_missing=known if isinstance(known, str) else "",
        weight_dtype=weight_dtype,
        bits=bits,
        weights_total=weights,
        mtp=mtp,
        indexers=indexers,
        unknown=unknown,
        longest_tokens=_longest(config),
    )


def _longest(config: ConfigFields) -> int | None:
    """Return vLLM's default limit of prompt and output tokens, None if no field states a length.

    Source: vLLM 0.32.0, vllm/config/model.py (_get_and_verify_max_len).
    """
    stated = [tokens for name in _LENGTHS if (tokens := config.count_or(0, name))]
    tokens = config.count_or(min(stated, default=0), "model_max_length")
    scaling = config.get("rope_scaling")
    scaling = scaling if isinstance(scaling, Mapping) else {}
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    if kind == "longrope":
        tokens = config.count_or(tokens, "original_max_position_embeddings")
    elif kind in {"linear", "dynamic"} and isinstance(factor, int | float):
        tokens = int(tokens * factor)
    return tokens or None


def _shape(config: ConfigFields, layers: int) -> HeadKv | LatentKv | UnlikeKv | CompressedKv:
    if config.has("compress_ratios"):
        return CompressedKv.of(config)
    kinds = layer_kinds(config)
    if kinds.unlike_heads is not None:
        full, windowed = kinds.unlike_heads
        return UnlikeKv(
            HeadKv(kinds.full, full.kv_heads, full.kv_size),
            HeadKv(kinds.windowed, windowed.kv_heads, windowed.kv_size),
        )
    if config.has("kv_lora_rank"):
        latent, rope = config.count("kv_lora_rank"), config.count("qk_rope_head_dim")
        return LatentKv(layers, latent, rope)
    config.count("num_attention_heads", "n_head")
    heads = layer_heads(config)
    return HeadKv(layers, heads.kv_heads, heads.kv_size)


def _indexers(config: ConfigFields, layers: int) -> Indexers:
    """Return the index caches of sparse attention; several layers may share a cache.

    Indexer keys of MLA models have 8 bits and scales, those of MiniMax-M3 16 bits.

    Source: vLLM 0.32.0, vllm/model_executor/models/deepseek_v2.py (Indexer, and which layers skip
    theirs) and vllm/models/minimax_m3/nvidia/model.py.
    """
    sparse = config.get("sparse_attention_config")
    if isinstance(sparse, Mapping) and isinstance(
        listed := sparse.get("sparse_attention_freq"), list
    ):
        inside = ConfigFields(config.where, sparse)
        return Indexers(sum(map(bool, listed)), 2 * inside.count("sparse_index_dim"))
    size = config.count_or(0, "index_head_dim")
    if not size:
        return Indexers()
    each, pattern = config.count_or(1, "index_topk_freq"), config.get("index_topk_pattern")
    skipped = config.get("index_skip_topk_offset", default=2)
    config.get("indexer_types")  # says the same layer by layer
    if isinstance(pattern, str):
        layers -= pattern.count("S")
    elif each > 1:
        layers = sum(max(at - skipped + 1, 0) % each == 0 for at in range(layers))
    size += size // _INDEX_SCALED * _SCALE_BYTES
    if config.has("compress_ratios"):  # the keys are among the entries; one for 4 tokens
        return Indexers(0, 0, size * config.count_or(0, "max_position_embeddings") // 4)
    return Indexers(layers, size, size * config.count_or(0, "max_position_embeddings"))


def _layers(config: ConfigFields) -> tuple[int, list[str]]:
    """Return the number of layers that keep KV for each token, and notes on approximations."""
    kinds = layer_kinds(config)
    total = kinds.total
    listed = any(isinstance(config.get(name), list) for name in ("layer_types", *NUMBERED))
    if not (listed or kinds.state):
        if mixed := next(filter(config.has, MIXED), None):
            note = f"{mixed} says that layers differ: all {total} counted as full attention"
            return total, [f"{note}, an upper bound"]
        return total, [_window_note("layers may look", kinds.window)] if kinds.windowed else []
    counted = kinds.full + kinds.windowed
    if not counted:
        raise InputError("no layer keeps KV for each token", where=config.where)
    notes = []
    if unknown := unknown_layers(config):
        notes.append(f"layers of unknown kinds ({', '.join(unknown)}) {COUNTED_AS_FULL}")
    if kinds.windowed:
        notes.append(_window_note(f"{kinds.windowed} of {total} layers look", kinds.window))
    if kinds.linear:
        note = f"{kinds.linear} of {total} layers keep a state of fixed size"
        notes.append(f"{note} {NOT_COUNTED}")
    return counted, notes


def _dtype(config: ConfigFields) -> tuple[KvDtype, list[str]]:
    """Return the precision of the cache, and notes on uncertainties.

    A KV precision stated by a quantized checkpoint wins, as in vLLM.
    Source: vLLM 0.33.0, vllm/utils/torch_utils.py (get_kv_cache_quant_algo_string) and
    vllm/model_executor/layers/attention/attention.py.
    """
    quantized = config.get("quantization_config", "quantization", default={})
    if isinstance(quantized, Mapping):
        scheme = quantized.get("kv_cache_scheme") or quantized.get("kv_cache_quant_algo")
        bits = scheme.get("num_bits") if isinstance(scheme, Mapping) else scheme
        if bits == 8 or str(bits).lower() == "fp8":
            return "fp8", []
        if bits:
            doubt = f"KV cache stated as {bits!r}, which is not counted"
            return "bf16", [f"{doubt}: 2 bytes per value assumed; override with --kv-dtype"]
    stated = config.get("dtype", "torch_dtype")
    dtype = _CONFIG_DTYPES.get(str(stated).removeprefix("torch."))
    if dtype is None:
        doubt = f"dtype {stated!r} is unknown" if stated else "no dtype stated"
        return "bf16", [f"{doubt}: 2 bytes per value assumed; override with --kv-dtype"]
    if dtype == "fp32":
        note = "float32 counted as stated; vLLM serves such a model in 16 bits by default"
        return dtype, [f"{note}: --kv-dtype fp16"]
    return dtype, []


COUNTED_AS_FULL = "are counted as full attention, an upper bound"
COUNTED_IN_FULL = "counted in full, an upper bound for long prompts"
NOT_COUNTED = "instead of KV for each token: not counted"


def _window_note(which: str, window: object) -> str:
    back = f"{window} tokens back" if isinstance(window, int) else "a limited way back"
    return f"{which} only {back}: {COUNTED_IN_FULL}"
