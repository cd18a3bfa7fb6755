"""Fields of a model's config.json, and the fixed-size states of layers without per-token KV.

Source: vLLM 0.33.0, vllm/model_executor/models (get_mamba_state_shape_from_config of each class).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from kvscope.core.errors import InputError

_MOST = 2**31  # of anything that a model has a number of
_LONGEST = 60  # characters of a value that an error repeats
# Fields that change neither the KV of a token nor more than a part in a thousand of the weights.
_IRRELEVANT = re.compile(
    r"""
    _name_or_path|architectures|auto_map|model_type|transformers_version|(torch_)?dtype
    | .*(_token|_token_id|_token_index|_tokens?_per_image|_placeholder|tokenizer_class)
    | (?!.*_dim).*(rope|rotary|yarn|use_nope).*|rotary_dim|.*position_emb.*|max_position.*
    | (initial|original)_.*(context|position).*|max_seq_len|seq_length|n_positions|seed
    | .*(norm|epsilon|_eps|bias|pdrop|residual_in_fp32)|.*(norm_|dropout|soft_?cap).*
    | initializer_.*|.*_init(ializer)?(_.*)?|use_cache|.*_loss(_.*)?|output_(?!gate).*
    | pretraining_tp|ep_size|seq_aux|is_(encoder_)?decoder|tie_encoder_decoder|torchscript
    | (hidden_|mamba_|mlp_hidden_|projector_hidden_)?(act|activation)(_.*)?|.*_act|swiglu_.*
    | (?!.*(ffn|width|dim)).*(multipliers?|scale|scalar|scaling)|scale_.*|.*_fp32(_.*)?
    | n_group|topk_(group|method)|num_expert_group|use_grouped_topk|index_topk|index_n_heads
    | (norm_topk|(moe_)?renorm|scoring|routed_scaling|moe_rout|router_|use_(moe_)?rout).*
    | (time_step|mamba_(dt|chunk|proj)|ssm_dt).*|chunk_size|expand|use_(mamba_k|assoc).*
    | .*_label|label2id|id2label|task_specific_params|problem_type|finetuning_task|prefix
    | temperature|top_[kp]|typical_p|do_sample|early_stopping|(max|min)_length|num_beam.*
    | .*(repetition|length|diversity)_penalty|.*suppress_tokens|(encoder_)?no_repeat_.*
    | remove_invalid_values|return_dict.*|num_return_sequences|bad_words_ids|pruned_heads
    | (text|vision|llm|language|vit)_config|.*(vision|image|video|img_|visual).*|mm_.*
    | (mtp|num_mtp|num_nextn|eagle).*|.*_mtp(_.*)?|multimodal_.*|projector_.*|summary_.*
    | chunk_size_feed_forward|use_bfloat16|tf_legacy_loss|ignore_index|rescale_.*|hc_.*
    | num_logits_to_keep|num_reward_heads|language_model_only|moe_shared_expert_overlap
    | mlp_only_layers|max_window_layers|output_gate_type|partial_.*factors?|type_vocab_size
    | use_bidirectional_attention|add_cross_attention|attn_res_block_size|bo[ai]_.*
    | enable_moe_block|use_double_wide_mlp|parallel_attn|use_parallel_residual|use_qk_.*
    | attn_temperature_tuning|model_max_length|linear_(a|dt|allow)_.*|expert_selection_fn
    """,
    re.VERBOSE,
)
# Fields that say nothing more where a config states the first.
_IMPLIED = {
    "compress_ratios": ("num_key_value_heads", "num_hash_layers"),
    "kv_lora_rank": ("num_key_value_heads", "head_dim", "qk_head_dim", "v_head_dim"),
    "layer_types": (
        *("full_attention_interval", "sliding_window_pattern", "_sliding_window_pattern"),
        "full_attn_idxs",
    ),
    "num_kv_heads": ("multi_query",),
    "num_key_value_heads": ("multi_query",),
    "interleave_moe_layer_step": ("moe_layers",),
    "mlp_layer_types": ("first_k_dense_replace",),
    "block_ff_dim": ("block_dim", "conv_dim_out", "num_heads"),
    "hybrid_override_pattern": ("layers_block_type",),
    "moe_layer_freq": ("first_k_dense_replace",),
}
# Words of fields that may say what is cached; of others the weights alone can depend.
_CACHED = re.compile(
    r"attn|attention|head|kv|key|value|window|cache|layer|block|compress|latent|lora|rank|index"
    r"|state|conv|ssm|mamba|recurren|sparse|shar|memory|swa|linear"
)


class ConfigFields(Struct, frozen=True):
    """Fields of a config.json and its text part, which wins.

    `where` names the config in errors. `read` collects the names that the methods look up, so that
    `unknown` can list the other fields.
    """

    where: str
    fields: Mapping[str, Any]
    read: set[str] = field(default_factory=set)

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the value of the first of `names` that the config states, else `default`."""
        self.read.update(names)
        return next((self.fields[name] for name in names if self.has(name)), default)

    def has(self, name: str) -> bool:
        """Return whether the config states `name` with a value other than null."""
        self.read.add(name)
        return self.fields.get(name) is not None

    @property
    def unknown(self) -> tuple[str, ...]:
        """Fields that are set, that kvscope does not read, and that may change KV or weights."""
        implied = {name for key in _IMPLIED if self.fields.get(key) for name in _IMPLIED[key]}
        return tuple(
            name
            for name, value in self.fields.items()
            if value and name not in self.read | implied and not _IRRELEVANT.fullmatch(name)
        )

    def count(self, *names: str) -> int:
        """Return the value of the first stated name. Raises InputError unless it is 1 to 2^31."""
        name = next(filter(self.has, names), None)
        if name is None:
            remedy = "is this a language model's config.json? A preset may do instead"
            raise InputError(f"{names[0]} is missing", where=self.where, remedy=remedy)
        value = self.fields[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
            shown = repr(value)[:_LONGEST]
            raise InputError(f"{name} is {shown}, not a number from 1 to 2^31", where=self.where)
        return value

    def count_or(self, default: int, *names: str) -> int:
        """Return the `count` of `names`; `default` if the config states 0 or none of them."""
        stated = self.get(*names)
        return self.count(*names) if stated else default

    def factor(self, default: float, name: str) -> float:
        """Return the number above 0 that the config states as `name`, or else `default`."""
        value = self.get(name, default=default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _MOST:
            shown = repr(value)[:_LONGEST]
            raise InputError(f"{name} is {shown}, not a number above 0", where=self.where)
        return value

    @property
    def family(self) -> str:
        """The config's `model_type` without the ending `_text`."""
        return str(self.get("model_type", default="")).removesuffix("_text")


_MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_WITH_MTP = (  # families, also where the config does not say how many
    *("deepseek_v3", "deepseek_v4", "glm_moe", "glm4_moe", "glm5_next", "longcat_flash", "mimo"),
    *("qwen3_next", "qwen3_5", "qwen4_exp", "step3p"),
)
_DELTA_NET = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
_NEMOTRON = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel")
_GRANITE = ("mamba_n_heads", "mamba_d_state", "mamba_n_groups", "mamba_d_conv")
_FLASH = ("hopper", "blackwell")  # GPUs whose kernels for linear attention can export states
_JAMBA = ("mamba_d_state", "mamba_d_conv")
_ATTENTION_FREE = "no layer attends, and vLLM caches no prefixes of such models by default"
_NOT_READ = {
    "mamba": _ATTENTION_FREE,
    "mamba2": _ATTENTION_FREE,
    "falcon_mamba": _ATTENTION_FREE,
    "bamba": "vLLM has no such model since 0.23",
    "zamba2": "layers that share one attention, whose KV and weights kvscope cannot count",
}


class StateExport(Struct, frozen=True):
    """Kernels that also write a state of linear attention from within a step, for later hits.

    That state, an export, follows a multiple of `tokens` tokens from the step's start. vLLM has
    these kernels since version `since`, on GPU `families` (empty: all).
    """

    tokens: int
    since: tuple[int, int] = (0, 0)
    families: tuple[str, ...] = ()

    def tokens_in(self, version: tuple[int, int], family: str | None) -> int:
        """Return `tokens` if this vLLM version exports states on this GPU family, else 0."""
        known = version >= self.since and (not self.families or family in self.families)
        return self.tokens if known else 0


class LinearState(Struct, frozen=True):
    """A request's state in one layer of linear attention: two arrays of fixed size.

    `convolution_values` are inputs of the `convolved` latest tokens, in 2 bytes each;
    `recurrent_values` take `recurrent_bytes` each. In Mamba 2, the convolution also has `groups` of
    `group_values`, replicated if ranks cannot divide them. `export_tokens` is `export.tokens` if
    the serving engine exports states, else 0. `parameters` is the weights of such a layer; 0: as
    many as an attention layer's.

    Source: vLLM 0.33.0, model_executor/layers/mamba/mamba_utils.py (MambaStateShapeCalculator),
    mamba_mixer2.py, gdn/qwen_gdn_linear_attn.py; vllm/models/kimi_k3/nvidia/kda.py.
    """

    convolution_values: int
    recurrent_values: int
    recurrent_bytes: int = 2
    groups: int = 0
    group_values: int = 0
    export: StateExport | None = None
    export_tokens: int = 0
    parameters: int = 0
    convolved: int = 3

    def with_drafts(self, tokens: int) -> Self:
        """Return the state with a convolution that covers `tokens` more tokens, for drafts."""
        values, of_group = (
            each // self.convolved * (self.convolved + tokens)
            for each in (self.convolution_values, self.group_values)
        )
        return replace(
            self,
            convolution_values=values,
            group_values=of_group,
            convolved=self.convolved + tokens,
        )

    def bytes_on_rank(self, tp: int) -> int:
        """Return the bytes of both arrays on each of `tp` ranks, which divide them."""
        groups = self.groups if self.groups % tp == 0 else tp
        convolution = self.convolution_values + groups * self.group_values
        return 2 * (convolution // tp) + self.recurrent_bytes * (self.recurrent_values // tp)


def linear_state(config: ConfigFields) -> LinearState | None:
    """Return the state of a layer without per-token KV; None without such layers of a known kind.

    Known: gated delta nets, KDA, Mamba 1 (Jamba), Mamba 2 and short convolutions (LFM2).
    """
    if all(map(config.has, _DELTA_NET)):
        return _delta_net(config)
    linear = config.get("linear_attn_config")
    if isinstance(linear, Mapping) and linear.get("kda_layers"):
        return _kda(config, linear)
    family = "nemotron_h" if config.family.startswith("nemotron_h") else config.family
    if family not in _FAMILIES:
        return None
    needed, state_of = _FAMILIES[family]
    return state_of(config) if all(map(config.has, needed)) else None


def _delta_net(config: ConfigFields) -> LinearState:
    keys, values, key_size, value_size, kernel = map(config.count, _DELTA_NET)
    wide = config.family.startswith("qwen3_5") and config.get("mamba_ssm_dtype") == "float32"
    return LinearState(
        (2 * keys * key_size + values * value_size) * (kernel - 1),
        values * value_size * key_size,
        4 if wide else 2,
        export=StateExport(64, (0, 33), _FLASH if key_size == 128 else _FLASH[:1]),
        parameters=config.count("hidden_size")
        * (2 * keys * key_size + 3 * values * value_size + 2 * values),
        convolved=kernel - 1,
    )


def _kda(config: ConfigFields, linear: Mapping[str, Any]) -> LinearState:
    inside = ConfigFields(f"{config.where}: linear_attn_config", linear)
    heads, size = inside.count("num_heads"), inside.count("head_dim")
    kernel = inside.count("short_conv_kernel_size")
    flash = inside.has("gate_lower_bound") and size == 128
    hidden, inner = config.count("hidden_size"), heads * size
    return LinearState(
        3 * inner * (kernel - 1),
        inner * size,
        4,
        export=StateExport(16, families=_FLASH) if flash else None,
        parameters=hidden * (4 * inner + heads) + 2 * size * (hidden + inner),
        convolved=kernel - 1,
    )


def _nemotron(config: ConfigFields) -> LinearState:
    heads, size, state, groups, kernel = map(config.count, _NEMOTRON)
    wide = config.get("mamba_ssm_cache_dtype", default="float32") == "float32"
    return _mamba2(config, heads, size, state, groups, kernel, wide=wide)


def _granite(config: ConfigFields) -> LinearState:
    """Return the state of Granite 4's and Falcon-H1's Mamba 2 layers."""
    heads, state, groups, kernel = map(config.count, _GRANITE)
    stated, inner = config.get("mamba_d_head"), config.count_or(_expanded(config), "mamba_d_ssm")
    size = stated if isinstance(stated, int) else inner // heads
    return _mamba2(config, heads, size, state, groups, kernel, wide=False)


def _short_convolution(config: ConfigFields) -> LinearState:
    hidden = config.count("hidden_size")
    width = config.count_or(hidden, "conv_dim")
    convolved = config.count("conv_L_cache") - 1
    return LinearState(width * convolved, 0, parameters=4 * hidden * width, convolved=convolved)


def _mamba2(
    config: ConfigFields, heads: int, size: int, state: int, groups: int, kernel: int, *, wide: bool
) -> LinearState:
    """Return the state of a Mamba 2 layer; recurrent values have 32 bits if `wide`, else 16.

    The layer has `heads` of `size` channels with `state` recurrent values each, `groups` of heads
    that share the vectors into and out of the state, and a convolution over `kernel` tokens.
    """
    hidden, inner = config.count("hidden_size", "n_embd", "d_model"), heads * size
    return LinearState(
        inner * (kernel - 1),
        inner * state,
        4 if wide else 2,
        groups,
        2 * state * (kernel - 1),
        export=StateExport(1),
        export_tokens=1,
        parameters=hidden * (3 * inner + 2 * groups * state + heads),
        convolved=kernel - 1,
    )


def _expanded(config: ConfigFields) -> int:
    return config.count_or(2, "mamba_expand") * config.count("hidden_size", "d_model")


def _mamba1(config: ConfigFields) -> LinearState:
    """Return the state of a Mamba 1 layer, with 16 bits a value."""
    state, kernel = map(config.count, _JAMBA)
    hidden, inner = config.count("hidden_size"), _expanded(config)
    stated = config.get("mamba_dt_rank")
    rank = stated if isinstance(stated, int) else math.ceil(hidden / 16)
    return LinearState(
        inner * (kernel - 1),
        inner * state,
        parameters=inner * (3 * hidden + 2 * rank + 3 * state + kernel),
        convolved=kernel - 1,
    )


def has_mtp(config: ConfigFields) -> bool:
    """Return whether a model has layers for multi-token prediction (MTP).

    Source: vLLM 0.32.0, vllm/config/speculative.py (hf_config_override).
    """
    stated = config.get(*_MTP_LAYERS)
    return bool(stated) if stated is not None else config.family.startswith(_WITH_MTP)


def concern_the_cache(names: Sequence[str]) -> bool:
    """Return whether any field among `names` may change the KV cache, judged by its name."""
    return any(_CACHED.search(name) for name in names)


def check_family(config: ConfigFields) -> None:
    """Raise InputError for Mamba, Bamba and Zamba2 models, with the reason; unknown types pass."""
    reason = _NOT_READ.get(config.family)
    if reason is not None:
        raise InputError(
            f"{config.family}: {reason}",
            where=config.where,
            remedy="models that kvscope reads: docs/hybrid.md",
        )


_FAMILIES: Mapping[str, tuple[tuple[str, ...], Callable[[ConfigFields], LinearState]]] = {
    "nemotron_h": (_NEMOTRON, _nemotron),
    "granitemoehybrid": (_GRANITE, _granite),
    "falcon_h1": (_GRANITE, _granite),
    "jamba": (_JAMBA, _mamba1),
    "lfm2": (("conv_L_cache",), _short_convolution),
}
"""By model type: the config fields that the state needs, and the function that returns it."""
