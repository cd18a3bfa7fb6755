"""`kvscope policies`, `routers`, `models`, `gpus` and so on: for people and programs."""

from __future__ import annotations

import pytest

from kvscope.cli.app import COMMANDS
from kvscope.deployment.gpus import GPUS
from kvscope.deployment.models import preset_names
from kvscope.ingest.formats.registry import FORMATS
from kvscope.latency.profile import PRESETS
from kvscope.policies.registry import POLICIES
from kvscope.routers.registry import ROUTERS
from tests.cli.shell import Streams, document, streams_of

NAMES: dict[str, list[str]] = {
    "policies": [policy.name for policy in POLICIES],
    "routers": [router.name for router in ROUTERS],
    "models": list(preset_names()),
    "gpus": list(GPUS),
    "latencies": list(PRESETS),
    "formats": [known.name for known in FORMATS],
}


@pytest.mark.parametrize("command", NAMES)
def test_lists_for_people(capsys: Streams, command: str) -> None:
    """Every name begins a row, within 100 columns."""
    lines = streams_of(capsys, command).out.splitlines()
    first = {line.split()[0] for line in lines if line.strip()}
    assert first >= set(NAMES[command])
    assert max(map(len, map(str.rstrip, lines))) <= 100


def test_who_runs_a_policy(capsys: Streams) -> None:
    """The list says which engine runs a policy; nothing runs an oracle."""
    listed = document(capsys, "policies")["policies"]
    assert all(entry["summary"] and entry["source"] for entry in listed)
    engines = {entry["name"]: entry["engines"] for entry in listed}
    assert engines["lru"] == ["vllm", "sglang"]
    assert engines["tlru"] == ["vllm with kvscope's plugin", "sglang"]
    assert engines["gittins"] == ["vllm with kvscope's plugin"]
    assert engines["belady"] == engines["s3fifo"] == []


def test_summaries_of_commands_are_their_help(capsys: Streams) -> None:
    """`kvscope --help` lists every command in the order of the registry, without loading it."""
    listed = streams_of(capsys, "--help").out.partition("Commands:")[2].strip().splitlines()
    assert [line.split()[0] for line in listed] == [name for name, _ in COMMANDS]
    assert all(lazy.summary in line for (_, lazy), line in zip(COMMANDS, listed, strict=True))
