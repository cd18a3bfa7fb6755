"""How the plugin is told what to do, and what it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.errors import InputError, KvscopeError, UsageError
from kvscope.learning.policy_file import KEYS
from kvscope.learning.returns import file as returns
from kvscope.tuning.file import RecommendationTable
from kvscope.vllm_plugin.settings import PluginSettings, SettingsTable, read_settings
from tests.vllm_plugin.alone import Alone
from tests.vllm_plugin.fakes import FakeRequest

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
    with pytest.raises(InputError, match="'sun'"):
        read_settings({}, {"KVSCOPE_CLOCK": "sun"})


def test_nothing_is_asked_for() -> None:
    """Neither there nor there."""
    assert read_settings(None, {}) == read_settings({"other": 1}, {}) == PluginSettings()


@pytest.mark.parametrize(
    ("told", "error", "says"),
    [
        ({"policies": "tlru"}, InputError, "kvscope: policies: unknown key; did you mean 'policy'"),
        (["tlru"], InputError, r"\['tlru'\] is not a table; keys: policy, recommendation, record"),
        (None, InputError, "None is not a table"),
        ({"record": 5}, InputError, "kvscope: record: 5 is not a string; keys: policy, recomm"),
        (
            {"recommendation": ["a"]},
            InputError,
            r"kvscope: recommendation: \['a'\] is not a string",
        ),
        ({"policy": "tlru"}, InputError, "kvscope: policy: 'tlru' is not a table"),
        ({"policy": None}, InputError, "kvscope: policy: None is not a table"),
        ({"cache_study": "yes"}, InputError, "cache_study: 'yes' is not true or false"),
        ({"clock": "sun"}, InputError, "kvscope: clock: 'sun' is not known; write one of"),
        ({"\ud800": 1}, InputError, r"kvscope: not Unicode: '\\ud800'; keys: policy"),
        ({"policy": {"name": "tlru", "kind": 1}}, InputError, "policy.kind: unknown key"),
        ({"recommendation": "/dev/zero"}, InputError, "/dev/zero: not a file"),
        ({"recommendation": "."}, InputError, "^.: not a file"),
        ({"recommendation": "a\0b"}, InputError, "null byte"),
        ({"policy": {"name": "tlrru"}}, InputError, "did you mean tlru"),
        ({"policy": {"name": "tlru", "params": {"xi": 3}}}, InputError, "no parameter 'xi'"),
        (
            {"policy": {"name": "soft-ttl"}},
            InputError,
            r"policy.name: the policy soft-ttl was removed; take trtllm-priority instead$",
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


@pytest.mark.parametrize("name", ["xi_tokens", "next_prompt_tokens", "ttl_s", "xi_percentile"])
@pytest.mark.parametrize("value", ["nan", "-inf", "-5.0", "true", '"2048"', "[1]", "2024-01-01"])
def test_no_number_out_of_bounds_is_taken(written: Path, name: str, value: str) -> None:
    """The line names the file, the key and the value."""
    written.write_text(re.sub(rf"{name} = [\w.]+", f"{name} = {value}", written.read_text()))
    shown = value.replace('"', "'").removesuffix(".0")
    words = rf"^{written}: policy.*{name}: .*{re.escape(shown)}"
    with pytest.raises(InputError, match=words):
        read_settings({}, {"KVSCOPE_RECOMMENDATION": str(written)})


@pytest.mark.parametrize("name", ["xi_tokens", "next_prompt_tokens"])
def test_no_number_of_tokens_is_infinite(written: Path, name: str) -> None:
    """Where a block would lie cannot be computed from it."""
    written.write_text(re.sub(rf"{name} = [\w.]+", f"{name} = inf", written.read_text()))
    with pytest.raises(InputError, match=rf"^{written}: policy: tlru.{name}: inf is outside"):
        read_settings({}, {"KVSCOPE_RECOMMENDATION": str(written)})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: "ttl_s = 5\n" + text, r": ttl_s: unknown key; .* write such a file"),
        (lambda text: text.replace("[policy]", "[polcy]"), ": polcy: unknown key; did you mean 'p"),
        (
            lambda text: text.replace("schema = 1", "schema = 2"),
            ": schema: 2, this kvscope reads 1",
        ),
        (lambda text: "\0" + text, ": not a TOML file"),
        (lambda text: "block_size = 0\n" + text, ": block_size: 0 is not a number of tokens"),
    ],
)
def test_keys_that_no_version_writes_are_refused(
    written: Path, change: Callable[[str], str], says: str
) -> None:
    """Nothing that was meant as a setting is passed over."""
    written.write_text(change(written.read_text()))
    with pytest.raises(InputError, match=f"^{written}{says}"):
        read_settings({}, {"KVSCOPE_RECOMMENDATION": str(written)})


def test_all_that_kvscope_writes_is_known() -> None:
    """The plugin, which imports little, knows every key of every file."""
    fields = {field.encode_name for field in msgspec.structs.fields(RecommendationTable)}
    assert {*fields, "block_size", returns.TABLE} == set(KEYS)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["tlru", "wa", "gittins", "lru", "ttl", "leaf", "any", "requests", "inf"]),
    lambda values: (
        st.lists(values, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "params",
                    "leaves",
                    "xi_tokens",
                    "next_prompt_tokens",
                    "ttl_s",
                    "refit_s",
                    "x",
                ]
            ),
            values,
            max_size=4,
        )
    ),
    max_leaves=8,
)
TABLES = st.dictionaries(
    st.sampled_from([*SettingsTable.__struct_fields__, "other"]), JSON, max_size=3
)


def runs_or_is_refused(additional: object, environment: dict[str, str]) -> bool:
    """Return whether settings serve where they are taken, and are refused with a place if not."""
    try:
        taken = read_settings(additional, environment)
    except KvscopeError as error:
        return error.where is not None
    if taken.policy is not None:
        served = Alone(taken.policy, 16, 6, taken.fitted)
        for number in range(6):
            request = FakeRequest(str(number), 40, 9, [f"{number % 3} {depth}" for depth in "abc"])
            served.arrive(request, float(number))
            served.run(request)
            served.end(request)
        return not served.steering.broken
    return True


@settings(deadline=None)
@given(JSON | TABLES)
def test_no_configuration_raises_anything_else(table: object) -> None:
    """What `--additional-config` can hold is taken and runs, or is refused in one line."""
    assert runs_or_is_refused({"kvscope": table}, {})


EDITS = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.integers(0, 12),
        st.sampled_from(
            [
                "",
                "inf",
                "-1",
                "nan",
                "1e400",
                "9" * 400,
                '"',
                "[",
                "{",
                "\n[",
                "=",
                "\0",
                "é",
                "true",
            ]
        ),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)
@given(edits=EDITS)
def test_no_file_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[float, int, str]]
) -> None:
    """A damaged or edited file is taken and runs, or is refused in one line."""
    file = Path(__file__).parents[1] / "written_before" / "recommendation-gittins.toml"
    text = file.read_text()
    for place, length, put in edits:
        at = int(place * len(text))
        text = text[:at] + put + text[at + length :]
    path = tmp_path_factory.getbasetemp() / "edited.toml"
    path.write_text(text, encoding="utf-8")
    assert runs_or_is_refused({}, {"KVSCOPE_RECOMMENDATION": str(path), "KVSCOPE_CACHE_STUDY": "1"})


def test_the_plugin_is_light() -> None:
    """Nothing of it loads what an inference process should not carry; vLLM's classes are empty."""
    code = """
import sys, pkgutil, importlib, kvscope.vllm_plugin as engine
from importlib.machinery import ModuleSpec
from types import ModuleType

class Empty(ModuleType):
    __path__, __version__ = [], "0.32.0"

    def __getattr__(self, name):
        return type(name, (), {})

class EmptyVllm:
    create_module = staticmethod(lambda spec: Empty(spec.name))
    exec_module = staticmethod(lambda module: None)

    @classmethod
    def find_spec(cls, name, *_):
        if name.partition(".")[0] == "vllm":
            return ModuleSpec(name, cls, is_package=True)

sys.meta_path.insert(0, EmptyVllm)
for one in pkgutil.iter_modules(engine.__path__):
    importlib.import_module(f"kvscope.vllm_plugin.{one.name}")
heavy = {"polars", "duckdb", "numba", "streamlit", "scipy", "plotly", "torch", "typer"}
print(sorted(heavy & set(sys.modules)))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
