"""The commands of docs/from-logs.md run as they stand there, on small samples."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="make setup installs it")

from kvscope.chat_logs.convert import FORMATS as LOGS
from kvscope.cli.app import run
from kvscope.ingest.formats.registry import FORMATS
from tests.chat_logs.models import write_model
from tests.ingest.formats.conftest import SAMPLES

PAGE = (Path(__file__).parents[2] / "docs" / "from-logs.md").read_text(encoding="utf-8")

HEAD = {"role": "system", "content": "Answer in the words of the definitions. " * 20}
CHATS = [[HEAD, {"role": "user", "content": f"What is block {each}?"}] for each in range(4)]


def samples() -> dict[str, list[object] | bytes]:
    """Return the logs that the page names, as bytes or as JSON lines."""
    ids = [*range(7, 400)]
    payload = {"endTime": 3.5, "prompt_tokens": 300, "completion_tokens": 7, "trace_id": "t"}
    return {
        "recording/recording-1.jsonl": SAMPLES["bailian"].data,
        "dynamo-request-trace.000000.jsonl.gz": gzip.compress(
            b"".join(
                b'{"timestamp":7,"event":%b}\n' % line
                for line in SAMPLES["dynamo"].data.splitlines()
            )
        ),
        "logs/lookups.jsonl": SAMPLES["lmcache"].data,
        "tair.jsonl": SAMPLES["tair"].data,
        "otlp.jsonl": SAMPLES["otlp"].data,
        "litellm.jsonl": [
            payload | {"startTime": at, "completionStartTime": at + 0.5, "messages": chat}
            for at, chat in enumerate(CHATS)
        ],
        "gateway.jsonl": [{"messages": chat, "timestamp": at} for at, chat in enumerate(CHATS)],
        "sglang/sglang-request-metrics-20260101_00.log": [
            {
                "request_parameters": json.dumps({"rid": str(at), "input_ids": [*ids, at]}),
                "request_received_ts": at,
                "prompt_tokens": len(ids) + 1,
                "completion_tokens": 3,
                "cached_tokens": 64,
                "e2e_latency": 0.5,
            }
            for at in range(4)
        ],
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with the logs and the model under the names of the page."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    for name, log in samples().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        lines = log if isinstance(log, bytes) else "\n".join(map(json.dumps, log)).encode()
        (tmp_path / name).write_bytes(lines)
    return tmp_path


def test_the_commands_run(folder: Path) -> None:
    """In their order, in one folder; each log is hashed or analyzed."""
    commands = re.findall(r"^    kvscope (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 11
    for command in commands:
        assert run(shlex.split(command)) == 0, command


def test_commands_in_the_text_run(folder: Path) -> None:
    """Of logs that have no block of commands, or another one."""
    named = set(re.findall(r"`kvscope analyze (\w+\.jsonl)`", PAGE))
    assert named == {"tair.jsonl", "litellm.jsonl", "otlp.jsonl"}
    for name in named:
        assert run(["analyze", name, "--db", ":memory:"]) == 0


def test_every_format_is_named() -> None:
    """Trace formats, and formats of logs with prompts in a row each."""
    for known in FORMATS:
        assert f"`{known.name}`" in PAGE, known.name
    for name in LOGS:
        assert f"| `{name}` |" in PAGE
