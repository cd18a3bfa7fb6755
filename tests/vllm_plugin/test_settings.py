"""How the plugin is told what to do, and what it refuses."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope import vllm_plugin
from kvscope.core.errors import InputError, KvscopeError, UsageError
from kvscope.vllm_plugin.settings import PluginSettings, read_settings

FILE = """
schema = 1
[policy]
name = "tlru"
leaves = "leaf"
params = { xi_tokens = 1130.0, next_prompt_tokens = 256.0, xi_percentile = 0.0, ttl_s = inf }
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "recommendation.toml"
    path.write_text(FILE)
    return path


def test_the_environment_names_a_recommendation(written: Path) -> None:
    """The policy with the very parameters that the file has."""
    found = read_settings({}, {"KVSCOPE_RECOMMENDATION": str(written), "KVSCOPE_RECORD": "to"})
    assert found.policy is not None
    assert (found.policy.name, found.policy.values["xi_tokens"]) == ("tlru", 1130.0)
    assert found.record == Path("to")


def test_a_recommendation_that_no_engine_can_follow(written: Path) -> None:
    """The line names the file, the policy, and those that can be run."""
    said = written.read_text().replace('"tlru"', '"etlru"')
    written.write_text(re.sub("params = .*", "params = { xi_tokens = 300.0 }", said))
    words = rf"^{written}: policy.name: etlru .*; take one of lru,threshold-lru,"
    with pytest.raises(UsageError, match=words):
        read_settings({}, {"KVSCOPE_RECOMMENDATION": str(written)})


STUDY = 'verdict = "switch"\n' + FILE
FLAGS = '[flags]\nvllm = "--scheduler-cls kvscope.vllm_plugin.KvscopeScheduler"\n'
DEPLOYED = '[deployment]\nengine = "vllm@0.33"\n'


def test_a_cache_study_runs_in_an_engine_only_where_that_is_stated(written: Path) -> None:
    """Its advice was not checked for an engine; the line names both ways out."""
    written.write_text(STUDY)
    environment = {"KVSCOPE_RECOMMENDATION": str(written)}
    words = r"a cache study, .*; tune for the deployment \(.*\), or set KVSCOPE_CACHE_STUDY=1$"
    with pytest.raises(InputError, match=words):
        read_settings({}, environment)
    for stated in (
        read_settings({}, environment | {"KVSCOPE_CACHE_STUDY": "1"}),
        read_settings({"kvscope": {"cache_study": True}}, environment),
    ):
        assert stated.policy is not None


@pytest.mark.parametrize("table", [FLAGS, DEPLOYED])
def test_what_was_tuned_for_an_engine_runs(written: Path, table: str) -> None:
    """With flags, as all files of earlier versions, or written by force for a deployment."""
    written.write_text(STUDY + table)
    assert read_settings({}, {"KVSCOPE_RECOMMENDATION": str(written)}).policy is not None


def test_the_configuration_goes_before_the_environment(written: Path) -> None:
    """A file or a policy in `--additional-config`."""
    elsewhere = {"KVSCOPE_RECOMMENDATION": "missing.toml"}
    found = read_settings({"kvscope": {"recommendation": str(written)}}, elsewhere)
    assert found.policy is not None
    told = {"kvscope": {"policy": {"name": "ttl", "params": {"ttl_s": 9}}, "record": "to"}}
    found = read_settings(told, elsewhere)
    assert found.policy is not None
    assert (found.policy.name, found.policy.values) == ("ttl", {"ttl_s": 9})
    assert found.record == Path("to")


def test_a_replay_has_its_own_clock() -> None:
    """What requests tell, and no other."""
    assert read_settings({}, {"KVSCOPE_CLOCK": "requests"}).trace_clock
    with pytest.raises(UsageError, match="'sun'"):
        read_settings({}, {"KVSCOPE_CLOCK": "sun"})


def test_nothing_is_asked_for() -> None:
    """Neither there nor there."""
    assert read_settings(None, {}) == read_settings({"other": 1}, {}) == PluginSettings()


@pytest.mark.parametrize(
    ("told", "error", "says"),
    [
        ({"policies": "tlru"}, UsageError, "unknown key"),
        (["tlru"], UsageError, "is no table"),
        ({"policy": {"name": "tlrru"}}, InputError, "did you mean tlru"),
        ({"policy": {"name": "tlru", "params": {"xi": 3}}}, InputError, "no parameter 'xi'"),
        (
            {"policy": {"name": "tlru-learned"}},
            UsageError,
            r"policy.name: tlru-learned needs a fitted table, and there is none; take the file",
        ),
        ({"recommendation": "missing.toml"}, InputError, "No such file"),
        (
            {"policy": {"name": "etlru"}},
            UsageError,
            r"^--additional-config kvscope: policy.name: etlru .* cannot run it; take one of lru,",
        ),
    ],
)
def test_mistakes_are_told(told: object, error: type[KvscopeError], says: str) -> None:
    """In one line, with the remedy."""
    with pytest.raises(error, match=says):
        read_settings({"kvscope": told}, {})


def test_the_plugin_is_light() -> None:
    """Nothing of it loads what an inference process should not carry."""
    code = """
import sys, pkgutil, importlib, kvscope.vllm_plugin as engine
for one in pkgutil.iter_modules(engine.__path__):
    if one.name != "adapter":
        importlib.import_module(f"kvscope.vllm_plugin.{one.name}")
heavy = {"polars", "duckdb", "numba", "streamlit", "scipy", "plotly", "torch", "vllm", "typer"}
print(sorted(heavy & set(sys.modules)))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_the_earlier_path_of_the_plugin_still_leads_to_it() -> None:
    """Launch scripts name `kvscope.engine.vllm_plugin.KvscopeScheduler`."""
    earlier = importlib.import_module("kvscope.engine.vllm_plugin")
    assert earlier.register is vllm_plugin.register
    with pytest.raises(AttributeError):
        _ = earlier.NoSuchScheduler
    if importlib.util.find_spec("vllm"):
        assert earlier.KvscopeScheduler is vllm_plugin.KvscopeScheduler
