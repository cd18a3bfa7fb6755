"""`--offload` as text: what it stands for, vLLM's options for it, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.core.hits import standard
from kvscope.core.runs import RunSetting
from kvscope.replay.settings import with_capacity_model
from kvscope.replay.sweep import engine_of
from kvscope.replay.tier_spec import kv_transfer_config, offload_launch, parse_tiers
from kvscope.report.policies import setting_in_words
from kvscope.vllm_plugin.settings import read_settings
from kvscope.vllm_sim.offload_engines import LmCacheSpec, parse_offload
from kvscope.vllm_sim.offload_spec import OffloadSpec
from kvscope.vllm_sim.settings import PrefetchSettings, StorageSettings, Transfers


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


@pytest.mark.parametrize(
    ("policy", "cached_by"), [("tlru", "TLruCachePolicy"), ("gittins", "GittinsCachePolicy")]
)
def test_a_policy_of_the_plugin_takes_its_parameters(policy: str, cached_by: str) -> None:
    """vLLM gets the class, and the plugin the parameters, those of the traffic included."""
    spec = OffloadSpec.parse(f"vllm@0.32:eviction_policy={policy}:xi_tokens=4k")
    assert dict(spec.params) == {"xi_tokens": 4000.0}
    spec = spec.bound(lambda kind, given: kind({**given, "next_prompt_tokens": 331.25}))
    assert OffloadSpec.parse(spec.text) == spec
    extra = spec.kv_transfer_config(1)["kv_connector_extra_config"]
    assert extra["eviction_policy"] == cached_by
    assert extra["cache_policy_module_path"] == "kvscope.vllm_plugin"
    config = spec.additional_config()
    assert config is not None
    settings = read_settings(config, {}).for_chunks(type(spec.policy))  # type: ignore[arg-type]
    assert settings is not None
    assert settings[0].values == spec.policy.values  # type: ignore[union-attr]
    assert settings[0].values["next_prompt_tokens"] == 331.25


def test_a_third_tier_is_files() -> None:
    """vLLM's flags name a folder, and the engine has room for whole chunks in each tier."""
    dram = "dram=500blocks:read=4GB/s:write=2GB/s:latency=1s"
    tiers = f"hbm=100blocks,{dram},ssd=1003blocks:read=1GB/s:write=500MB/s:latency=1ms"
    setting = with_tiers("vllm@0.33:blocks_per_chunk=4", tiers)
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
    setting = with_tiers(f"vllm@0.33{options}", "hbm=100blocks,dram=500blocks")
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
        ("vllm@0.33:eviction_policy=fifo", "take lru, arc, tlru or gittins"),
        ("vllm@0.33:xi_tokens=2k", "no option 'xi_tokens'"),
        ("vllm@0.33:eviction_policy=tlru:ttl_s=60", "no option 'ttl_s'"),
        ("vllm@0.33:eviction_policy=tlru:xi_token=60", "did you mean xi_tokens?"),
        ("vllm@0.33:eviction_policy=tlru:guard=0:guard=1", "twice"),
        ("vllm@0.33:eviction_policy=tlru:guard", "no option"),
        ("vllm@0.33:eviction_policy=gittins:guard=1", "no option 'guard'"),
        ("vllm@0.33:eviction_policy=tlru:xi_tokens=many", "offload xi_tokens"),
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


@pytest.mark.parametrize(
    "text",
    [
        "sglang-hicache",
        "sglang-hicache:write_policy=write_back",
        "sglang-hicache:hicache_storage_prefetch_policy=best_effort:prefetch_threshold=512",
        "lmcache",
        "lmcache:chunk_size=512:save_decode_cache=true:min_retrieve_tokens=64",
        "vllm@0.33:eviction_policy=arc",
    ],
)
def test_every_engine_round_trips(text: str) -> None:
    """What is no default is written; an approximation says what it leaves out."""
    spec = parse_offload(text)
    assert spec.text == text
    assert bool(spec.left_out) == (not text.startswith("vllm"))


def test_hicache_by_its_write_policy() -> None:
    """Outputs too, of any load of 10 tokens; by default stored at once."""
    through, selective, back = (
        parse_offload(f"sglang-hicache:write_policy={policy}").settings(100, block_size=4)
        for policy in ("write_through", "write_through_selective", "write_back")
    )
    assert not through.prompt_only
    assert [each.least_load_blocks for each in (through, selective, back)] == [3, 3, 3]
    assert (through.store_threshold, through.write_back) == (0, False)
    assert (selective.store_threshold, selective.forgets_offers) == (2, True)
    assert back.write_back
    launch = parse_offload("sglang-hicache").launch(64 * 10**9, 2).text
    assert "--hicache-size 32 --hicache-write-policy write_through" in launch


def with_tiers(offload: str, tiers: str) -> RunSetting:
    """Return a setting with blocks of a megabyte."""
    return with_capacity_model(
        RunSetting(standard(), "none", 0.0, 0.0, 0.0, block_bytes=10**6),
        "engine",
        max_num_seqs=None,
        max_num_batched_tokens=None,
        tiers=tiers,
        tier_mode=None,
        capacities_named=False,
        offload=offload,
    )


def test_hicache_prefetches_from_a_third_tier() -> None:
    """Its flags name the policy, and the engine has the threshold in blocks."""
    tiers = "hbm=100blocks,dram=5000blocks,ssd=1000blocks:read=1GB/s:write=500MB/s:latency=1ms"
    options = "hicache_storage_prefetch_policy=wait_complete:prefetch_threshold=100"
    setting = with_tiers(f"sglang-hicache:{options}", tiers)
    engine = engine_of(setting, 100, 16, parse_tiers(tiers, block_bytes=10**6))
    assert engine.offload is not None
    read, write = Transfers(1e-3, 1e-3), Transfers(1e-3, 2e-3)
    prefetch = PrefetchSettings("wait_complete", 7, 1.0, 0.25 / 64)
    assert engine.offload.storage == StorageSettings(1000, read, write, prefetch)
    launch = offload_launch(setting)
    assert launch is not None
    assert launch.text.startswith("SGLang: SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=PATH python")
    policy = "--hicache-storage-backend file --hicache-storage-prefetch-policy wait_complete"
    assert f"--hicache-size 5 --hicache-write-policy write_through {policy}" in launch.text
    assert """--hicache-storage-backend-extra-config '{"prefetch_threshold": 100}'""" in launch.text
    words = " ".join(setting_in_words(setting))
    assert "from 100 tokens on; wait_complete" in words
    assert "add a third tier" not in words
    default = parse_offload("sglang-hicache")
    assert (default.hicache_storage_prefetch_policy, default.prefetch_threshold) == ("timeout", 256)  # type: ignore[attr-defined]


def test_only_a_third_tier_is_prefetched_from() -> None:
    """Without storage, options of prefetches are refused; with two tiers below, LMCache is."""
    with pytest.raises(UsageError, match="only a third tier"):
        with_tiers("sglang-hicache:prefetch_threshold=512", "hbm=100blocks,dram=500blocks")
    with pytest.raises(UsageError, match="one tier below it"):
        with_tiers("lmcache", "hbm=100blocks,dram=500blocks,ssd=900blocks")


def test_lmcache_has_chunks_of_tokens() -> None:
    """256 tokens are 16 blocks of 16, and no chunk of blocks of 512 tokens."""
    spec = LmCacheSpec()
    assert parse_offload("lmcache") == spec
    settings = spec.settings(160, block_size=16)
    assert (settings.capacity_chunks, settings.blocks_per_chunk) == (10, 16)
    assert settings.prompt_only
    assert settings.least_load_blocks == 1
    assert "LMCACHE_MAX_LOCAL_CPU_SIZE=16 " in spec.launch(2**35, 2).text
    assert spec.on_blocks(16) == spec
    assert [spec.on_blocks(size).chunk_size for size in (100, 512)] == [200, 512]
    disk = LmCacheSpec().launch(2**40, disk=True).text
    assert (
        "LMCACHE_LOCAL_CPU=False LMCACHE_LOCAL_DISK=PATH LMCACHE_MAX_LOCAL_DISK_SIZE=1024" in disk
    )
    with pytest.raises(UsageError, match="lmcache:chunk_size=512"):
        spec.settings(160, block_size=512)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("sglang-hicache:write_policy=back", "write_through_selective, write_back"),
        ("sglang-hicache:prefetch_threshold=some", "prefetch_threshold"),
        ("sglang-hicache:prefetch_timeout_base=2", "default of 1 s"),
        ("sglang-hicache:hicache_storage_prefetch_policy=wait", "best_effort, wait_complete"),
        ("sglang-hicache:load_back_threshold=1", "fixed at 10 tokens"),
        ("lmcache:cache_policy=LFU", "only LRU"),
        ("lmcache:save_decode_cache=1", "take true or false"),
    ],
)
def test_refuses_what_is_not_simulated(text: str, what: str) -> None:
    """An option of the engine that the simulation has not is refused with the reason."""
    with pytest.raises(UsageError) as error:
        parse_offload(text)
    assert what in str(error.value)
