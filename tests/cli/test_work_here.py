"""kvscope.toml names the trace and the store of commands that name none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvscope.deployment.deployment import Deployment
from kvscope.deployment.file import read_work, write_deployment
from tests.cli.shell import Streams, streams_of

FILE = "schema = 1\ntrace = 'small.jsonl'\ndb = 'team.duckdb'\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder, with a trace and the file."""
    monkeypatch.chdir(tmp_path)
    requests = (
        {"timestamp": at, "input_length": 1024, "output_length": 8, "hash_ids": [at % 3, 7 + at]}
        for at in range(1000, 1020)
    )
    (tmp_path / "small.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in requests))
    (tmp_path / "kvscope.toml").write_text(FILE, encoding="utf-8")
    return tmp_path


def test_commands_take_what_the_file_names(here: Path, capsys: Streams) -> None:
    """And say so; an option or an argument wins."""
    said = streams_of(capsys, "analyze").err
    assert "trace of kvscope.toml: small.jsonl" in said
    assert "db of kvscope.toml: team.duckdb" in said
    assert (here / "team.duckdb").is_file()
    assert "kvscope.toml" not in streams_of(capsys, "analyze", "small", "--db", "team.duckdb").err
    assert "small" in streams_of(capsys, "traces").out
    assert not (here / "kvscope.duckdb").exists()


def test_a_deployment_written_over_the_file_keeps_them(here: Path) -> None:
    """As it keeps the target."""
    path = here / "kvscope.toml"
    write_deployment(path, Deployment(gpu="h100", model="llama3-8b"))
    assert read_work(path) == {"trace": "small.jsonl", "db": "team.duckdb"}
