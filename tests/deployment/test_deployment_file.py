"""kvscope.toml: every field there and back, and refusals with their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.core.errors import InputError, UsageError
from kvscope.core.records import defaults
from kvscope.deployment.deployment import Deployment
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
from kvscope.latency.file import load_profile

WHOLE = Deployment(
    gpu="h100",
    tp=2,
    replicas=4,
    traffic="replica",
    model="llama3-70b",
    weight_dtype="fp8",
    kv_dtype="fp8",
    gpu_memory_utilization=0.9,
    max_num_seqs=256,
    max_num_batched_tokens=4096,
    block_size=32,
    prefix_match_unit=16,
    engine="vllm@0.21",
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
