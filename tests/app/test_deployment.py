"""The deployment of a command: options over the file, and whose mistake a refusal names."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvscope.app.deployment import resolved_deployment, resolved_file, stated_deployment
from kvscope.app.options import DeploymentOptions
from kvscope.core.errors import InputError, UsageError
from kvscope.deployment.deployment import Deployment
from kvscope.deployment.file import FILE, write_deployment

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
