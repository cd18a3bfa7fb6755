"""What goes to stdout: JSON documents and tables."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from kvscope import __version__
from kvscope.cli import output
from kvscope.core.trace import Trace
from tests.cli.shell import Streams

TRACE = Trace(
    trace_id=3,
    name="conv",
    source="conv.jsonl",
    format="mooncake",
    block_size=512,
    requests=2,
    accesses=5,
    distinct_blocks=4,
    span_s=1.5,
    input_tokens=2048,
    output_tokens=7,
    lineage="inferred",
    has_users=False,
    lines=2,
    bad_lines=0,
    out_of_order=0,
    notes=(),
)


@dataclass(frozen=True)
class _Point:
    capacity_blocks: int
    token_hit_rate: float


def test_json_document(capsys: Streams) -> None:
    """One document with the promised head; dataclasses and numpy values are plain JSON."""
    payload = {
        "curve": [_Point(8, 0.5), _Point(16, float("nan"))],
        "best": np.float64(0.25),
        "worst": np.float64("inf"),
        "sizes": np.array([1, 2]),
    }
    output.emit_json("analyze", TRACE, payload)
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["kvscope", "schema", "command", "trace", *payload]
    assert document["kvscope"] == __version__
    assert document["schema"] == 1
    assert document["command"] == "analyze"
    assert document["trace"] == {
        "name": "conv",
        "format": "mooncake",
        "block_size": 512,
        "requests": 2,
        "accesses": 5,
        "distinct_blocks": 4,
        "span_s": 1.5,
        "input_tokens": 2048,
        "output_tokens": 7,
        "lineage": "inferred",
        "bad_lines": 0,
    }
    assert document["curve"][1] == {"capacity_blocks": 16, "token_hit_rate": None}
    assert document["best"] == 0.25
    assert document["worst"] is None
    assert document["sizes"] == [1, 2]


def test_json_is_ascii(capsys: Streams) -> None:
    """Names of any script and broken ones get through whatever stdout's encoding is."""
    output.emit_json("traces", None, {"names": ["é 𝄞", "plain"]})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out)["names"] == ["é 𝄞", "plain"]


def test_a_line_stays_one(capsys: Streams) -> None:
    """What a trace calls itself cannot steer the terminal or begin another line."""
    output.emit("a\x1b[31m\nb: 3 blocks")
    assert capsys.readouterr().out == "a\\x1b[31m b: 3 blocks\n"


def test_json_without_a_trace(capsys: Streams) -> None:
    """A command about no single trace says so by null."""
    output.emit_json("traces", None, {"traces": []})
    assert json.loads(capsys.readouterr().out)["trace"] is None


def test_json_keeps_its_head() -> None:
    """A command cannot overwrite what every document says."""
    with pytest.raises(ValueError, match="schema"):
        output.emit_json("analyze", None, {"schema": 2})


def test_console(capsys: Streams) -> None:
    """Piped tables are 100 columns wide, and brackets in names stay what they are."""
    console = output.console()
    console.print("[bold]trace[/bold] :smile:")
    assert console.width == 100
    assert capsys.readouterr().out == "[bold]trace[/bold] :smile:\n"
