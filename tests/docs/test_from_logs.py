"""The commands of the pages from logs to an answer run as they stand there, on small samples."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="make setup installs it")

from kvscope.cli.app import run
from tests.chat_logs.models import write_model
from tests.ingest.formats.conftest import SAMPLES

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "from-logs").glob("*.md"))
LONGEST = 14  # lines of a page

HEAD = {"role": "system", "content": "Answer in the words of the definitions. " * 20}
CHATS = [[HEAD, {"role": "user", "content": f"What is block {each}?"}] for each in range(4)]


def samples() -> dict[str, list[object] | bytes]:
    """Return the logs that the pages name, as bytes or as JSON lines."""
    ids = [*range(7, 400)]
    payload = {"endTime": 3.5, "prompt_tokens": 300, "completion_tokens": 7, "trace_id": "t"}
    return {
        "recording/recording-1.jsonl": SAMPLES["bailian"].data,
        "dynamo.jsonl": SAMPLES["dynamo"].data,
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


def commands(page: Path) -> list[str]:
    """Return the commands of a page's block."""
    return re.findall(r"^    kvscope (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with the logs and the model under the names of the pages."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    for name, log in samples().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        lines = log if isinstance(log, bytes) else "\n".join(map(json.dumps, log)).encode()
        (tmp_path / name).write_bytes(lines)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_commands_of_a_page_run(page: Path, folder: Path) -> None:
    """One block on a page of a few lines; each command ends well."""
    assert len(page.read_text(encoding="utf-8").splitlines()) <= LONGEST
    assert commands(page)
    for command in commands(page):
        assert run(shlex.split(command)) == 0, command


def test_commands_in_the_text_run(folder: Path) -> None:
    """Of logs whose page has another command, or that have none."""
    texts = [page.read_text(encoding="utf-8") for page in (DOCS / "from-logs.md", *PAGES)]
    named = {name for text in texts for name in re.findall(r"`kvscope analyze (\w+\.jsonl)`", text)}
    assert named == {"tair.jsonl", "litellm.jsonl", "otlp.jsonl"}
    for name in named:
        assert run(["analyze", name, "--db", ":memory:"]) == 0
