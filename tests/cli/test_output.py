"""What goes to stdout: JSON documents and tables."""

from __future__ import annotations

import json

from kvscope.cli import output
from kvscope.core.trace import Trace
from kvscope.usecases.catalog import StoredTrace
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


def test_a_line_stays_one(capsys: Streams) -> None:
    """What a trace calls itself cannot steer the terminal or begin another line."""
    output.emit("a\x1b[31m\nb: 3 blocks")
    assert capsys.readouterr().out == "a\\x1b[31m b: 3 blocks\n"


def test_json_document(capsys: Streams) -> None:
    """A document is indented JSON, and ends its line."""
    output.emit_result("traces", {"traces": (StoredTrace(TRACE),)})
    out = capsys.readouterr().out
    assert out.endswith("\n}\n")
    assert json.loads(out)["traces"][0]["name"] == "conv"


def test_console(capsys: Streams) -> None:
    """Piped tables are 100 columns wide, and brackets in names stay what they are."""
    console = output.console()
    console.print("[bold]trace[/bold] :smile:")
    assert console.width == 100
    assert capsys.readouterr().out == "[bold]trace[/bold] :smile:\n"
