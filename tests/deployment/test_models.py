"""KV bytes per token: published values, presets, and config.json files of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.core.errors import ExitCode, InputError, UsageError
from kvscope.core.units import format_size
from kvscope.deployment.models import Model, preset_names, resolve_model
from kvscope.deployment.presets import PRESETS

GQA = {
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "hidden_size": 3584,
    "torch_dtype": "bfloat16",
}


def _read(folder: Path, config: object) -> Model:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return resolve_model(str(folder))


def _changed(**fields: Any) -> dict[str, Any]:
    """GQA with some fields replaced; None takes a field away."""
    return {key: value for key, value in {**GQA, **fields}.items() if value is not None}


def test_vicuna() -> None:
    """The published check: 524,288 B per token, 4.88 GiB for 10,000 tokens."""
    model = resolve_model("vicuna-7b")
    assert model.dtype == "fp16"
    assert model.bytes_per_token == 524_288
    assert format_size(model.bytes_for(10_000)) == "4.88 GiB"


def test_qwen2() -> None:
    """The published check: 0.875 MiB per block of 16 tokens."""
    model = resolve_model("qwen2-7b")
    assert model.bytes_for(16) == 0.875 * 2**20
    assert model.blocks_in(2**20, 16) == 1
    assert model.blocks_in(7 * 2**20, 16) == 8


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("llama2-13b", 819_200),
        ("llama3-8b", 131_072),
        ("llama2-7b", 524_288),
        ("llama3-70b", 327_680),
        ("llama3.1-8b", 131_072),
        ("mistral-7b", 131_072),
        ("mixtral-8x7b", 131_072),
        ("qwen2-72b", 327_680),
        ("qwen2.5-14b", 196_608),
        ("qwen2.5-32b", 262_144),
        ("qwen3-8b", 147_456),
        ("qwen3-32b", 262_144),
        ("deepseek-v3", 70_272),
        ("gpt-oss-20b", 49_152),
    ],
)
def test_presets(name: str, bytes_per_token: int) -> None:
    """Presets whose sizes are widely published."""
    assert resolve_model(name).bytes_per_token == bytes_per_token


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_named_and_has_a_source(name: str) -> None:
    """A preset knows its own name and where its numbers come from."""
    model = resolve_model(name)
    assert model.name == name
    assert "/" in model.source


def test_spelling_of_a_preset() -> None:
    """Organisation and capitals do not matter."""
    assert resolve_model("Qwen/Qwen2.5-7B") == resolve_model("qwen2.5-7b")


def test_an_id_of_the_hub_is_looked_up_in_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the hub's own client lays it out; one that is not there says how to get it."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"hf download acme/tiny-1 config\.json"):
        resolve_model("acme/tiny-1")
    folder = tmp_path / "hub" / "models--acme--tiny-1"
    blob = folder / "blobs" / "cafe"
    snapshot = folder / "snapshots" / "0123abc"
    for made in (blob.parent, snapshot, folder / "refs"):
        made.mkdir(parents=True)
    blob.write_text(json.dumps(PRESETS["qwen2.5-7b"][1]))
    (snapshot / "config.json").symlink_to(blob)
    (folder / "refs" / "main").write_text("0123abc")
    model = resolve_model("acme/tiny-1")
    assert model.name == "acme/tiny-1"
    assert model.bytes_per_token == resolve_model("qwen2.5-7b").bytes_per_token


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, None),
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "n_positions": 2048}, 2048),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4}}, 16384),
        (
            {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 4}},
            4096,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "original_max_position_embeddings": 4096,
                "rope_scaling": {"type": "longrope"},
            },
            4096,
        ),
    ],
)
def test_the_longest_request(tmp_path: Path, fields: dict[str, Any], tokens: int | None) -> None:
    """As vLLM takes it from the config; of several numbers the smallest."""
    assert _read(tmp_path, _changed(**fields)).longest_tokens == tokens


def test_unknown_preset_names_the_nearest() -> None:
    """A typo is answered by what was probably meant."""
    with pytest.raises(UsageError, match=r"no model preset 'qwen2-7'; did you mean qwen2-7b"):
        resolve_model("qwen2-7")
    with pytest.raises(UsageError, match="presets: vicuna-7b, "):
        resolve_model("zzzzzz")


def test_dtype_override() -> None:
    """A quantized cache halves the size; the preset itself stays as it is."""
    assert resolve_model("llama3-8b", "fp8").bytes_per_token == 65_536
    assert resolve_model("llama3-8b").bytes_per_token == 131_072


def test_a_preset_wins_over_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a preset's name means does not depend on the current directory."""
    (tmp_path / "llama3-8b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model("llama3-8b").source.endswith("Meta-Llama-3-8B")
    with pytest.raises(InputError):
        resolve_model("./llama3-8b")


def test_gqa_config(tmp_path: Path) -> None:
    """The head size follows from the hidden size; the file may be named, or its folder."""
    model = _read(tmp_path, GQA)
    assert model.bytes_per_token == 57_344
    assert model.notes == ()
    assert model == resolve_model(str(tmp_path / "config.json"))
    assert model.name == tmp_path.name


@pytest.mark.parametrize(
    ("fields", "bytes_per_token"),
    [
        ({"num_key_value_heads": None}, 401_408),  # MHA: every head keeps its own
        ({"num_key_value_heads": None, "multi_query": True}, 14_336),
        ({"head_dim": 64}, 28_672),  # stated, though hidden_size / heads is 128
        ({"torch_dtype": None, "dtype": "float16"}, 57_344),
        ({"torch_dtype": "float32"}, 114_688),
        ({"torch_dtype": "torch.bfloat16"}, 57_344),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 32_256),  # MLA: 28 * 576 * 2
        ({"kv_lora_rank": None, "sliding_window": 4096, "use_sliding_window": False}, 57_344),
    ],
)
def test_config_variants(tmp_path: Path, fields: dict[str, Any], bytes_per_token: int) -> None:
    """Each way in which configs state their attention."""
    assert _read(tmp_path, _changed(**fields)).bytes_per_token == bytes_per_token


def test_nested_config(tmp_path: Path) -> None:
    """A multimodal model's text part counts, the precision may stand outside of it."""
    inner = _changed(torch_dtype=None)
    config = {"text_config": inner, "num_hidden_layers": 99, "torch_dtype": "float16"}
    model = _read(tmp_path, config)
    assert model.bytes_per_token == 57_344
    assert model.dtype == "fp16"


def test_sliding_layers_are_noted(tmp_path: Path) -> None:
    """Windowed layers are counted in full, and the note says so."""
    kinds = ["sliding_attention", "full_attention"] * 14
    model = _read(tmp_path, _changed(layer_types=kinds, sliding_window=128))
    assert model.bytes_per_token == 57_344
    (note,) = model.notes
    assert note.startswith("14 of 28 layers look only 128 tokens back: counted in full")


def test_linear_layers_are_not_counted(tmp_path: Path) -> None:
    """Layers with a state of fixed size keep nothing for each token."""
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 7
    model = _read(tmp_path, _changed(layer_types=kinds))
    assert model.bytes_per_token == 57_344 // 4
    assert "21 of 28 layers keep a state of fixed size" in model.notes[0]


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"sliding_window": 4096}, "layers may look only 4096 tokens back"),
        ({"full_attention_interval": 4}, "all 28 counted as full attention"),
        ({"torch_dtype": None}, "no dtype stated: 2 bytes per value assumed"),
        ({"torch_dtype": "int3"}, "dtype 'int3' is unknown"),
        ({"torch_dtype": "float32"}, "vLLM serves such a model in 16 bits"),
    ],
)
def test_doubts_are_noted(tmp_path: Path, fields: dict[str, Any], note: str) -> None:
    """Where a config leaves the size open, the result says what was assumed."""
    assert note in " ".join(_read(tmp_path, _changed(**fields)).notes)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ([], "not a JSON object"),
        ({}, "num_hidden_layers is missing"),
        (_changed(num_attention_heads=None), "num_attention_heads is missing"),
        (_changed(num_hidden_layers="28"), "num_hidden_layers is '28', not a number from 1"),
        (_changed(hidden_size=10**400), "00, not a number from 1 to 2^31"),
        (_changed(num_key_value_heads=[4, 2]), "num_key_value_heads is"),
        (_changed(num_key_value_heads=0), "num_key_value_heads is 0"),
        (_changed(hidden_size=3585), "not a multiple"),
        (_changed(kv_lora_rank=512), "qk_rope_head_dim is missing"),
        (_changed(layer_types=["full_attention"]), "layer_types lists 1 layers"),
        (_changed(layer_types=["mamba"] * 28), "no layer keeps KV"),
    ],
)
def test_unusable_config(tmp_path: Path, config: object, what: str) -> None:
    """What is missing or contradicts itself is named, with the file."""
    with pytest.raises(InputError) as refusal:
        _read(tmp_path, config)
    assert what in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)
    assert refusal.value.exit_code == ExitCode.INPUT


def test_unreadable_config(tmp_path: Path) -> None:
    """A missing file and a file that is not JSON are input errors, too."""
    with pytest.raises(InputError, match="No such file"):
        resolve_model(str(tmp_path / "config.json"))
    (tmp_path / "config.json").write_bytes(b"\xff{")
    with pytest.raises(InputError, match="not a JSON document"):
        resolve_model(str(tmp_path))
