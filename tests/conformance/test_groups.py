"""Blocks and groups that vLLM's own code forms of a config.json: kvscope forms the same."""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from kvscope.deployment.compressed import CompressedKv
from kvscope.deployment.engines import parse_engine
from kvscope.deployment.gpus import resolve_gpu
from kvscope.deployment.models import preset, read_config
from kvscope.deployment.speculative import Drafter
from tests.conformance.vllm_side import VLLM_VERSION, ModelConfig, torch
from tests.long import long

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.config import CacheConfig
    from vllm.model_executor.layers.mamba.abstract import MambaBase
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP
    from vllm.platforms.interface import Platform
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheSpec,
        MambaSpec,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )

    try:  # of 0.33
        from vllm.v1.core.kv_cache_planning import get_kv_cache_groups
    except ImportError:
        from vllm.v1.core.kv_cache_utils import get_kv_cache_groups

pytestmark = pytest.mark.engine

CONFIGS = Path(__file__).parents[1] / "deployment" / "configs"
ENGINE = parse_engine(f"vllm@{VLLM_VERSION}")
EXPORTING = {"nemotron_h", "granitemoehybrid", "falcon_h1"}
"""Model types whose layers, Mamba 2, write states within a step on every GPU."""


class Backend:
    """An attention backend as vLLM has on NVIDIA's GPUs: kernels of 16 tokens or a multiple."""

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:
        """Return the sizes that kernels take."""
        return [MultipleOf(16)]

    @staticmethod
    def customize_spec(spec: KVCacheSpec) -> KVCacheSpec:
        """Return the spec as it is."""
        return spec


class Nvidia(Platform):
    """A platform whose attention layers all have that backend."""

    @classmethod
    def _find_non_ssm_backends(cls, _: Any) -> list[Any]:
        return [Backend]


class FlashLayer(MambaBase):  # type: ignore[misc]
    """A layer of a gated delta net that vLLM 0.33 computes with FlashInfer."""

    get_state_shape = get_state_dtype = mamba_type = None

    def __init__(self) -> None:
        """Make one without weights."""

    def get_prefill_checkpoint_alignment(self) -> int:
        """Return the tokens between the states that its kernel can export."""
        return 64


@pytest.fixture(scope="module")
def configs() -> dict[str, ModelConfig]:
    """Return the models that vLLM has read, none at first."""
    return {}


def vllm_config(model: ModelConfig, tp: int, block: int, drafts: int, *, flash: bool) -> Any:
    """Return what vLLM's code reads, after it has aligned blocks and states; MTP drafts tokens."""
    speculative = SimpleNamespace(
        num_speculative_tokens=drafts,
        method="mtp",
        use_eagle=lambda: True,
        use_eagle_block_drop=lambda: True,
    )
    cache = CacheConfig(block_size=block, enable_prefix_caching=True)
    cache.mamba_cache_mode, cache.kv_cache_layout = "align", "LBNHC"
    config = SimpleNamespace(
        model_config=model,
        cache_config=cache,
        parallel_config=SimpleNamespace(
            tensor_parallel_size=tp, pipeline_parallel_size=1, decode_context_parallel_size=1
        ),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        compilation_config=SimpleNamespace(
            static_forward_context={"a layer": FlashLayer()} if flash else {}
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=speculative if drafts else None,
        num_speculative_tokens=drafts,
    )
    adjust = MODELS_CONFIG_MAP.get(model.architecture)
    if model.is_hybrid and adjust is not None:
        adjust.verify_and_update_config(config)
    if model.is_hybrid:
        Nvidia._align_hybrid_block_size(config, Backend)
    return config


def layer_specs(config: Any) -> dict[str, KVCacheSpec]:
    """Return what each layer of a model caches, in order."""
    model, cache = config.model_config, config.cache_config
    text = model.hf_text_config
    full = MLAAttentionSpec if model.use_mla else FullAttentionSpec
    specs: list[KVCacheSpec] = []
    state = None
    if model.is_hybrid:
        kind, _ = ModelRegistry.resolve_model_cls(model.architecture, model_config=model)
        state = MambaSpec(
            shapes=kind.get_mamba_state_shape_from_config(config),
            dtypes=kind.get_mamba_state_dtype_from_config(config),
            block_size=cache.mamba_block_size,
            page_size_padded=cache.mamba_page_size_padded,
            mamba_cache_mode="align",
        )
    for at, kind in enumerate(layer_kinds(text)):
        shape = {"block_size": cache.block_size, "dtype": torch.bfloat16}
        shape |= heads(config, at)
        if kind == "sliding_attention":
            specs.append(SlidingWindowSpec(sliding_window=text.sliding_window, **shape))
        else:
            attends = kind in {"attention", "full_attention", "*"}
            specs.append(full(**shape) if attends else state)
    if config.num_speculative_tokens:  # MTP's layer is full attention, and comes last
        shape = {"block_size": cache.block_size, "dtype": torch.bfloat16}
        specs.append(full(**shape, **heads(config, 0)))
    return {f"{at}": spec for at, spec in enumerate(specs)}


def heads(config: Any, layer: int) -> dict[str, int]:
    """Return KV heads of a rank and the size of a head in a layer."""
    model, text = config.model_config, config.model_config.hf_text_config
    if text.model_type == "gemma4_text":  # as Gemma4Attention
        each = text.per_layer_config[layer]
        ranks = config.parallel_config.tensor_parallel_size
        return {
            "num_kv_heads": max(1, each.num_key_value_heads // ranks),
            "head_size": each.head_dim,
        }
    if text.model_type.startswith("mimo_v2"):  # as MiMoV2FlashDecoderLayer
        own = "swa_" if text.hybrid_layer_pattern[layer] else ""
        kv_heads = getattr(text, f"{own}num_key_value_heads")
        return {
            "num_kv_heads": max(1, kv_heads // config.parallel_config.tensor_parallel_size),
            "head_size": getattr(text, f"{own}head_dim"),
            "head_size_v": getattr(text, f"{own}v_head_dim"),
        }
    of_rank = model.get_num_kv_heads(config.parallel_config)
    return {"num_kv_heads": of_rank, "head_size": model.get_head_size()}


def layer_kinds(text: Any) -> list[str]:
    """Return the kind of each layer with a cache, as vLLM's model classes decide."""
    if hasattr(text, "is_kda_layer"):
        return [
            "linear_attention" if text.is_kda_layer(at) else "attention"
            for at in range(text.num_hidden_layers)
        ]
    if text.model_type == "nemotron_h":
        return [letter for letter in text.hybrid_override_pattern if letter in "M*"]
    if text.model_type == "falcon_h1":  # as FalconH1ParallelHybrid
        return ["attention", "mamba"] * text.num_hidden_layers
    if text.model_type.startswith("mimo_v2"):
        return [("full_attention", "sliding_attention")[each] for each in text.hybrid_layer_pattern]
    sharing = getattr(text, "num_kv_shared_layers", 0) or 0
    return list(text.layer_types)[: text.num_hidden_layers - sharing]


def compressed_specs(shape: CompressedKv) -> tuple[Any, dict[str, KVCacheSpec]]:
    """Return what vLLM's code reads, and what each cache of DeepSeek-V4 is, in the order of layers.

    The caches are vLLM's own modules, as DeepseekV4Attention makes them.
    """
    attention = pytest.importorskip("vllm.models.deepseek_v4.attention")
    compressor = pytest.importorskip("vllm.models.deepseek_v4.compressor")
    sparse_swa = pytest.importorskip("vllm.v1.attention.backends.mla.sparse_swa")
    cache = CacheConfig(block_size=256, enable_prefix_caching=True, cache_dtype="fp8_ds_mla")
    cache.kv_cache_layout = "BLNHC"
    config = SimpleNamespace(
        cache_config=cache,
        compilation_config=SimpleNamespace(static_forward_context={}),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
    )
    floats, bytes_ = torch.float32, torch.uint8
    specs: dict[str, KVCacheSpec] = {}
    with pytest.MonkeyPatch.context() as patch:
        for module in (attention, compressor, sparse_swa):
            patch.setattr(module, "get_current_vllm_config", lambda: config)
        for at, ratio in enumerate(shape.ratios):
            made: dict[str, Any] = {}
            if ratio == 4:
                made["keys"] = attention.DeepseekV4IndexerCache(
                    shape.index_bytes, bytes_, f"{at}.keys", cache, 4
                )
                sums = 4 * shape.index_size
                made["sums"] = compressor.CompressorStateCache(sums, floats, 4, f"{at}.sums")
            made["window"] = sparse_swa.DeepseekV4SWACache(
                shape.size, shape.window, bytes_, f"{at}.window", cache
            )
            layer = SimpleNamespace(
                compress_ratio=ratio,
                kv_cache_dtype="fp8_ds_mla",
                head_dim=shape.size,
                kv_cache_torch_dtype=bytes_,
            )
            layer.get_kv_cache_spec = partial(
                attention.DeepseekV4Attention.get_kv_cache_spec, layer
            )
            made["entries"] = layer
            if ratio:
                sums = 2 * (2 if ratio == 4 else 1) * shape.size
                made["state"] = compressor.CompressorStateCache(sums, floats, ratio, f"{at}.state")
            found = {name: cache.get_kv_cache_spec(config) for name, cache in made.items()}
            specs |= {f"{at}.{name}": spec for name, spec in found.items() if spec is not None}
    return config, specs


@pytest.mark.parametrize(
    ("name", "ratios"),
    [
        ("deepseek-v4-flash", None),
        ("deepseek-v4-pro", None),
        ("deepseek-v4-flash", (4, 128, 4, 0)),
        ("deepseek-v4-flash", (0, 4, 128, 128, 128)),
    ],
)
def test_caches_of_compressed_attention(name: str, ratios: tuple[int, ...] | None) -> None:
    """DeepSeek-V4's groups, their blocks and the bytes of a block of the pool are vLLM's."""
    shape = preset(name).compressed
    assert shape is not None
    if ratios is not None:
        shape = replace(shape, ratios=ratios)
    config, specs = compressed_specs(shape)
    groups = [
        [*getattr(group.kv_cache_spec, "kv_cache_specs", {"": group.kv_cache_spec}).values()]
        for group in get_kv_cache_groups(config, specs)
    ]
    theirs = [
        (
            "sliding" if isinstance(each[0], SlidingWindowSpec) else "full",
            each[0].block_size,
            getattr(each[0], "sliding_window", None) or 0,
        )
        for each in groups
    ]
    assert [group.spec for group in shape.kv_groups().groups] == theirs
    assert shape.block_bytes == max(sum(spec.page_size_bytes for spec in each) for each in groups)


CASES = [
    ("qwen3-next-80b", (1, 2, 4)),
    ("nemotron-h-8b", (1, 8)),
    ("nemotron-3-nano-30b", (1, 2, 4)),
    ("granite-4.0-h-small", (1, 4)),
    ("granite-4.0-h-tiny", (1, 2)),
    ("kimi-linear-48b", (1, 4)),
    ("jamba-v0.1", (1, 2, 8)),
    ("falcon-h1-7b", (1, 2)),
    ("lfm2-1.2b", (1, 2, 8)),
    ("gpt-oss-120b", (1, 2)),
    ("gemma-4-31b", (1, 2, 8)),
    ("gemma-4-e4b", (1, 2)),
    ("gemma-3n-e4b", (1, 2)),
    ("mimo-v2-flash", (1, 4, 8)),
]


@pytest.mark.parametrize(
    "name",
    [name if name == "gemma-4-31b" else long(name) for name, _ in CASES if name != "gpt-oss-120b"],
)
def test_the_longest_request_is_vllms(tmp_path: Path, name: str) -> None:
    """Where nothing states `--max-model-len`; the config of gpt-oss says nothing of it."""
    text = (CONFIGS / name / "config.json").read_text()
    (tmp_path / "config.json").write_text(text)
    theirs = ModelConfig(model=str(tmp_path), skip_tokenizer_init=True, dtype="bfloat16")
    assert theirs.max_model_len == read_config(CONFIGS / name / "config.json").longest_tokens


DRAFTING = ("qwen3-next-80b", "nemotron-3-nano-30b")


@pytest.mark.parametrize("block", [16, 128])
@pytest.mark.parametrize(
    ("name", "tp"),
    [
        (name, tp) if name == "qwen3-next-80b" else long(name, tp)
        for name, tps in CASES
        for tp in tps
    ],
)
@pytest.mark.parametrize("gpu", ["a100", "h100"])
@pytest.mark.parametrize("drafts", [0, 2])
def test_groups_are_vllms(
    tmp_path: Path,
    configs: dict[str, ModelConfig],
    name: str,
    tp: int,
    block: int,
    gpu: str,
    drafts: int,
) -> None:
    """The same kinds, tokens of a block and layers in each group, and bytes of a block."""
    if drafts and name not in DRAFTING:
        pytest.skip("no drafter is simulated for it")
    fields = json.loads((CONFIGS / name / "config.json").read_text())
    if name not in configs:
        (tmp_path / "config.json").write_text(json.dumps(fields))
        configs[name] = ModelConfig(
            model=str(tmp_path), skip_tokenizer_init=True, max_model_len=4096, dtype="bfloat16"
        )
    flash = gpu == "h100" and fields["model_type"] == "qwen3_next" and ENGINE.version >= (0, 33)
    config = vllm_config(configs[name], tp, block, drafts, flash=flash)
    theirs = get_kv_cache_groups(config, layer_specs(config))
    engine = replace(ENGINE, drafter=Drafter("mtp", drafts) if drafts else None)
    model = read_config(CONFIGS / name / "config.json").served_by(engine, resolve_gpu(gpu))
    mine = model.kv_groups(16, block, tp)
    assert mine is not None
    kinds = {MambaSpec: "linear", SlidingWindowSpec: "sliding"}
    assert [(group.kind, group.block_tokens, group.layers) for group in mine.groups] == [
        (
            kinds.get(type(group.kv_cache_spec), "full"),
            group.kv_cache_spec.block_size,
            len(group.layer_names),
        )
        for group in theirs
    ]
    assert bool(mine.export_tokens) == (flash or fields["model_type"] in EXPORTING)
    page = max(len(group.layer_names) * group.kv_cache_spec.page_size_bytes for group in theirs)
    assert model.by_block.kv_bytes_per_token(tp) * mine.block_tokens == page
