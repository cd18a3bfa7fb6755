"""`kvscope fit --export`: a file that the plugin reads, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvscope.cli.app import run
from kvscope.core.files import data_folder
from kvscope.core.hits import standard
from kvscope.learning.returns.offline import ReturnsOffline
from kvscope.policies.gittins import Gittins
from kvscope.replay.traffic import traffic
from kvscope.vllm_plugin.settings import read_settings
from tests.golden.samples import sample

CHATS = str(data_folder("sample_traces") / "to-c.jsonl.gz")


def exported(path: Path, *more: str) -> int:
    """Return the exit code of an export to `path`."""
    return run(["fit", CHATS, "--db", ":memory:", "--export", str(path), *more])


def test_the_plugin_reads_what_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Policy, parameters as given or as the trace has them, and the fit to the trace's end."""
    path = tmp_path / "policy.toml"
    assert exported(path, "--param", "gittins.xi_tokens=8k") == 0
    assert f"policy written to {path}" in capsys.readouterr().err
    found = read_settings({}, {"KVSCOPE_RECOMMENDATION": str(path)})
    assert isinstance(found.policy, Gittins)
    assert found.policy.values["xi_tokens"] == 8000
    assert found.policy.values["next_prompt_tokens"] not in {0, 256}
    expected = ReturnsOffline().fit(traffic(sample("to-c"), standard()), found.policy)
    assert found.fitted is not None
    assert np.array_equal(found.fitted.index, expected.index)
    assert (found.fitted.requests, found.fitted.refits) == (2000, False)
    assert [one.name for one in tmp_path.iterdir()] == ["policy.toml"]


def test_standard_output_has_the_policy_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a file, to be piped; no file is called `-`, and no report or document comes along."""
    monkeypatch.chdir(tmp_path)
    tlru = ["--policy", "tlru", "--param", "tlru.xi_tokens=512"]
    path = Path("policy.toml")
    assert exported(path, *tlru) == 0
    assert "Reuse" in capsys.readouterr().out
    assert exported(Path("-"), *tlru, "--html", "fit.html") == 0
    printed = capsys.readouterr()
    assert printed.out == path.read_text()
    assert "policy written" not in printed.err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["fit.html", "policy.toml"]


def test_the_pool_of_a_deployment_is_the_capacity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of the trace; a stated capacity wins over the file of this folder."""
    monkeypatch.chdir(tmp_path)
    stated = "num_gpu_blocks = 2001\nblock_size = 32\nlatency = 'llama2-7b-a100'\n"
    (tmp_path / "kvscope.toml").write_text(f"schema = 1\n{stated}")
    pool, same, more = (tmp_path / name for name in ("pool.toml", "same.toml", "more.toml"))
    assert exported(pool) == 0
    assert "the pool of one engine, vllm@0.33: 4,000 blocks" in capsys.readouterr().err
    assert exported(same, "--capacity-blocks", "4000") == 0
    assert exported(more, "--capacity-blocks", "40") == 0
    assert "the pool of" not in capsys.readouterr().err
    assert pool.read_text() == same.read_text() != more.read_text()
    assert exported(tmp_path / "tlru.toml", "--policy", "tlru") == 0


def test_a_capacity_may_choose_the_classes(tmp_path: Path) -> None:
    """As the simulator's guard would have it at the end of the trace."""
    path = tmp_path / "policy.toml"
    assert exported(path, "--param", "gittins.xi_tokens=0", "--capacity-blocks", "4k") == 0
    found = read_settings({}, {"KVSCOPE_RECOMMENDATION": str(path)})
    assert isinstance(found.policy, Gittins)
    expected = ReturnsOffline().fit(traffic(sample("to-c"), standard()), found.policy, 4000)
    assert found.fitted is not None
    assert found.fitted.class_set == expected.class_set
    assert np.array_equal(found.fitted.index, expected.index)


def test_other_policies_of_the_plugin_need_no_fit(tmp_path: Path) -> None:
    """Their parameters are all there is."""
    path = tmp_path / "policy.toml"
    assert exported(path, "--policy", "tlru", "--param", "tlru.xi_tokens=512") == 0
    found = read_settings({}, {"KVSCOPE_RECOMMENDATION": str(path)})
    assert found.policy is not None
    assert (found.policy.name, found.policy.values["xi_tokens"]) == ("tlru", 512)
    assert found.fitted is None
