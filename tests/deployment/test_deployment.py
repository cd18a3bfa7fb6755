"""Deployments, and their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.core.errors import InputError, UsageError
from kvscope.core.records import defaults
from kvscope.deployment.deployment import Deployment, resolve
from kvscope.deployment.file import (
    FILE,
    TARGET,
    WORK,
    DeploymentTable,
    deployment_file,
    read_deployment,
    write_deployment,
)
from kvscope.deployment.models import resolve_model
from kvscope.latency.file import load_profile, write_profile
from kvscope.latency.profile import PRESETS
from kvscope.policies.lru import Lru
from kvscope.tuning.flags import EngineLaunch, flags

FLEET = Deployment(gpu="h100", tp=2, replicas=4, model="llama3-70b", weight_dtype="fp8")
LOG = "GPU KV cache size: 160,016 tokens\n"


def test_derived() -> None:
    """GPU and model are enough; what follows is called derived and has a band."""
    resolved = resolve(FLEET)
    assert resolved.summary == "4 replicas of 2 x h100, llama3-70b in fp8, vllm@0.33"
    assert (resolved.pool.origin, resolved.latency_origin) == ("derived", "derived")
    assert (resolved.latency_low, resolved.latency_high) == (0.65, 1.65)
    assert (resolved.max_num_seqs, resolved.max_num_batched_tokens) == (1024, 8192)
    assert (resolved.gpus, resolved.replicas, resolved.stated.traffic) == (8, 4, "fleet")
    assert resolved.gpu_memory_utilization == 0.92
    assert resolved.switchable
    assert resolved.price_hour is None
    assert resolve(replace(FLEET, gpu_hour=2.5)).price_hour == 20


def test_blocks_of_the_trace() -> None:
    """The pool is counted in the trace's blocks."""
    tokens = resolve(FLEET).pool.tokens
    assert resolve(FLEET, 512).pool.blocks == tokens // 512


def test_measured_wins_over_stated_over_derived(tmp_path: Path) -> None:
    """A log wins over --num-gpu-blocks and the rule, a calibration over the roofline."""
    stated = resolve(replace(FLEET, num_gpu_blocks=1_213, latency="llama2-70b-4xa100"))
    assert (stated.pool.blocks, stated.pool.origin) == (1_212, "stated")
    band = (stated.latency_low, stated.latency_high)
    assert (stated.latency_origin, band) == ("stated", (0.65, 1.65))  # another model's
    own = resolve(replace(FLEET, model="llama2-70b", latency="llama2-70b-4xa100"))
    assert (own.latency_origin, own.latency_low, own.latency_high) == ("stated", 1, 1)
    assert any("is of llama2-70b, not llama3-70b" in note for note in stated.notes)
    log, file = tmp_path / "engine.log", tmp_path / "latency.toml"
    log.write_text(LOG, encoding="utf-8")
    write_profile(file, replace(PRESETS["small-llama-cpu"], name="mine", source="measured"))
    measured = resolve(replace(FLEET, num_gpu_blocks=1_213, engine_log=str(log), latency=str(file)))
    assert (measured.pool.blocks, measured.pool.origin) == (10_000, "engine log")
    assert (measured.latency.name, measured.latency_origin) == ("mine", "measured")


def test_a_pool_and_a_latency_are_enough() -> None:
    """Neither GPU nor model are needed where both figures are named."""
    resolved = resolve(Deployment(num_gpu_blocks=1_213, latency="small-llama-cpu"))
    assert (resolved.gpu, resolved.model) == (None, None)
    assert (resolved.max_num_seqs, resolved.max_num_batched_tokens) == (256, 2048)
    assert resolved.summary == "one engine, vllm@0.33"
    assert resolved.notes == ()


def test_a_preset_of_the_same_model_is_not_warned_of() -> None:
    """The llama2-era presets stay, as named references."""
    same = Deployment(num_gpu_blocks=999, model="llama2-7b", latency="llama2-7b-a100")
    assert resolve(same).notes == ()


@pytest.mark.parametrize(
    ("stated", "holds"),
    [
        ({"gpu": "l4", "model": "llama3.1-8b"}, "does not hold"),
        ({"gpu": "h100", "model": "qwen2.5-32b"}, "does not hold"),
        ({"gpu": "h100", "model": "llama3.1-8b"}, None),
        ({"gpu": "l4", "model": "llama3-8b"}, None),
        ({"gpu": "l4", "model": "llama3-8b", "num_gpu_blocks": 511}, "does not hold"),
        ({"gpu": "l4", "model": "llama3-8b", "num_gpu_blocks": 513}, None),
        ({"gpu": "l4", "model": "llama3.1-8b", "engine": "sglang"}, None),
        ({"gpu": "l40s", "model": "mistral-small-24b", "kv_dtype": "fp8", "tp": 2}, None),
        ({"gpu": "l4", "model": "llama3.1-8b", "max_model_len": 65_536}, "does not hold"),
    ],
)
def test_a_pool_that_holds_less_than_the_longest_request(
    stated: dict[str, Any], holds: str | None
) -> None:
    """vLLM refuses to start then, unless its longest request follows from the pool."""
    where = resolve(Deployment(**stated))
    started = flags(Lru(), EngineLaunch.of(where, None))
    notes = [note for note in where.notes if "--max-model-len" in note]
    assert len(notes) == (holds is not None)
    assert all(f"the pool {holds} a request of" in note for note in notes)
    assert str(started.vllm).endswith(" --max-model-len auto") == (holds is not None)
    assert "max-model-len" not in str(started.sglang) or holds is not None


def test_the_longest_request_is_stated() -> None:
    """Engines start with it; it limits the step by default, and what indexers buffer."""
    stated = Deployment(gpu="l4", model="llama3.1-8b", max_model_len=512, max_num_seqs=2)
    where = resolve(stated)
    assert where.max_num_batched_tokens == 1024
    started = flags(Lru(), EngineLaunch.of(where, None))
    assert "--max-model-len 512" in str(started.vllm)
    assert not where.shortens_requests
    on_sglang = resolve(replace(stated, engine="sglang"))
    started = flags(Lru(), EngineLaunch.of(on_sglang, None))
    assert "--context-length 512" in str(started.sglang)
    glm = resolve_model(str(Path(__file__).parent / "configs" / "glm-5.2"))
    assert glm.up_to(1024).indexers.longest_bytes == 132 * 1024
    with pytest.raises(UsageError, match="takes requests of 131,072 tokens at most, not 200,000"):
        resolve(replace(stated, max_model_len=200_000))
    with pytest.raises(UsageError, match="--max-model-len: needs a model"):
        resolve(Deployment(num_gpu_blocks=100, max_model_len=1024, latency="llama2-7b-a100"))


def test_a_log_says_that_it_started(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("GPU KV cache size: 8,000 tokens", encoding="utf-8")
    where = resolve(Deployment(gpu="l4", model="llama3.1-8b", engine_log=str(log)))
    assert where.pool.tokens == 7_984
    assert not where.shortens_requests


def test_hybrid_models_get_flags_where_their_hits_are_simulated() -> None:
    """On vLLM, of layers that keep equal bytes; else the reason is named."""
    resolved = resolve(Deployment(gpu="h100", model="gpt-oss-20b"))
    assert resolved.switchable
    assert resolved.pool.layer_share == 0.5
    assert resolved.as_cache.pool.blocks == resolved.pool.blocks // 2
    assert resolved.as_cache.as_cache == resolved.as_cache
    assert resolved.pool_bytes == resolved.as_cache.pool_bytes
    sglang = resolve(Deployment(gpu="h100", model="gpt-oss-20b", engine="sglang"))
    assert "layers of several kinds" in str(sglang.not_switchable)
    linear = str(Path(__file__).parent / "configs" / "qwen3.5-27b")
    stated = resolve(Deployment(gpu="h100", model=linear, num_gpu_blocks=1_000))
    assert not stated.switchable
    assert any("a block is one of a group of layers" in note for note in stated.notes)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "--model: the KV pool is unknown; name --gpu and --model, or the engine's"),
        ({"model": "llama3-8b"}, "--gpu: the KV pool is unknown"),
        ({"num_gpu_blocks": 99}, "--latency: the latency is unknown; name the file that"),
        ({"gpu": "h1oo", "model": "llama3-8b"}, "--gpu: no GPU 'h1oo'; did you mean"),
        ({"gpu": "h100", "model": "llama4"}, "--model: no model preset 'llama4'; did you mean"),
        ({"gpu": "h100", "model": "llama3-8b", "tp": 3}, "--tp: llama3-8b has 32 attention heads"),
        ({"gpu": "h100", "weight_dtype": "fp8"}, "--weight-dtype: needs a model"),
        ({"gpu": "h100", "kv_dtype": "fp8"}, "--kv-dtype: needs a model"),
        ({"engine": "tgi"}, "--engine: no engine 'tgi'; write vllm"),
        ({"num_gpu_blocks": 99, "latency": "llama2-7b-a10"}, "--latency: no latency profile"),
        ({"num_gpu_blocks": 1, "latency": "small-llama-cpu"}, "--num-gpu-blocks: 1 leaves no"),
    ],
)
def test_refusals(options: dict[str, Any], line: str) -> None:
    """Each names the option, the value and the remedy."""
    with pytest.raises(UsageError) as refusal:
        resolve(Deployment(**options))
    assert str(refusal.value).startswith(line)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"tp": 0}, "--tp: 0 is below 1; give 1 or more"),
        ({"replicas": -1}, "--replicas: -1 is below 1"),
        ({"max_num_seqs": 0}, "--max-num-seqs: 0 is below 1"),
        ({"gpu_memory_utilization": 1.2}, "--gpu-memory-utilization: 1.2 is no share; try 0.92"),
        ({"gpu_hour": -2.0}, "--gpu-hour: -2.0 is no price; try 2.5"),
    ],
)
def test_impossible_values(options: dict[str, Any], line: str) -> None:
    """Values out of range are refused before anything is looked up."""
    with pytest.raises(UsageError) as refusal:
        Deployment(**options)
    assert str(refusal.value).startswith(line)


def test_a_log_without_a_pool(tmp_path: Path) -> None:
    """The file is named."""
    log = tmp_path / "engine.log"
    log.write_text("hello\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"engine\.log: reports no KV pool"):
        resolve(replace(FLEET, engine_log=str(log)))


@pytest.mark.parametrize(
    ("model", "unit", "refusal"),
    [
        ("gpt-oss-20b", 8, None),
        ("gpt-oss-20b", 24, "24 does not divide the groups' blocks of 16 tokens; take 8"),
        ("llama3-8b", 16, None),
        ("llama3-8b", 8, "8 is not the block size, 16, and the model has one group of layers"),
        ("qwen3-next-80b", 272, None),
        ("qwen3-next-80b", 16, None),
        ("qwen3-next-80b", 24, "24 does not divide the groups' blocks of 272 tokens; take 8"),
    ],
)
def test_prefix_match_unit(model: str, unit: int, refusal: str | None) -> None:
    """Accepted and refused as vLLM does; hits end within blocks of states alone."""
    folder = Path(__file__).parent / "configs" / model
    named = str(folder) if folder.is_dir() else model
    stated = Deployment(gpu="a100", tp=4, model=named, prefix_match_unit=unit)
    if refusal is None:
        resolved = resolve(stated)
        assert resolved.pool == resolve(replace(stated, prefix_match_unit=None)).pool
        if groups := resolved.kv_groups_for(16):
            assert groups.hit_tokens == (unit if groups.state_tokens else 16)
        return
    with pytest.raises(UsageError, match=refusal):
        resolve(stated)


WHOLE = Deployment(
    gpu="h100",
    gpu_memory_gib=48.0,
    gpu_tflops=500.0,
    gpu_fp8_tflops=1000.0,
    gpu_fp4_tflops=2000.0,
    gpu_bandwidth_gb_s=1500.0,
    gpu_link_gb_s=64.0,
    tp=2,
    dp=8,
    replicas=4,
    traffic="replica",
    model="llama3-70b",
    weight_dtype="fp8",
    kv_dtype="fp8",
    gpu_memory_utilization=0.9,
    max_num_seqs=256,
    max_num_batched_tokens=4096,
    max_model_len=8192,
    block_size=32,
    prefix_match_unit=16,
    engine="vllm@0.21",
    speculative="mtp:2@1.5",
    num_gpu_blocks=1213,
    engine_log="engine.log",
    latency="latency.toml",
    gpu_hour=2.5,
)
TEXTS = st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs", "Cc"]))
COUNTS = st.none() | st.integers(1, 2**53)


def test_every_field_is_written_and_read_back(tmp_path: Path) -> None:
    """A value of each field that is not its default."""
    plain = defaults(Deployment)
    for name in Deployment.__struct_fields__:
        assert name not in plain or getattr(WHOLE, name) != plain[name]
    path = tmp_path / FILE
    write_deployment(path, WHOLE, ["A comment."])
    assert read_deployment(path) == WHOLE
    text = path.read_text(encoding="utf-8")
    assert "# A comment." in text
    names = {*Deployment.__struct_fields__}
    assert set(DeploymentTable.__struct_fields__) == names | {"schema", *TARGET, *WORK}


@given(
    st.builds(
        Deployment,
        gpu=st.none() | TEXTS,
        tp=st.integers(1, 64),
        model=st.none() | TEXTS.map("m-".__add__),
        max_num_seqs=COUNTS,
        gpu_memory_utilization=st.none() | st.floats(0.01, 1),
        gpu_hour=st.none() | st.floats(1e-6, 1e6),
        engine=TEXTS,
    )
)
def test_any_deployment_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, deployment: Deployment
) -> None:
    """To the last bit, whatever the texts."""
    path = tmp_path_factory.mktemp("deployment") / FILE
    write_deployment(path, deployment)
    assert read_deployment(path) == deployment


def test_defaults_are_left_out(tmp_path: Path) -> None:
    """A file says what differs."""
    path = tmp_path / FILE
    write_deployment(path, Deployment(gpu="l4"))
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[1:] == ["schema = 1", 'gpu = "l4"']


def test_files_are_beside_it(tmp_path: Path) -> None:
    """A relative path is one from the file's folder, where it exists there."""
    (tmp_path / "latency.toml").touch()
    path = tmp_path / FILE
    write_deployment(path, Deployment(latency="latency.toml", engine_log="elsewhere.log"))
    read = read_deployment(path)
    assert read.latency == str(tmp_path / "latency.toml")
    assert read.engine_log == "elsewhere.log"


def test_a_name_too_long_for_a_file_is_no_file(tmp_path: Path) -> None:
    """Of a model or a profile: it is refused as one that no preset has."""
    name = "x" * 5_000
    path = tmp_path / "kvscope.toml"
    write_deployment(path, Deployment(model=name, latency=name))
    assert read_deployment(path) == Deployment(model=name, latency=name)
    for find in (resolve_model, load_profile):
        with pytest.raises(UsageError, match=r"^no .*'xxx"):
            find(name)


def test_the_file_of_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts where no path is named."""
    monkeypatch.chdir(tmp_path)
    assert deployment_file() is None
    assert deployment_file("other.toml") == Path("other.toml")
    (tmp_path / FILE).touch()
    assert deployment_file() == Path(FILE)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('gpus = "h100"', "gpus: unknown key; did you mean 'gpu'"),
        ("tp = 0", "tp: 0 is not a whole number >= 1"),
        ('tp = "2"', "tp: '2' is not a whole number"),
        ("replicas = 1.5", "replicas: 1.5"),
        ('traffic = "all"', "traffic: 'all' is not known; write one of fleet, replica"),
        ('weight_dtype = "fp7"', "weight_dtype: 'fp7' is not known; write one of bf16, fp8"),
        ("gpu_memory_utilization = 1.2", "gpu_memory_utilization: 1.2 is no share; try 0.92"),
        ("gpu_hour = -1", "gpu_hour: -1.0 is no price"),
        ("gpu_hour = inf", "gpu_hour: inf is not a finite number"),
        ("gpu = 7", "gpu: 7 is not a string"),
        ("gpu = ", "not a TOML file"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path: Path, line: str, message: str) -> None:
    """File, key, value and remedy in one line."""
    path = tmp_path / FILE
    path.write_text(f"schema = 1\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError) as refusal:
        read_deployment(path)
    assert message in str(refusal.value)
    assert str(refusal.value).startswith(f"{path}: ")
    assert "\n" not in str(refusal.value)


def test_other_versions_and_missing_files(tmp_path: Path) -> None:
    """A file of another version is refused, and a missing one is named."""
    path = tmp_path / FILE
    path.write_text("schema = 2\n", encoding="utf-8")
    with pytest.raises(InputError, match="schema: 2, this kvscope reads 1"):
        read_deployment(path)
    with pytest.raises(InputError, match="No such file"):
        read_deployment(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("gpu", "kv_dtype", "model", "block"),
    [
        ("h200", None, "deepseek-v3", 16),
        ("h200", "fp8", "deepseek-v3", 64),
        ("b200", None, "deepseek-v3", 32),
        ("a100", None, "deepseek-v3", 16),
        ("b200", None, "llama3-70b", 16),
    ],
)
def test_kernels_for_latent_vectors_choose_the_block(
    gpu: str, kv_dtype: Any, model: str, block: int
) -> None:
    """The engine's own count is in those blocks, unless it was started with others."""
    stated = Deployment(gpu=gpu, tp=8, model=model, kv_dtype=kv_dtype, num_gpu_blocks=10_001)
    assert resolve(stated).pool.tokens == 10_000 * block
    assert resolve(replace(stated, block_size=128)).pool.tokens == 10_000 * 128
