"""`kvscope tune` asked from a test, and traces to ask it about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvscope.cli.app import run
from kvscope.ingest.formats.base import Request
from tests.cli import shell
from tests.cli.shell import Streams

HERE = ("--capacity-blocks", "350")
DEPLOYED = ("--gpu", "h100", "--model", "llama3-8b", "--num-gpu-blocks", "360")  # 359 for requests
HOSTILE = "<img src=x onerror=alert(1)></script><b>&"


def write_trace(path: Path, trace: list[Request], kind: str = "text") -> Path:
    """Return the requests as JSONL in the Bailian form."""
    rows = [
        {
            "chat_id": one.chat_id,
            "parent_chat_id": one.parent_chat_id,
            "timestamp": one.arrival_s,
            "input_length": one.input_tokens,
            "output_length": one.output_tokens,
            "type": kind,
            "turn": at // 20 + 1,
            "hash_ids": one.hash_ids,
        }
        for at, one in enumerate(trace)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def told(capsys: Streams, *arguments: str) -> str:
    """Return what `kvscope tune` prints, in one line."""
    code = run(["tune", *arguments])
    written = capsys.readouterr()
    assert code == 0, written.err
    return " ".join(written.out.split())


def document(capsys: Streams, *arguments: str) -> dict[str, Any]:
    """Return the JSON document of `kvscope tune`."""
    return shell.document(capsys, "tune", *arguments)
