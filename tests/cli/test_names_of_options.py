"""One name for one thing over all commands: what each option takes, and what it is called.

The options are those of the program, hidden ones left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import kvscope
from kvscope.app.options import EARLIER
from kvscope.cli.app import build, run
from kvscope.core.errors import ExitCode, UsageError
from tests.cli.shell import Streams

SEVERAL = re.compile(r"^LOW\.\.HIGH or |,\.\.\.$")
OTHER_UNIT = {
    "--format": "of logs with prompts a choice; those of traces are too many to list",
    "--param": "parameters of policies are POLICY.NAME, of routers too in fleet; a profile is one",
}
SHARED_WORDS = {
    "--block-size": "tokens per block",
    "--capacity": "capacit",
    "--capacity-blocks": "in blocks",
    "--engine": "engine and version",
    "--force": "replace",
    "--format": "format of the",
    "--max-bad": "largest share of bad lines",
    "--memory": "memory",
    "--model": "model",  # calibrate and validate start it: vLLM loads it, so no preset is enough
    "--name": "name of the",  # of what the command keeps: a trace, or a profile
    "--offload": "offload",
    "--on": "ray cluster that",
    "--output": "file",
    "--param": "parameter of",
    "--policy": "polic",
    "--recommendation": "kvscope tune",
    "--repeats": "number of measurements",
    "--replicas": "replicas of the engine that serve the traffic",
    "--router": "routers to compare",
    "--seed": "seed",
    "--slo": "ttft threshold",
    "--tier-size": "the cpu memory below the pool",
    "--token": "an address other than this machine's own gets a random one",
    "--tpot-slo": "time per output token to meet as well",
    "--warmup": "share of the requests, from the start, that",
}
"""Of helps that say more in one command than in another, the words that all of them have."""
PLURALS = {
    "--output": "--outputs are the tokens of a turn, which the next one carries",
    "--request": "one of a trace, by its number; --requests is how many to generate",
}
SAMPLE = "sample_traces/to-c.jsonl.gz"


class Named(NamedTuple):
    """An option of a command."""

    command: str
    name: str
    kind: str
    help: str


def options(command: Any = None, name: str = "") -> Iterator[Named]:
    """Yield the options of all commands, each of its names by itself."""
    command = command or build()
    inner = getattr(command, "commands", None)
    for each in inner or ():
        yield from options(inner[each], f"{name} {each}".strip())
    for each in () if inner else command.params:
        if not each.opts[0].startswith("-") or each.hidden:
            continue
        kind = getattr(each, "metavar", None) or each.type_descriptor.annotation
        yield from (
            Named(name, opt, SEVERAL.sub("", str(kind)), each.help or "") for opt in each.opts
        )


@pytest.fixture(scope="module")
def catalogue() -> dict[str, list[Named]]:
    """Return the options of all commands by name."""
    catalogue = defaultdict(list)
    for each in options():
        catalogue[each.name].append(each)
    return dict(catalogue)


def test_a_name_stands_for_one_thing(catalogue: dict[str, list[Named]]) -> None:
    """It takes the same kind of value in all commands, and its helps share their words."""
    assert {name for name, each in catalogue.items() if _differ(each, "kind")} == {*OTHER_UNIT}
    differing = {name for name, each in catalogue.items() if _differ(each, "help")}
    assert differing - {"-o"} == {*SHARED_WORDS}
    for name, words in SHARED_WORDS.items():
        for each in catalogue[name]:
            assert words in each.help.lower(), each


def test_a_thing_has_one_name(catalogue: dict[str, list[Named]]) -> None:
    """No two options have one help, and none is called as several of another would be."""
    named = defaultdict(set)
    for name, each in catalogue.items():
        for option in each:
            named[option.help].add(name)
    short = ({"--output", "-o"}, {"--requests", "-n"})
    assert [names for names in named.values() if len(names) > 1 and names not in short] == []
    plurals = {name for name in catalogue if {f"{name}s", f"{name[:-1]}ies"} & {*catalogue}}
    assert plurals == {*PLURALS}


def test_earlier_names_are_understood_and_not_shown(
    catalogue: dict[str, list[Named]], capsys: Streams
) -> None:
    """Each stands for an option of the command, also with its value behind `=`."""
    for command, names in EARLIER.items():
        known = {name for name, each in catalogue.items() if command in {x.command for x in each}}
        assert {f"--{name}" for name in names.values()} <= known
        assert not {f"--{name}" for name in names} & known
    for words in (["--policies", "nope"], ["--policies=nope"]):
        assert run(["simulate", SAMPLE, "--db", ":memory:", *words]) == ExitCode.USAGE
        assert "--policy: unknown policy 'nope'" in capsys.readouterr().err
    with pytest.raises(UsageError, match="policy: unknown policy 'nope'"):
        kvscope.simulate(SAMPLE, policies="nope")


def _differ(options: list[Named], field: str) -> bool:
    return len({getattr(option, field) for option in options}) > 1
