"""Weights of a model: parameters by part, their bits, and the layers by kind, from a config.json.

A matrix of n inputs and m outputs has n * m parameters; norms and biases are left out (below 0.1 %
of a model). Checked against the weights in published start-up logs: docs/evidence/deployment.md.

Source: vLLM 0.33.0, vllm/model_executor/models; Hugging Face transformers,
the configuration class of each `model_type`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from kvscope.core.errors import InputError
from kvscope.deployment.config_fields import ConfigFields, LinearState, linear_state
from kvscope.deployment.quantization import BITS, UNQUANTIZED_BITS, WeightBits
from kvscope.deployment.rotary import rotary_bytes

_IMAGE_TOKENS = 16_384  # the largest image of Qwen's processors, of 4 patches each
_MXFP4_MULTIPLE = 256  # kernels pad the hidden size of the experts to it

WINDOWED = ("sliding_attention", "chunked_attention")
FULL = ("full_attention", "attention", "deepseek_sparse_attention")
LINEAR = ("linear_attention", "mamba", "conv")
_FEED_FORWARD = ("mlp", "moe")
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}  # of Nemotron-H
# Lists of 0 and 1, a layer each, of MiMo-V2 and of MiniMax.
NUMBERED = {
    "hybrid_layer_pattern": ("full_attention", "sliding_attention"),
    "attn_type_list": ("linear_attention", "full_attention"),
}
# Keys by which configs without `layer_types` say that not every layer is attention.
MIXED = ("attn_layer_period", "full_attention_interval", "hybrid_override_pattern")
# One layer in so many is full attention where the config does not list them.
_FULL_EVERY = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "llama4": 4}
_GEMMA = ("gemma3n", "gemma4")  # whose last layers use the KV of earlier ones
# Feed-forward layers of two matrices, up and down; the others have a gate as well.
_UNGATED = (
    "gpt2",
    "gptj",
    "gpt_neox",
    "gpt_bigcode",
    "opt",
    "falcon",
    "phi",
    "bloom",
    "mpt",
    "nemotron_h",
)
_GATED_VISION = ("pixtral", "gemma4_vision")
_STATE_SPACE = ("attn_layer_period", "hybrid_override_pattern")
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
_EXPERTS_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_top_k",
    "moe_topk",
    "moe_k",
)


class Heads(Struct, frozen=True):
    """The attention heads of a layer: their numbers, and the elements of a key and of a value."""

    queries: int
    kv_heads: int
    key_size: int
    value_size: int

    @property
    def kv_size(self) -> int:
        """Mean of `key_size` and `value_size`, rounded up."""
        return (self.key_size + self.value_size + 1) // 2

    def parameters(self, hidden: int, *, gated: bool = False) -> int:
        """Return the parameters of the four projections, and of an output gate if `gated`."""
        out = self.queries * self.value_size * (2 if gated else 1)
        keys_and_values = self.kv_heads * (self.key_size + self.value_size)
        return hidden * (self.queries * self.key_size + keys_and_values + out)


class LayerKinds(Struct, frozen=True):
    """Layers by what they cache: KV of all tokens, of the last `window` ones, or a fixed state.

    `full`, `windowed` and `linear` count layers with KV or a state of their own, `sharing_full` and
    `sharing_windowed` those that use another layer's KV. `full_first`: the first layer is full
    attention. `chunked`: windows are those of chunked local attention; else they slide.
    `alike`: vLLM's groups follow from the counts, as layers keep the same bytes for a token, except
    for `unlike_heads`, so far as the config shows. `unlike_heads` are those of full and of windowed
    layers, None unless they are known to differ. `state` is a linear layer's, None if unknown.
    """

    full: int
    windowed: int = 0
    linear: int = 0
    window: int | None = None
    full_first: bool = False
    alike: bool = False
    chunked: bool = False
    state: LinearState | None = None
    unlike_heads: tuple[Heads, Heads] | None = None
    sharing_full: int = 0
    sharing_windowed: int = 0

    @property
    def total(self) -> int:
        """Number of layers that keep KV or a state of their own."""
        return self.full + self.windowed + self.linear

    @property
    def attending(self) -> tuple[int, int]:
        """Numbers of full and of windowed layers, including those that use another layer's KV."""
        return self.full + self.sharing_full, self.windowed + self.sharing_windowed

    @property
    def hybrid(self) -> bool:
        """Whether some layers cache windows or states instead of the KV of all tokens."""
        return bool(self.windowed or self.linear)


class VisionEncoder(Struct, frozen=True):
    """A model's image encoder: parameters, and widths in elements, which are 0 without an encoder.

    `hidden_size` is the width of its layers, `width` that of their feed-forward part. A patch of an
    image has `patch_values` values; 0 if the size of the largest image is unknown: kvscope knows
    that of Qwen's processors alone, 16,384 tokens of 2 x 2 patches. `parameters` include those of
    an audio encoder, also without an image encoder.
    """

    parameters: int = 0
    hidden_size: int = 0
    width: int = 0
    patch_values: int = 0

    def peak_bytes(self, batched: int, tp: int) -> float:
        """Return the peak bytes of encoding the largest images in a step of `batched` tokens.

        0 if the largest image is unknown. Each GPU holds the input of attention, its norm, the
        positions and the output whole; `tp` divides the rest: queries, keys and values before and
        after rotation, and the attention result.

        Source: vLLM 0.32.0, vllm/multimodal/encoder_budget.py, and the vision blocks of
        vllm/model_executor/models/qwen3_vl.py and qwen2_5_vl.py.
        """
        if not self.patch_values:
            return 0.0
        images = max(1, batched // _IMAGE_TOKENS)
        attention = 4 * self.hidden_size + 8 * self.hidden_size / tp
        mlp = 3 * self.hidden_size + 2 * self.width / tp
        return 2 * images * 4 * _IMAGE_TOKENS * (max(attention, mlp) + self.patch_values)


class Architecture(Struct, frozen=True):
    """The shape of a decoder: parameters by part, over all layers, and the sizes of attention.

    A layer has `heads` query heads and `kv_heads` KV heads. A query and a key of one head have
    `query_size` elements, a value has `value_size`. `latent_size` is the elements that MLA caches
    per token and layer, None for ordinary heads. `experts` is the number of routed experts in a
    layer, 0 in dense models; a token passes `experts_per_token` of them. `shared_parameters` are of
    experts for all tokens and of projections to the routed experts' width, `router_parameters` also
    of compressors. `layer_embedding_parameters` are of embeddings that each layer looks up (Gemma
    3n and 4). Every tensor-parallel rank holds `replicated_parameters` of attention, and the
    `rotary_bytes` of rotary tables. Widths are in elements, before tensor parallelism.
    """

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    query_size: int
    value_size: int
    vocabulary: int
    tied: bool
    attention_parameters: int
    replicated_parameters: int = 0
    mlp_parameters: int = 0
    mlp_width: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    expert_parameters: int = 0
    shared_parameters: int = 0
    router_parameters: int = 0
    vision: VisionEncoder = VisionEncoder()
    layer_embedding_parameters: int = 0
    latent_size: int | None = None
    rotary_bytes: int = 0

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding; the output head has as many."""
        return self.vocabulary * self.hidden_size

    @property
    def parameters(self) -> int:
        """All parameters; a tied output head is counted once, with the embedding."""
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        body = self.attention_parameters + self.mlp_parameters + self.expert_parameters
        others = self.shared_parameters + self.router_parameters + self.vision.parameters
        return body + others + embeddings + self.layer_embedding_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters multiplied with each prompt token: no embeddings, output head or vision."""
        active_experts = self.expert_parameters * self.experts_per_token // max(1, self.experts)
        dense = self.attention_parameters + self.mlp_parameters + self.shared_parameters
        return dense + active_experts + self.router_parameters

    def drafter_bytes(self, dp: int = 1) -> float:
        """Return a drafter's bytes on all GPUs of one of `dp` ranks, which divide the experts.

        It is an average layer in bf16, and the projection of the model's hidden states before it.

        Source: vLLM 0.33.0, vllm/model_executor/models/deepseek_mtp.py and llama_eagle.py.
        """
        embeddings = self.embedding_parameters * (1 if self.tied else 2) + self.vision.parameters
        layers = self.parameters - embeddings - self.layer_embedding_parameters
        elsewhere = self.expert_parameters * (1 - 1 / dp)
        return 2 * ((layers - elsewhere) / self.layers + 2 * self.hidden_size**2)

    @property
    def moe(self) -> bool:
        """Whether tokens are routed to experts."""
        return self.experts > 0

    def weight_bytes(self, bits: WeightBits, tp: int = 1, dp: int = 1) -> float:
        """Return the weight bytes on the fullest of the `tp` GPUs of a rank.

        Every GPU holds the router and MLA's down-projections, and KV heads are replicated if there
        are fewer than GPUs; `tp` divides the rest. With `dp` above 1, `tp` x `dp` GPUs divide the
        routed experts, into whole ones, and every GPU holds the shared experts.

        Source: vLLM 0.32.0, vllm/model_executor/layers/fused_moe/config.py
        (FusedMoEParallelConfig), expert_map_manager.py (determine_expert_map) and
        vllm/config/parallel.py (use_sequence_parallel_moe; GLM-4.5 divides shared experts).
        """
        experts = bits.experts * self.expert_parameters / 8
        shared = bits.shared * self.shared_parameters
        if dp > 1 and self.moe:
            experts *= math.ceil(self.experts / (tp * dp)) * tp / self.experts
            shared *= tp
        if bits.experts == BITS["mxfp4"] and self.moe:
            padded = math.ceil(self.hidden_size / _MXFP4_MULTIPLE) * _MXFP4_MULTIPLE
            experts *= padded / self.hidden_size
        attention = bits.attention * (self.attention_parameters - self.replicated_parameters) / 8
        if self.latent_size is None and tp > self.kv_heads:
            projections = 2 * self.kv_heads * self.query_size * self.hidden_size * self.layers
            attention += bits.attention * projections * (tp / self.kv_heads - 1) / 8
        mlp = (bits.mlp * self.mlp_parameters + shared) / 8
        head = 0 if self.tied else bits.head * self.embedding_parameters / 8
        embeddings = self.embedding_parameters + self.vision.parameters
        embeddings += self.layer_embedding_parameters
        divided = attention + mlp + experts + head + embeddings * UNQUANTIZED_BITS / 8
        replicated = self.router_parameters * UNQUANTIZED_BITS / 8
        return divided / tp + replicated + bits.attention * self.replicated_parameters / 8

    def bytes_read(self, bits: WeightBits, tokens: float, dp: int = 1) -> float:
        """Return the weight bytes that a rank's GPUs read in a step of `tokens` tokens per rank.

        With k of E experts for a token, n tokens on all ranks read 1 - (1 - k/E)^n of the experts
        on average, divided among `dp` ranks. The output head is read; the embedding is looked up.
        """
        share = 0.0
        if self.moe:
            share = (1 - (1 - self.experts_per_token / self.experts) ** (tokens * dp)) / dp
        body = (
            self.attention_parameters * bits.attention
            + self.mlp_parameters * bits.mlp
            + self.shared_parameters * bits.shared
            + self.expert_parameters * share * bits.experts
        )
        head = UNQUANTIZED_BITS if self.tied else bits.head
        return (body + self.embedding_parameters * head) / 8


def layer_kinds(config: ConfigFields) -> LayerKinds:
    """Return the number of layers of each kind. Raises InputError for contradictory configs."""
    total = config.count("num_hidden_layers", "n_layer", "num_layers")
    if config.has("compress_ratios"):
        return LayerKinds(total)
    window = config.get("sliding_window", "sliding_window_size", "attention_chunk_size")
    window = window if isinstance(window, int) else None
    state = linear_state(config)
    kinds = _listed_layers(config, total, state)
    if kinds is not None:
        sharing = kinds[len(kinds) - _kv_sharing_layers(config) :]
        kinds = kinds[: len(kinds) - len(sharing)]
        total = len(kinds)
        windowed = sum(kind in WINDOWED for kind in kinds)
        linear = sum(kind in LINEAR for kind in kinds)
        full = total - windowed - linear  # kinds that are not known keep all, at most
        chunked = windowed > 0 and windowed == kinds.count("chunked_attention")
        known = not unknown_layers(config) and not (windowed and linear)
        alike = known and windowed in (0, *map(kinds.count, WINDOWED))
        alike = alike and _alike(config, latent=linear > 0)
        return LayerKinds(
            full,
            windowed,
            linear,
            window,
            bool(kinds) and kinds[0] in FULL,
            alike,
            chunked,
            state if linear else None,
            _unlike_heads(config) if windowed else None,
            sum(kind in FULL for kind in sharing),
            sum(kind in WINDOWED for kind in sharing),
        )
    if (mixed := next(filter(config.has, MIXED), None)) is not None:
        pattern = config.get(mixed)
        full = pattern.count("*") if isinstance(pattern, str) else total // config.count(mixed)
        return LayerKinds(full, 0, total - full, alike=_alike(config), state=state)
    if window is None or not config.get("use_sliding_window", default=True):
        return LayerKinds(total)
    every = config.get("sliding_window_pattern") or _FULL_EVERY.get(config.family, 0)
    if every:
        chunked = not config.has("sliding_window")
        full = total // every
        if isinstance(rope := config.get("no_rope_layers"), list) and len(rope) == total:
            full = rope.count(0)  # Llama 4: layers without rotary positions see all tokens
        return LayerKinds(full, total - full, 0, window, alike=_alike(config), chunked=chunked)
    full = min(total, config.count_or(0, "max_window_layers"))
    return LayerKinds(full, total - full, 0, window)


def unknown_layers(config: ConfigFields) -> list[str]:
    """Return the kinds in `layer_types` that kvscope does not know, each once."""
    kinds = config.get("layer_types")
    known = (*FULL, *WINDOWED, *LINEAR, *_FEED_FORWARD)
    listed = map(str, kinds) if isinstance(kinds, list) else ()
    return [kind for kind in dict.fromkeys(listed) if kind not in known]


def usual_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usual config fields equivalent to `layers_block_type` or `block_configs`.

    Nemotron-H: `hybrid_override_pattern` and `num_hidden_layers`, unless the config has the former.
    Nemotron-NAS: `layer_types`, `num_key_value_heads`, `intermediate_size` (a list by layer), and
    None for `block_configs`. Empty for other configs, and if layers differ in KV heads.

    Source: vLLM 0.32.0, vllm/model_executor/models/nemotron_nas.py.
    """
    kinds, letters = config.get("layers_block_type"), {kind: k for k, kind in _PATTERN.items()}
    if isinstance(kinds, list) and config.get("hybrid_override_pattern") is None:
        if config.get("model_type") != "nemotron_h" or not all(kind in letters for kind in kinds):
            return {}
        pattern = "".join(letters[kind] for kind in kinds)
        return {"hybrid_override_pattern": pattern, "num_hidden_layers": len(kinds)}
    blocks, hidden = config.get("block_configs"), config.get("hidden_size")
    try:
        attends = [not block["attention"]["no_op"] for block in blocks or ()]
        groups = {block["attention"]["n_heads_in_group"] for block in blocks or ()} - {None}
        widths = [_nas_width(block["ffn"], hidden) for block in blocks or ()]
        (group,) = groups
        kv_heads = config["num_attention_heads"] // group
    except (KeyError, TypeError, ValueError):
        return {}
    return {
        "block_configs": None,
        "layer_types": ["full_attention" if each else "mlp" for each in attends],
        "num_key_value_heads": kv_heads,
        "intermediate_size": widths,
    }


def _nas_width(block: Mapping[str, Any], hidden: Any) -> int:
    """Return the stated or computed width of a feed-forward layer, 0 if the block has none."""
    if block["no_op"]:
        return 0
    stated = block.get("intermediate_size")
    return stated or -(-int(2 * block["ffn_mult"] * hidden / 3) // 256) * 256


def _named_layers(config: ConfigFields, total: int) -> list[str]:
    """Return each layer's kind in Falcon-H1 (two per layer), Jamba and LFM2; others: empty."""
    if config.family == "falcon_h1":  # attention and Mamba in each layer, side by side
        return ["attention", "mamba"] * total
    if config.family == "jamba":
        period, offset = config.count_or(8, "attn_layer_period"), config.get("attn_layer_offset")
        attends = 4 if offset is None else offset
        return [("mamba", "attention")[at % period == attends] for at in range(total)]
    full = config.get("full_attn_idxs")
    if config.family != "lfm2" or not isinstance(full, list):
        return []
    return [("conv", "attention")[at in full] for at in range(total)]


def _kv_sharing_layers(config: ConfigFields) -> int:
    """Return how many of the last layers use other layers' KV instead of their own."""
    return config.count_or(0, "num_kv_shared_layers") if config.family in _GEMMA else 0


def _unlike_heads(config: ConfigFields) -> tuple[Heads, Heads] | None:
    """Return the heads of full and of windowed layers where a config states both, else None.

    Source: transformers, models/gemma4/configuration_gemma4.py (Gemma4TextConfig); vLLM 0.32.0,
    vllm/model_executor/models/mimo_v2.py and step3p5.py.
    """
    heads = layer_heads(config)
    if config.get("global_head_dim"):
        size, shared = config.count("global_head_dim"), config.get("attention_k_eq_v")
        names = ("num_global_key_value_heads",) if shared else ()
        return Heads(heads.queries, config.count_or(heads.kv_heads, *names), size, size), heads
    if config.has("swa_num_key_value_heads"):
        return heads, Heads(
            config.count_or(heads.queries, "swa_num_attention_heads"),
            config.count("swa_num_key_value_heads"),
            config.count_or(heads.key_size, "swa_head_dim"),
            config.count_or(heads.value_size, "swa_v_head_dim"),
        )
    other = config.get("attention_other_setting")
    if isinstance(other, Mapping) and other.get("attention_type") in WINDOWED:
        return heads, layer_heads(ConfigFields(config.where, other))
    return None


def _listed_layers(config: ConfigFields, total: int, state: LinearState | None) -> list[str] | None:
    """Return the kind of each layer, feed-forward ones excluded, None if the config lists none.

    `state` is that of the linear layers; None (no known kind): `layer_types` and other lists count,
    but neither `hybrid_override_pattern` nor `_named_layers`. Raises InputError for `layer_types`
    of another length than `total`.
    """
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != total:
            what = f"layer_types lists {len(kinds)} layers, num_hidden_layers says {total}"
            raise InputError(what, where=config.where)
        return [kind for kind in kinds if kind not in _FEED_FORWARD]
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and state is not None:
        kinds = [_PATTERN.get(letter, letter) for letter in pattern]
        return [kind for kind in kinds if kind not in _FEED_FORWARD]
    if state is not None and (named := _named_layers(config, total)):
        return named
    for name, two in NUMBERED.items():
        numbers = config.get(name)
        if isinstance(numbers, list) and len(numbers) == total:
            return [two[bool(each)] for each in numbers]
    linear = config.get("linear_attn_config")
    if isinstance(linear, Mapping) and isinstance(layers := linear.get("kda_layers"), list):
        return [("attention", "linear_attention")[at + 1 in layers] for at in range(total)]
    return None


def _alike(config: ConfigFields, *, latent: bool = False) -> bool:
    """Return whether no field says that layers differ in heads or share KV (`LayerKinds.alike`).

    Gemma's fields do not count, since `LayerKinds` has the numbers and the heads of these layers.
    With MLA, True only if `latent`: MLA's layers stand beside layers of linear attention.
    """
    unlike = config.has("num_kv_shared_layers") and config.family not in _GEMMA
    unlike = unlike or (config.has("global_head_dim") and config.family not in _GEMMA)
    return not unlike and (latent or not config.get("kv_lora_rank"))


def architecture(config: ConfigFields) -> Architecture | str:
    """Return the shape that a config.json describes, or a text that names what is missing."""
    state = linear_state(config)
    stated = next(filter(config.has, _STATE_SPACE), None)
    if stated is not None and state is None:
        return f"{stated}: layers of a kind whose weights kvscope cannot count"
    needed = (("hidden_size", "n_embd", "d_model"), ("vocab_size",))
    if missing := [names[0] for names in needed if config.get(*names) is None]:
        return f"{missing[0]} is missing"
    hidden = config.count("hidden_size", "n_embd", "d_model")
    layers = config.count("num_hidden_layers", "n_layer", "num_layers")
    ungated = config.family in _UNGATED
    width = _width(config, 4 * hidden if ungated else 0)
    experts = config.count_or(0, *_EXPERTS)
    if experts == 1 and config.family == "jamba":  # a dense layer as the others
        experts = 0
    expert_width = config.count_or(width, "moe_intermediate_size") if experts else 0
    if not (width or expert_width):
        return "intermediate_size is missing"
    matrices = 2 if ungated else 3
    moe_layers = _moe_layers(config, layers) if experts else 0
    dense_layers = layers if config.get("enable_moe_block") else layers - moe_layers
    if isinstance(pattern := config.get("hybrid_override_pattern"), str):
        dense_layers, moe_layers = pattern.count("-"), pattern.count("E")
        experts = experts if moe_layers else 0
    shared_width = _shared_width(config, expert_width) if experts else 0
    dense_width = config.count_or(width, "intermediate_size_mlp", "dense_intermediate_size")
    if config.family == "granitemoehybrid" and not experts:
        dense_width = config.count_or(width, "shared_intermediate_size")
    each, replicated, sizes = _attention(config, hidden)
    kinds = layer_kinds(config)
    full, windowed = kinds.attending
    attention = (full + windowed + kinds.linear) * each
    if state is not None and state.parameters:
        attention = kinds.full * each + kinds.linear * state.parameters
        replicated = replicated * kinds.full // layers
    if kinds.unlike_heads is not None:
        attention = sum(
            count * heads.parameters(hidden)
            for count, heads in zip((full, windowed), kinds.unlike_heads, strict=True)
        )
    unquantized = moe_layers * hidden * experts
    if config.has("compress_ratios"):
        attention, replicated, of_compression = _compressed_attention(config, hidden)
        unquantized += of_compression
    expert_hidden = config.count_or(hidden, "moe_latent_size", "routed_expert_hidden_size")
    routed = moe_layers * matrices * expert_hidden * expert_width
    shared = moe_layers * matrices * hidden * shared_width
    if expert_hidden != hidden:  # into the width in which experts work, and back
        shared += moe_layers * 2 * hidden * expert_hidden
    return Architecture(
        hidden_size=hidden,
        layers=layers,
        vocabulary=config.count("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", "tie_embedding", default=_tied(config))),
        attention_parameters=attention,
        replicated_parameters=layers * replicated,
        mlp_parameters=dense_layers * matrices * hidden * dense_width,
        mlp_width=dense_width if dense_layers else 0,
        experts=experts,
        experts_per_token=config.count(*_EXPERTS_PER_TOKEN) if experts else 0,
        expert_width=expert_width,
        expert_parameters=routed * experts,
        shared_parameters=shared,
        router_parameters=unquantized,
        vision=_vision(config),
        layer_embedding_parameters=_layer_embeddings(config, layers),
        rotary_bytes=rotary_bytes(config, sizes["query_size"]),
        **sizes,
    )


def _tied(config: ConfigFields) -> bool:
    """Return the default of `tie_word_embeddings`: True for LFM2 alone."""
    return config.family == "lfm2"


def _width(config: ConfigFields, usual: int) -> int:
    """Return the width of dense feed-forward layers; `usual` if the config states none.

    If the config lists a width for each layer, the result is their mean.
    """
    if config.family == "lfm2":
        return _lfm2_width(config)
    stated = config.get("intermediate_size")
    if isinstance(stated, list) and stated and all(isinstance(each, int) for each in stated):
        return sum(stated) // len(stated)
    return config.count_or(usual, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")


def _lfm2_width(config: ConfigFields) -> int:
    """Return the width of LFM2's feed-forward layers.

    Source: vLLM 0.33.0, vllm/model_executor/models/lfm2.py (Lfm2MLP).
    """
    width = config.count("block_ff_dim", "intermediate_size")
    if not config.get("block_auto_adjust_ff_dim", default=True):
        return width
    width = int(config.factor(1.0, "block_ffn_dim_multiplier") * (2 * width // 3))
    multiple = config.count_or(256, "block_multiple_of")
    return -(-width // multiple) * multiple


def _moe_layers(config: ConfigFields, layers: int) -> int:
    listed = config.get("moe_layer_freq", "mlp_layer_types", "moe_layers_enum")
    if isinstance(listed, str):
        return len(listed.split(","))
    if isinstance(listed, list):
        return sum(each not in {0, "dense"} for each in listed)
    if config.family == "jamba":
        period = config.count_or(2, "expert_layer_period")
        offset = config.get("expert_layer_offset", default=1)
        return sum(at % period == offset for at in range(layers))
    step = config.count_or(
        *(1, "interleave_moe_layer_step", "decoder_sparse_step"),
        *("moe_layer_frequency", "moe_layer_freq"),
    )
    dense = config.count_or(0, "first_k_dense_replace", "num_dense_layers")
    listed = config.get("mlp_only_layers", default=())
    return layers // step - dense - (len(listed) if isinstance(listed, list) else 0)


def _shared_width(config: ConfigFields, expert_width: int) -> int:
    stated = config.count_or(
        0,
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
    )
    names = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    shared = config.count_or(0, *names)
    if stated:
        return stated
    return expert_width * (1 if config.family == "llama4" else shared)


def _attention(config: ConfigFields, hidden: int) -> tuple[int, int, dict[str, Any]]:
    """Return a layer's attention parameters, those of them on every rank, and sizes by name.

    The names are fields of `Architecture`: `heads`, `kv_heads`, `query_size`, `value_size`, with
    MLA or compressed attention also `latent_size`. Both numbers are 0 for compressed attention,
    which `_compressed_attention` counts.
    """
    heads = config.count("num_attention_heads", "n_head")
    if config.has("compress_ratios"):
        size = config.count("head_dim")
        return (
            0,
            0,
            dict.fromkeys(("query_size", "value_size", "latent_size"), size)
            | {
                "heads": heads,
                "kv_heads": heads,
            },
        )
    if config.has("kv_lora_rank"):
        latent, rope = config.count("kv_lora_rank"), config.count("qk_rope_head_dim")
        plain, value = config.count("qk_nope_head_dim"), config.count("v_head_dim")
        rank = config.count_or(0, "q_lora_rank")
        queries = heads * (plain + rope)
        down = hidden * (latent + rope + rank)
        up = latent * heads * (plain + value) + (rank or hidden) * queries
        sizes = {"query_size": plain + rope, "value_size": value, "latent_size": latent + rope}
        total = down + up + heads * value * hidden * (2 if config.get("mla_use_output_gate") else 1)
        return total, down, {"heads": heads, "kv_heads": heads, **sizes}
    own, gated = layer_heads(config), bool(config.get("attn_output_gate", "attention_output_gate"))
    sizes = {"kv_heads": own.kv_heads, "query_size": own.key_size, "value_size": own.value_size}
    return own.parameters(hidden, gated=gated), 0, {"heads": heads, **sizes}


def _compressed_attention(config: ConfigFields, hidden: int) -> tuple[int, int, int]:
    """Return three numbers of attention parameters: quantized, on every rank, and unquantized.

    The first is that of all layers; the second is its part on every rank, for a layer on average.
    The third, of all layers, is no part of the first: compressors (16 bits) and the mixing of
    hidden-state streams (32 bits, so counted twice).

    Source: vLLM 0.32.0, vllm/models/deepseek_v4: attention.py, compressor.py, nvidia/model.py.
    """
    layers, ratios = config.count("num_hidden_layers"), config.get("compress_ratios")
    heads, size = config.count("num_attention_heads"), config.count("head_dim")
    rank, streams = config.count("q_lora_rank"), config.count_or(1, "hc_mult")
    down = hidden * (rank + size)
    out = config.count("o_groups") * config.count("o_lora_rank")
    up = rank * heads * size + heads * size * config.count("o_lora_rank") + out * hidden
    key = config.count("index_head_dim")
    index = rank * config.count("index_n_heads") * key
    sparse, dense = (ratios[:layers].count(ratio) for ratio in (4, 128))
    compressors = hidden * (sparse * 4 * (size + key) + dense * 2 * size)
    mixing = 2 * 2 * (2 + streams) * streams * streams * hidden * layers
    replicated = down + index * sparse // layers
    return layers * (down + up) + index * sparse, replicated, compressors + mixing


def layer_heads(config: ConfigFields) -> Heads:
    """Return the heads of a layer that caches keys and values uncompressed."""
    heads, size = config.count("num_attention_heads", "n_head"), head_size(config)
    return Heads(heads, kv_head_count(config), size, config.count_or(size, "v_head_dim"))


def kv_head_count(config: ConfigFields) -> int:
    """Return the number of KV heads."""
    names = (
        *("num_key_value_heads", "num_kv_heads", "num_attention_groups"),
        "multi_query_group_num",
    )
    if any(map(config.has, names)):
        return config.count(*names)
    heads = config.count("num_attention_heads", "n_head")
    return 1 if config.get("multi_query") else heads


def head_size(config: ConfigFields) -> int:
    """Return the elements in a head's key. Raises InputError if it is not a whole number."""
    if stated := config.count_or(0, "head_dim", "attention_head_dim"):
        return stated
    heads = config.count("num_attention_heads", "n_head")
    hidden = config.count("hidden_size", "n_embd", "d_model")
    if hidden % heads:
        what = f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        raise InputError(what, where=config.where, remedy="add head_dim")
    return hidden // heads


def _layer_embeddings(config: ConfigFields, layers: int) -> int:
    """Return the parameters of per-layer embeddings and their projections, 0 without them."""
    vocabulary = config.count("vocab_size_per_layer_input", "vocab_size")
    if not config.get("hidden_size_per_layer_input"):
        return 0
    width = config.count("hidden_size_per_layer_input")
    return layers * width * (vocabulary + 3 * config.count("hidden_size"))


def _vision(config: ConfigFields) -> VisionEncoder:
    """Return the vision encoder; its parameters include Gemma's audio encoder."""
    audio = config.get("audio_config")
    heard = 0
    if isinstance(audio, Mapping):  # conformers: two feed-forward parts, attention, a convolution
        audio_fields = ConfigFields(config.where, audio)
        heard = 24 * audio_fields.count_or(0, "hidden_size") ** 2
        heard *= audio_fields.count_or(0, "num_hidden_layers", "conf_num_hidden_layers")
    stated = config.get("vision_config")
    if not isinstance(stated, Mapping):
        return VisionEncoder(heard)
    vision = ConfigFields(config.where, stated)
    hidden = vision.count_or(0, "hidden_size")
    width = vision.count_or(4 * hidden, "intermediate_size")
    layers = vision.count_or(0, "num_hidden_layers", "depth")
    matrices = 3 if str(stated.get("model_type")) in _GATED_VISION else 2
    patch = 3 * vision.count_or(0, "patch_size") ** 2 * vision.count_or(1, "temporal_patch_size")
    return VisionEncoder(
        heard + layers * hidden * (4 * hidden + matrices * width),
        hidden,
        width,
        patch if vision.has("spatial_merge_size") and vision.has("temporal_patch_size") else 0,
    )
