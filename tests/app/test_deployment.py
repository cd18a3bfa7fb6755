"""The deployment of a command: options over the file, and whose mistake a refusal names."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kvscope.app.deployment import (
    resolved_deployment,
    resolved_file,
    stated_before,
    stated_deployment,
)
from kvscope.app.options import (
    DeploymentOptions,
)
from kvscope.core.errors import InputError, UsageError
from kvscope.deployment.deployment import Deployment
from kvscope.deployment.file import FILE, write_deployment
from kvscope.usecases.analyze import AnalyzeOptions
from kvscope.usecases.fleet import FleetOptions
from kvscope.usecases.simulate import SimulateOptions
from kvscope.usecases.tune import TuneOptions

STATED = Deployment(gpu="h100", tp=2, model="llama3-8b", replicas=3)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_nothing_stated() -> None:
    """Without a deployment there is none: options of a cache study alone make none."""
    assert stated_deployment(DeploymentOptions()) is None
    study = DeploymentOptions(model="llama3-8b", latency="llama2-7b-a100", max_num_seqs=8)
    assert resolved_deployment(study) is None


def test_options_alone() -> None:
    """A GPU and a model are a deployment of one replica."""
    options = DeploymentOptions(gpu="h100", model="llama3-8b")
    assert stated_deployment(options) == Deployment(gpu="h100", model="llama3-8b")


def test_options_win_over_the_file(folder: Path) -> None:
    """The file of the current directory counts unless another is named; options come first."""
    write_deployment(folder / FILE, STATED)
    assert stated_deployment(DeploymentOptions()) == STATED
    options = DeploymentOptions(tp=1, weight_dtype="fp8")
    deployment = stated_deployment(options)
    assert deployment is not None
    assert (deployment.tp, deployment.replicas, deployment.weight_dtype) == (1, 3, "fp8")
    write_deployment(folder / "other.toml", Deployment(gpu="l4", model="qwen3-0.6b"))
    resolved = resolved_deployment(DeploymentOptions(deployment="other.toml"), 512)
    assert resolved is not None
    assert (resolved.summary, resolved.pool.block_size) == (
        "1 x l4, qwen3-0.6b in bf16, vllm@0.33",
        512,
    )


def test_stated_blocks_win_over_the_log_of_the_file(folder: Path) -> None:
    """An option comes first, whatever its kind."""
    (folder / "engine.log").write_text("# GPU blocks: 5519, # CPU blocks: 0\n", encoding="utf-8")
    file = folder / FILE
    write_deployment(file, Deployment(engine_log="engine.log", latency="small-llama-cpu"))
    assert resolved_file(file).pool.blocks == 5518
    resolved = resolved_deployment(DeploymentOptions(num_gpu_blocks=100))
    assert resolved is not None
    assert resolved.pool.blocks == 99


@pytest.mark.parametrize(
    ("options", "dropped"),
    [
        (DeploymentOptions(gpu="h200"), "num_gpu_blocks, latency, gpu_memory_gib, gpu_hour"),
        (DeploymentOptions(model="qwen3-8b"), "num_gpu_blocks, latency"),
        (DeploymentOptions(tp=4, kv_dtype="fp8"), ""),
        (DeploymentOptions(gpu="h200", gpu_hour=3.5, num_gpu_blocks=50), "latency, gpu_memory_gib"),
        (DeploymentOptions(gpu="nvidia_h100-SXM"), ""),
        (DeploymentOptions(gpu="H100", tp=2, model="llama3-8b", max_num_seqs=8), ""),
    ],
    ids=str,
)
def test_what_was_measured_on_another_engine_is_left_out(
    folder: Path, options: DeploymentOptions, dropped: str
) -> None:
    """Of a file whose GPU or model is another, with a note; and another GPU's price."""
    measured = replace(
        STATED, num_gpu_blocks=900, latency="small-llama-cpu", gpu_memory_gib=60.0, gpu_hour=2.5
    )
    write_deployment(folder / FILE, measured)
    deployment, resolved = stated_deployment(options), resolved_deployment(options)
    assert deployment is not None
    assert resolved is not None
    for name in ("num_gpu_blocks", "latency", "gpu_memory_gib", "gpu_hour"):
        expected = None if name in dropped.split(", ") else getattr(measured, name)
        assert getattr(deployment, name) == (getattr(options, name, None) or expected)
    notes = [note for note in resolved.notes if "left out" in note]
    said = f"kvscope.toml: {dropped} left out: the command names another GPU or model"
    assert notes == ([said] if dropped else [])


def test_whose_mistake_it_is(folder: Path) -> None:
    """A wrong key is the file's, a wrong option the command's."""
    file = folder / FILE
    write_deployment(file, Deployment(gpu="h1oo", model="llama3-8b"))
    with pytest.raises(InputError, match=r"kvscope\.toml: gpu: no GPU 'h1oo'; did you mean"):
        resolved_file(file)
    with pytest.raises(UsageError, match=r"^--gpu: no GPU 'h2oo'"):
        resolved_deployment(DeploymentOptions(gpu="h2oo"))
    write_deployment(file, Deployment(gpu="h100", model="llama3-70b"))
    with pytest.raises(InputError, match=r"kvscope\.toml: gpu: llama3-70b leaves no memory"):
        resolved_file(file)
    with pytest.raises(UsageError, match="--gpu l4: qwen3-32b leaves no memory"):
        resolved_deployment(DeploymentOptions(gpu="l4", model="qwen3-32b"))


BEFORE = {"gpu": "h100", "model": "llama3-8b", "gpu_hour": 2.5, "slo": 0.35, "percentile": 0.99}


def test_what_was_stated_before_holds() -> None:
    """An option that says nothing of GPU, model or pool changes only itself."""
    said = stated_before(TuneOptions(slo=0.2, tp=2), BEFORE)
    options = said.options
    assert (options.gpu, options.model, options.gpu_hour) == ("h100", "llama3-8b", 2.5)
    assert (options.slo, options.percentile, options.tp) == (0.2, 0.99, 2)
    assert said.in_words == "2 x h100, llama3-8b, vllm@0.33, 2.50 per GPU and hour, p99"
    assert said.record == BEFORE | {"slo": 0.2, "tp": 2}
    fleet = stated_before(FleetOptions(), BEFORE | {"replicas": 4})
    assert fleet.options.replicas == tuple(range(1, 17))
    assert fleet.in_words.endswith("SLO p99 TTFT ≤ 350 ms")
    violations = stated_before(TuneOptions(max_violations=0.05), BEFORE)
    assert violations.options.percentile is None


@pytest.mark.parametrize(
    "options",
    [
        TuneOptions(gpu="l4"),
        TuneOptions(model="qwen2-7b"),
        TuneOptions(capacity_blocks=(100,)),
        TuneOptions(deployment="-"),
        SimulateOptions(points=3),
        AnalyzeOptions(hbm=80 << 30, model="qwen2-7b"),
    ],
    ids=str,
)
def test_a_new_deployment_replaces_the_old_one(options: DeploymentOptions) -> None:
    """Nothing of the old one is mixed with it; the SLO stays."""
    said = stated_before(options, BEFORE)
    assert (said.options.gpu, said.options.model) == (options.gpu, options.model)
    assert said.options.gpu_hour is None
    named = options.gpu or options.model
    assert said.record["gpu_hour" if not named else "slo"] == (0.35 if named else 2.5)
    assert ("gpu_hour" in said.record) == (named is None)


def test_sizes_go_with_a_model_that_was_stated_before() -> None:
    """A model without a GPU is that of a cache study; analyze shows capacities beside a pool."""
    study = {"model": "qwen2-7b", "hbm": 80 << 30}
    simulated = stated_before(SimulateOptions(capacity=(20 << 30,)), study)
    assert (simulated.options.model, simulated.in_words) == ("qwen2-7b", "qwen2-7b")
    tuned = stated_before(TuneOptions(slo=0.2), study)
    assert (tuned.options.model, tuned.options.hbm) == ("qwen2-7b", 80 << 30)
    assert tuned.in_words == "qwen2-7b, HBM 80 GiB"
    analyzed = stated_before(AnalyzeOptions(capacity=(20 << 30,)), BEFORE)
    assert analyzed.options.gpu == "h100"


def test_the_file_wins_over_what_was_stated_before(folder: Path) -> None:
    """Its SLO and percentile too, which options replace; what commands stated is kept."""
    file = folder / FILE
    file.write_text('schema = 1\ngpu = "l4"\nmodel = "qwen3-0.6b"\nslo = "1s"\n', encoding="utf-8")
    said = stated_before(TuneOptions(tp=2), BEFORE)
    assert (said.options.gpu, said.options.slo, said.options.percentile) == (None, 1, 0.99)
    assert (said.in_words, said.record) == ("p99", BEFORE)
    assert stated_before(TuneOptions(slo=0.5), BEFORE).options.slo == 0.5
    write_deployment(file, STATED)
    assert stated_before(TuneOptions(), {}).options.slo == 1
    file.write_text('schema = 1\npercentile = "fast"\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"kvscope\.toml: percentile: 'fast'"):
        stated_before(TuneOptions(), {})
    with pytest.raises(InputError, match="percentile"):
        resolved_file(file)


def test_files_stated_before_are_found_from_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their paths are kept whole."""
    (folder / "engine.log").touch()
    said = stated_before(TuneOptions(engine_log="engine.log"), {})
    assert said.record == {"engine_log": str(folder / "engine.log")}


def test_a_recommendation_settles_all() -> None:
    """Nothing is added to what it says."""
    options = SimulateOptions(recommendation="recommendation.toml")
    assert stated_before(options, BEFORE).options == options
