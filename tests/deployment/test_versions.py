"""One table says what changed between versions; a version that was not compared is named."""

from __future__ import annotations

import pytest

from kvscope.core.errors import UsageError
from kvscope.deployment.deployment import Deployment, resolve
from kvscope.deployment.engines import parse_engine
from kvscope.deployment.gpus import resolve_gpu
from kvscope.deployment.versions import CHANGES, COMPARED, PLUGIN
from kvscope.policies.lru_retention import LruRetention
from kvscope.policies.tlru import TLru
from kvscope.tuning.flags import EngineLaunch, flags
from kvscope.vllm_sim.settings import EngineSettings

GPT_OSS = Deployment(gpu="h100", model="gpt-oss-20b")


def resolved(engine: str, **more: object) -> tuple[int | None, tuple[str, ...]]:
    """Return the retention of gpt-oss in an engine, and what is said of it."""
    where = resolve(Deployment(gpu="h100", model="gpt-oss-20b", engine=engine, **more))  # type: ignore[arg-type]
    groups = where.kv_groups_for(16)
    assert groups is not None
    return groups.retention_tokens, where.notes


def test_every_row_has_a_source_and_is_of_a_known_version() -> None:
    """None lies in the future of the versions that were compared."""
    assert all(row.source and row.since <= max(COMPARED) for row in CHANGES)
    assert set(PLUGIN) <= set(COMPARED)


def test_windows_are_all_kept_before_0_29() -> None:
    """Which is what the engine does, and what its flags cannot change."""
    kept, notes = resolved("vllm@0.25")
    assert kept is None
    assert any("keeps all windows" in note and "RETENTION_INTERVAL=0" in note for note in notes)
    assert any("no setting keeps less" in note for note in resolved("vllm@0.22")[1])
    kept, notes = resolved("vllm@0.33")
    assert kept == 0
    assert not any("keeps all windows" in note for note in notes)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("0.23", "vLLM 0.23 was not compared with kvscope, 0.22 and 0.25 were"),
        ("0.19", "simulated as 0.20, the oldest"),
        ("0.35", "vLLM 0.35 is newer than this kvscope, and is simulated as 0.33"),
        ("0.28", "plugin does not load into vLLM 0.28, but into 0.26, 0.32, 0.33"),
    ],
)
def test_what_was_not_compared_is_said_first(version: str, says: str) -> None:
    """Before all else that is uncertain of the deployment."""
    assert (
        says
        in resolve(Deployment(gpu="h100", model="llama3-8b", engine=f"vllm@{version}")).notes[0]
    )


def test_a_version_that_was_compared_has_no_warning() -> None:
    """Nor has the SGLang whose prefix tree is simulated."""
    for engine in ("vllm@0.33", "vllm@0.32", "sglang"):
        assert parse_engine(engine).doubts(None) == ()
        assert parse_engine(engine).left_out == ()
    (doubt,) = parse_engine("sglang@0.4").doubts(None)
    assert doubt.startswith("SGLang 0.4 was not compared with kvscope, and is simulated as 0.5")


def test_the_simulated_engine_is_of_the_version() -> None:
    """Blocks without a hash went to the end of the queue before 0.24."""
    newest, older = (
        EngineSettings(8).in_version(parse_engine(f"vllm@{v}")) for v in ("0.33", "0.22")
    )
    assert newest == EngineSettings(8)
    assert older.unhashed_last
    assert older.reserve_full_prompt
    assert not EngineSettings(8).in_version(parse_engine("vllm@0.18")).reserve_full_prompt
    assert parse_engine("vllm@0.33").simulated_as == ""
    assert parse_engine("vllm@0.22").simulated_as == "vllm@0.22"


def test_no_flag_that_a_version_lacks() -> None:
    """The retention interval has one since 0.29; the plugin loads into three versions."""
    tlru, retention = TLru({"xi_tokens": 2048, "next_prompt_tokens": 99}), LruRetention()
    older, newer = (EngineLaunch(engine=parse_engine(f"vllm@{v}")) for v in ("0.28", "0.33"))
    assert flags(tlru, older).vllm is None
    assert flags(retention, older).vllm is None
    assert flags(tlru, newer).vllm
    assert flags(retention, newer).vllm
    with pytest.raises(UsageError, match=r"needs vLLM 0\.26"):
        resolved("vllm@0.25", prefix_match_unit=16)


def test_large_batches_are_of_large_gpus_from_0_28_on() -> None:
    """By default: 16,384 tokens a step."""
    gpu = resolve_gpu("b200")
    assert parse_engine("vllm@0.28").default_batched_tokens(gpu) == 16_384
    assert parse_engine("vllm@0.27").default_batched_tokens(gpu) == 8_192
