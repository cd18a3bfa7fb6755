"""The plugin loads into vLLM, and stays out where it does not belong."""

from __future__ import annotations

import logging
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvscope.core.errors import EngineError
from kvscope.vllm_sim.offload_spec import OffloadSpec
from tests.conformance.stepping import both, fitting
from tests.conformance.test_plugin import POLICIES
from tests.conformance.vllm_side import VllmScheduler

pytestmark = pytest.mark.engine


def test_an_unknown_vllm_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The class does not load; the entry point leaves vLLM as it is and says so."""
    import vllm

    from kvscope import vllm_plugin

    monkeypatch.setattr(vllm, "__version__", "0.40.0")
    with pytest.raises(EngineError, match=r"vLLM 0\.40\.0; kvscope's plugin knows 0\.26\.x"):
        _ = vllm_plugin.KvscopeScheduler
    monkeypatch.setenv("KVSCOPE_RECORD", "somewhere")
    with caplog.at_level(logging.WARNING):
        vllm_plugin.register()
    assert "vLLM keeps its own order" in caplog.text


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.26.0", True),
        ("0.31.0", False),
        ("0.32", True),
        ("0.32.0", True),
        ("0.32.1", True),
        ("0.32.0+cpu", True),
        ("0.32.1.post1", True),
        ("0.33.0", True),
        ("v0.33.4", True),
        ("0.33.0rc1", False),
        ("0.33.0.dev", False),
        ("0.32.1.dev4+g0123abc", False),
        ("0.3.2", False),
        ("0.320.0", False),
        ("0.34.0", False),
        ("1.0", False),
        ("dev", False),
    ],
)
def test_releases_of_known_versions_are_known(
    monkeypatch: pytest.MonkeyPatch, version: str, *, known: bool
) -> None:
    """Patches and local builds too; not what precedes a release."""
    import vllm

    from kvscope.vllm_plugin import adapter

    monkeypatch.setattr(vllm, "__version__", version)
    if known:
        adapter.check_version()
        return
    with pytest.raises(EngineError, match=rf"vLLM {re.escape(version)}; .* 0\.32\.x and 0\.33\.x"):
        adapter.check_version()


def test_the_entry_point_takes_the_place_of_vllms_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice is as once; without the environment nothing happens; other classes stay."""
    from vllm.config import SchedulerConfig
    from vllm.v1.core.sched.scheduler import Scheduler

    from kvscope import vllm_plugin

    own = SchedulerConfig.get_scheduler_cls
    monkeypatch.setattr(SchedulerConfig, "get_scheduler_cls", own)
    for name in ("KVSCOPE_RECOMMENDATION", "KVSCOPE_RECORD"):
        monkeypatch.delenv(name, raising=False)
    vllm_plugin.register()
    assert SchedulerConfig.get_scheduler_cls is own
    monkeypatch.setenv("KVSCOPE_RECORD", "somewhere")
    vllm_plugin.register()
    chosen = SchedulerConfig.get_scheduler_cls
    vllm_plugin.register()
    assert SchedulerConfig.get_scheduler_cls is chosen
    config = SchedulerConfig(max_model_len=64, is_encoder_decoder=False, async_scheduling=False)
    assert config.get_scheduler_cls() is vllm_plugin.KvscopeScheduler
    config.async_scheduling = True
    assert config.get_scheduler_cls() is vllm_plugin.KvscopeAsyncScheduler
    config.scheduler_cls = Scheduler
    assert config.get_scheduler_cls() is vllm_plugin.KvscopeScheduler


@pytest.mark.parametrize(
    ("variable", "what", "says"),
    [
        ("KVSCOPE_RECOMMENDATION", "missing.toml", "evicts by LRU; missing.toml: No such file"),
        ("KVSCOPE_RECOMMENDATION", "etlru.toml", "etlru.toml: policy.name: etlru .* cannot run"),
        (
            "KVSCOPE_RECOMMENDATION",
            "soft-ttl.toml",
            "LRU; .* was removed; take trtllm-priority instead",
        ),
        ("KVSCOPE_RECORD", "etlru.toml/folder", "kvscope records nothing: .*Not a directory"),
    ],
)
def test_a_mistake_in_the_settings_costs_the_engine_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    what: str,
    says: str,
) -> None:
    """One line of log, no observer, and vLLM's own queue."""
    from kvscope.vllm_plugin.adapter import observers

    vllm, _ = both(tmp_path, fitting(20, 3, "chats", 16, 120), 16, 120)
    for name in ("etlru", "soft-ttl"):
        table = f'schema = 1\n[policy]\nname = "{name}"\nparams = {{}}\n'
        (tmp_path / f"{name}.toml").write_text(table)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, what)
    caplog.clear()
    with caplog.at_level(logging.ERROR, logger="vllm.kvscope"):
        assert observers(vllm.scheduler) == ()
    (record,) = caplog.records
    assert re.search(says, record.getMessage())
    assert record.exc_info is None
    queue = type(vllm.scheduler.kv_cache_manager.block_pool.free_block_queue)
    assert queue.__module__.startswith("vllm.")


UNREADABLE = [  # of each kind of mistake in tests/vllm_plugin/test_settings.py
    {"policy": {"name": "tlru", "params": {"xi_tokens": math.inf}}},
    {"policy": {"name": "wa", "params": {"refit_s": 10**400}}},
    {"policy": {"name": "tlru", "polices": {"a": [{"b": None}]}}},
    {"record": "a\0b"},
    {"recommendation": "/dev/zero"},
    {"recomendation": "a"},
    None,
    "tlru",
]


@pytest.mark.parametrize("table", UNREADABLE, ids=lambda table: str(table)[:40])
def test_no_configuration_keeps_vllm_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, table: object
) -> None:
    """The whole scheduler is built, one line says what is wrong, and requests are served by LRU."""
    trace = fitting(20, 3, "chats", 16, 120)
    with caplog.at_level(logging.WARNING, logger="vllm.kvscope"):
        vllm = VllmScheduler(tmp_path, trace, 16, 120, plugin=table)
    (record,) = (record for record in caplog.records if record.name == "vllm.kvscope")
    assert record.levelno == logging.ERROR
    assert record.exc_info is None
    assert "kvscope" in record.getMessage()
    assert vllm.scheduler.kvscope == ()
    queue = type(vllm.scheduler.kv_cache_manager.block_pool.free_block_queue)
    assert queue.__module__.startswith("vllm.")
    while vllm.step():
        pass
    assert len(vllm.hit_tokens) == len(trace)


@pytest.mark.parametrize(
    "where",
    ["EvictionController", "EvictionController.attach", "GuardedQueue", "_report_hashes"],
)
def test_a_plugin_that_cannot_start_leaves_vllm_its_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Also where the blocks were linked anew before it failed."""
    from kvscope.vllm_plugin import adapter, eviction_controller

    def broken(*_: object, **__: object) -> object:
        raise FloatingPointError("of all things")

    module = eviction_controller if where == "GuardedQueue" else adapter
    monkeypatch.setattr(f"{module.__name__}.{where}", broken)
    trace = fitting(60, 3, "chats", 16, 120)
    policy = {"name": "tlru", "params": {"xi_tokens": 200}}
    vllm = VllmScheduler(tmp_path, trace, 16, 120, plugin={"policy": policy})
    assert vllm.scheduler.kvscope == ()
    own = VllmScheduler(tmp_path, trace, 16, 120)
    for scheduler in (vllm, own):
        while scheduler.step():
            pass
    assert vllm.hit_tokens == own.hit_tokens
    pools = [one.scheduler.kv_cache_manager.block_pool for one in (vllm, own)]
    orders = [[block.block_id for block in x.free_block_queue.get_all_free_blocks()] for x in pools]
    assert orders[0] == orders[1]
    assert type(pools[0].free_block_queue) is type(pools[1].free_block_queue)


def test_vllm_goes_on_when_the_policy_breaks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Midway in traffic: one line of log, and from then on plain LRU to the end."""
    trace = fitting(300, 3, "chats", 16, 120)
    vllm, _ = both(tmp_path, trace, 16, 120, policy=POLICIES["tlru"])
    for _ in range(400):
        vllm.step()

    def broken(*_: object) -> float:
        raise ZeroDivisionError("of all things")

    vllm.steering.policy.score = broken  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR, logger="vllm.kvscope"):
        while vllm.step():
            pass
    assert vllm.steering.broken
    assert sum(record.levelno >= logging.ERROR for record in caplog.records) <= 1
    free = vllm.scheduler.kv_cache_manager.block_pool.free_block_queue
    assert free.num_free_blocks == len(free.get_all_free_blocks()) == 120
    assert type(free.lru()).__module__.startswith("vllm.")
    assert len(vllm.hit_tokens) == len(trace)


def test_a_reset_of_the_cache_leaves_nothing_behind(tmp_path: Path) -> None:
    """vLLM forgets all hashes at once; so does the plugin, and goes on."""
    trace = fitting(200, 3, "chats", 16, 120)
    vllm, _ = both(tmp_path, trace[:100], 16, 120, policy=POLICIES["tlru"])
    while vllm.step():
        pass
    assert vllm.scheduler.reset_prefix_cache()
    steering = vllm.steering
    assert not steering.free._prefixes._known
    assert list(steering.free.set_aside) == []
    vllm.trace = trace
    while vllm.step():
        pass
    assert not steering.broken
    assert len(vllm.hit_tokens) == len(trace)


def test_vllm_reads_the_arguments_of_a_tier(vllm_reads: Callable[..., Any]) -> None:
    """Its own parser takes them, and the connector is what was meant."""
    text = "vllm@0.33:eviction_policy=arc:offload_prompt_only=false:store_threshold=2"
    made = vllm_reads(*shlex.split(OffloadSpec.parse(text).arguments(2**33)))
    config = made.kv_transfer_config
    assert config is not None
    extra = config.kv_connector_extra_config
    assert (config.kv_connector, extra["cpu_bytes_to_use"]) == ("OffloadingConnector", 2**33)
    assert (extra["offload_prompt_only"], extra["store_threshold"]) == (False, 2)
    assert made.scheduler_cls is None


@pytest.fixture(scope="module")
def vllm_reads() -> Callable[..., Any]:
    """Return what `vllm serve` makes of arguments."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    return lambda *given: parser.parse_args(["--model", "any", *given])
