"""Groups of a hybrid model's layers, as vLLM forms them."""

from __future__ import annotations

import json
from math import gcd
from pathlib import Path

import pytest

from kvscope.deployment.architecture import LayerKinds
from kvscope.deployment.engines import parse_engine
from kvscope.deployment.gpus import resolve_gpu
from kvscope.deployment.kv_groups import KvGroups, kv_groups
from kvscope.deployment.models import resolve_model

CONFIGS = Path(__file__).parent / "configs"


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("gpt-oss-20b", "sliding/16/128/12+full/16/0/12@0"),
        ("gemma3-4b", "+".join([*["sliding/16/1024/5"] * 5, "sliding/16/1024/4", "full/16/0/5@0"])),
        (str(CONFIGS / "llama4-scout"), "+".join([*["chunked/16/8192/12"] * 3, "full/16/0/12@0"])),
        ("llama3-8b", None),
        (
            str(CONFIGS / "gemma-4-31b"),
            "+".join([*["sliding/16/1024/10"] * 5, "full/32/0/10@0"]),
        ),
        (str(CONFIGS / "gemma-4-e4b"), "+".join([*["sliding/32/512/4"] * 5, "full/16/0/4@0"])),
        (
            "deepseek-v4-flash",
            "+".join(
                [*["sliding/64/128/0"] * 2, "full/256/0/43", "sliding/4/8/0", "sliding/8/128/0@0"]
            ),
        ),
        (str(CONFIGS / "gemma-3n-e4b"), "+".join([*["sliding/16/512/4"] * 4, "full/16/0/4@0"])),
    ],
)
def test_groups_of_models(model: str, text: str | None) -> None:
    """Each group has as many layers as the rarer kind, the last of a kind fewer."""
    groups = resolve_model(model).kv_groups(16)
    assert (groups and groups.text) == text
    assert groups is None or KvGroups.parse(groups.text) == groups


def test_an_engines_blocks_leave_several_sizes_as_they_are() -> None:
    """Those are the model's; groups of one size have what the engine reports."""
    compressed, windows = (
        resolve_model(name).kv_groups(16) for name in ("deepseek-v4-flash", "gpt-oss-20b")
    )
    assert compressed is not None
    assert windows is not None
    assert compressed.in_blocks_of(256) == compressed
    assert {group.block_tokens for group in windows.in_blocks_of(64).groups} == {64}


def test_nearly_equal_kinds_are_not_split() -> None:
    """12 and 13 layers make two groups, not three."""
    groups = kv_groups(LayerKinds(13, 12, 0, 128, full_first=True, alike=True), 16)
    assert groups is not None
    assert groups.text == "full/16/0/13+sliding/16/128/12@0"


QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "torch_dtype": "bfloat16",
}
"""Of Qwen3-Next-80B-A3B; vLLM logs that it takes attention blocks of 544 tokens on one GPU."""


@pytest.mark.parametrize(("tp", "stated", "tokens"), [(1, 16, 544), (1, 512, 1024), (4, 16, 272)])
def test_blocks_grow_until_a_state_fits(tmp_path: Path, tp: int, stated: int, tokens: int) -> None:
    """Three groups of 12 linear layers and one of full attention, all in blocks of equal bytes."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_NEXT))
    model = resolve_model(str(tmp_path))
    groups = model.kv_groups(16, stated, tp)
    assert groups is not None
    assert groups.text == "+".join([*[f"linear/{tokens}/0/12"] * 3, f"full/{tokens}/0/12@0"])
    assert model.layers_per_block == 12
    assert groups.undivided(16) is None
    assert f"in blocks of {gcd(96, tokens)} tokens" in str(groups.undivided(96))
    assert "start vLLM with --block-size 96" in str(groups.undivided(96))


@pytest.mark.parametrize(
    ("model", "gpu", "tokens", "states", "layers", "exports"),
    [
        ("qwen3-next-80b", None, 544, 3, 12, False),
        ("qwen3-next-80b", "h100", 576, 3, 12, True),
        ("qwen3-next-80b", "a100", 544, 3, 12, False),
        ("nemotron-h-8b", None, 1040, 6, 4, True),
        ("nemotron-3-nano-30b", "h100", 2096, 4, 6, True),
        ("granite-4.0-h-tiny", "l4", 400, 9, 4, True),
        ("kimi-linear-48b", "h100", 1920, 3, 7, False),
        ("jamba-v0.1", "h100", 80, 7, 4, False),
        ("lfm2-1.2b", "l4", 16, 2, 6, False),
    ],
)
def test_states_of_every_kind(
    model: str, gpu: str | None, tokens: int, states: int, layers: int, exports: bool
) -> None:
    """Gated delta nets, Mamba 2 and KDA: blocks on one GPU, groups, and states within a step."""
    shape = resolve_model(str(CONFIGS / model))
    shape = shape.served_by(parse_engine("vllm@0.33"), resolve_gpu(gpu) if gpu else None)
    groups = shape.kv_groups(16)
    assert groups is not None
    assert {group.block_tokens for group in groups.groups} == {tokens}
    assert [group.kind for group in groups.groups] == ["linear"] * states + ["full"]
    assert max(group.layers for group in groups.groups) == layers == shape.layers_per_block
    assert bool(groups.export_tokens) == exports
    assert KvGroups.parse(groups.text) == groups


def test_older_engines_end_steps_where_a_state_is_kept() -> None:
    """Qwen3-Next writes states within a step from vLLM 0.33 on."""
    shape = resolve_model(str(CONFIGS / "qwen3-next-80b"))
    groups = shape.served_by(parse_engine("vllm@0.32"), resolve_gpu("h100")).kv_groups(16)
    assert groups is not None
    assert (groups.state_tokens, groups.export_tokens) == (544, 0)


@pytest.mark.parametrize("model", ["gemma-4-31b", "gemma-4-e4b", "gemma-3n-e4b", "gpt-oss-120b"])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_a_block_holds_its_share_of_all_layers(model: str, tp: int) -> None:
    """By the layers of the groups, and by the bytes of a token."""
    shape = resolve_model(str(CONFIGS / model))
    groups = shape.kv_groups(16, None, tp)
    assert groups is not None
    of_block = shape.by_block.kv_bytes_per_token(tp)
    assert groups.layer_share == pytest.approx(of_block / shape.kv_bytes_per_token(tp))


def test_unlike_layers_have_no_known_groups() -> None:
    """Linear layers, and layers with other heads."""
    assert kv_groups(LayerKinds(10, 0, 30), 16) is None
    assert kv_groups(LayerKinds(10, 30, 0, 512), 16) is None


@pytest.mark.parametrize(("tokens", "interval"), [(0, 0), (5, 16), (40, 32), (float("inf"), None)])
def test_intervals_are_rounded_to_what_vllm_takes(tokens: float, interval: int | None) -> None:
    """Multiples of all blocks, at least one; no limit keeps all windows."""
    groups = resolve_model("gpt-oss-20b").kv_groups(16)
    assert groups is not None
    assert groups.retaining(tokens).retention_tokens == interval
