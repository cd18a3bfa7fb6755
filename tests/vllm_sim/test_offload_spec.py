"""`--offload` as text: what it stands for, vLLM's options for it, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.core.hits import standard
from kvscope.core.runs import CapacityModel, RunSetting
from kvscope.replay.settings import engine_setting, with_tiers
from kvscope.replay.sweep import engine_of
from kvscope.replay.tier_spec import kv_transfer_config, offload_of, parse_tiers
from kvscope.report.policies import setting_in_words
from kvscope.vllm_sim.offload_spec import OffloadSpec
from kvscope.vllm_sim.settings import StorageSettings, Transfers


def test_defaults_are_those_of_vllm() -> None:
    """Nothing but the version: prompts, LRU, a block a chunk, no threshold."""
    spec = OffloadSpec.parse("vllm@0.33")
    assert spec == OffloadSpec("0.33", "lru", 1, True, 0, 64_000)
    assert spec.kv_transfer_config(2**30) == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 2**30},
    }


@pytest.mark.parametrize(
    "text",
    [
        "vllm@0.32",
        "vllm@0.33:eviction_policy=arc:blocks_per_chunk=4",
        "vllm@0.33:offload_prompt_only=false:store_threshold=2",
    ],
)
def test_text_round_trips(text: str) -> None:
    """A spec is written as it was read, and its options are those that vLLM gets."""
    spec = OffloadSpec.parse(text)
    assert spec.text == text
    extra = spec.kv_transfer_config(1)["kv_connector_extra_config"]
    assert len(extra) == 1 + text.count("=")


def test_a_third_tier_is_files() -> None:
    """vLLM's flags name a folder, and the engine has room for whole chunks in each tier."""
    dram = "dram=500blocks:read=4GB/s:write=2GB/s:latency=1s"
    tiers = f"hbm=100blocks,{dram},ssd=1003blocks:read=1GB/s:write=500MB/s:latency=1ms"
    setting = offloading("vllm@0.33:blocks_per_chunk=4", tiers)
    engine = engine_of(setting, 100, 16, parse_tiers(tiers, block_bytes=10**6))
    assert engine.offload is not None
    assert engine.offload.capacity_chunks == 125
    assert engine.offload.load == Transfers(1.0, 1e-3)
    assert engine.offload.store == Transfers(1.0, 2e-3)
    read, write = Transfers(1e-3, 4e-3), Transfers(1e-3, 8e-3)
    assert engine.offload.storage == StorageSettings(250, read, write)
    config = kv_transfer_config(setting)
    assert config is not None
    extra = config["kv_connector_extra_config"]
    assert extra["cpu_bytes_to_use"] == 500 * 10**6
    assert extra["spec_name"] == "TieringOffloadingSpec"
    assert extra["secondary_tiers"] == [{"type": "fs", "root_dir": "PATH"}]
    assert "vLLM deletes none" in setting_in_words(setting)[0]


@pytest.mark.parametrize(
    ("options", "groups", "warned"),
    [
        (":offload_prompt_only=false", "full/32/0/12+sliding/16/128/12@0", True),
        (":offload_prompt_only=false", "full/16/0/12+sliding/16/128/12@0", False),
        (":offload_prompt_only=false", "full/16/0/12+sliding/32/128/12@0", False),
        ("", "full/32/0/12+sliding/16/128/12@0", False),
    ],
)
def test_wrong_hits_of_vllm_are_warned_of(options: str, groups: str, warned: bool) -> None:
    """Where outputs are stored and windows have smaller blocks than full attention."""
    setting = offloading(f"vllm@0.33{options}", "hbm=100blocks,dram=500blocks")
    words = " ".join(setting_in_words(replace(setting, kv_groups=groups)))
    assert ("may then load blocks of another request" in words) == warned


def test_size_is_in_chunks() -> None:
    """A chunk of four blocks has a quarter of the places."""
    assert OffloadSpec("0.33", blocks_per_chunk=4).settings(1003).capacity_chunks == 250


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("vllm", "not modelled"),
        ("vllm@0.31", "take vllm@0.32 or vllm@0.33"),
        ("vllm@0.33:eviction=arc", "did you mean eviction_policy?"),
        ("vllm@0.33:eviction_policy=fifo", "take lru or arc"),
        ("vllm@0.33:xi_tokens=2k", "no option 'xi_tokens'"),
        ("vllm@0.33:offload_prompt_only=1", "take true or false"),
        ("vllm@0.33:store_threshold", "no option"),
        ("vllm@0.33:store_threshold=2:store_threshold=3", "twice"),
        ("vllm@0.33:blocks_per_chunk=0", "give 1 or more"),
    ],
)
def test_refuses(text: str, what: str) -> None:
    """Each mistake names the option and a remedy."""
    with pytest.raises(UsageError, match="offload") as error:
        OffloadSpec.parse(text)
    assert what in str(error.value)


def offloading(offload: str, tiers: str) -> RunSetting:
    """Return a setting with blocks of a megabyte."""
    setting = engine_setting(RunSetting(standard(), "none", 0.0, 0.0, 0.0, block_bytes=10**6))
    return with_tiers(setting, tiers, offload)


@pytest.mark.parametrize(
    ("capacity_model", "mode"),
    [
        ("engine", "lmcache:chunk_size=512"),
        ("engine", "vllm@0.33:eviction_policy=tlru"),
        ("cache", "exclusive"),
        ("cache", "write-through"),
    ],
)
def test_a_stored_run_of_an_earlier_version_can_be_listed(
    capacity_model: CapacityModel, mode: str
) -> None:
    """What only earlier versions simulated has no flags."""
    setting = offloading("vllm@0.33", "hbm=9blocks,dram=9blocks:ttl=10m")
    setting = replace(setting, capacity_model=capacity_model, tier_mode=mode)
    assert offload_of(setting) is None
    assert kv_transfer_config(setting) is None
    words = "hbm=9blocks,dram=9blocks:ttl=10m, {mode}, as earlier kvscopes replayed"
    assert (words.format(mode=mode) in setting_in_words(setting)[0]) == (capacity_model == "cache")


def test_what_vllm_refuses_with_files_is_refused() -> None:
    """By the option's place."""
    with pytest.raises(UsageError, match="store_threshold=2: vLLM refuses"):
        OffloadSpec.parse("vllm@0.33:store_threshold=2", files=True)
