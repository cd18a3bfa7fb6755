"""The shell around every command: streams, exit codes, errors of one line, lazy imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from kvscope import __version__, errors
from kvscope.cli import diagnostics, output
from kvscope.cli.app import run
from kvscope.cli.options import DEFAULT_DB, Db, Hbm, Json, KvDtype, Model, TraceArgument
from kvscope.cli.progress import progress
from kvscope.errors import ExitCode
from kvscope.facts import Trace

HEAVY = ["numba", "duckdb", "polars", "plotly", "streamlit", "torch", "scipy", "numpy", "rich"]
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

Streams = pytest.CaptureFixture[str]


def _show(
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    hbm: Hbm = None,
    model: Model = None,
    kv_dtype: KvDtype = None,
    as_json: Json = False,
) -> None:
    """Show what arrived."""
    output.emit(repr((trace, db, hbm, model, kv_dtype, as_json)))


def _raising(failure: BaseException) -> Any:
    def fail() -> None:
        """Fail."""
        raise failure

    return fail


def _fail(failure: BaseException, *arguments: str) -> ExitCode:
    return run(["fail", *arguments], [("fail", _raising(failure)), ("show", _show)])


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": str(Path(output.__file__).parents[2])} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (errors.KvscopeError("x"), ExitCode.FAILED),
        (errors.UsageError("x"), ExitCode.USAGE),
        (errors.InputError("x"), ExitCode.INPUT),
        (errors.ToleranceError("x"), ExitCode.TOLERANCE),
        (errors.EngineError("x"), ExitCode.ENGINE),
        (errors.StoreBusyError("x"), ExitCode.FAILED),
        (typer.BadParameter("x"), ExitCode.USAGE),
        (ZeroDivisionError("x"), ExitCode.FAILED),
        (typer.Exit(4), ExitCode.TOLERANCE),
        (SystemExit(3), ExitCode.INPUT),
    ],
)
def test_exit_codes(failure: BaseException, code: ExitCode) -> None:
    """Every kind of failure ends in its own exit code."""
    assert _fail(failure) == code


def test_an_error_is_one_line_on_stderr(capsys: Streams) -> None:
    """Place, value and remedy stand on one line, whatever the trace holds."""
    _fail(errors.InputError("bad\nid \x1b[31m", where="t.jsonl:7", remedy="mend it"))
    assert capsys.readouterr() == ("", "error: t.jsonl:7: bad id \\x1b[31m; mend it\n")


def test_internal_error(capsys: Streams) -> None:
    """A defect shows no traceback but says how to get one."""
    _fail(ZeroDivisionError("by zero"))
    assert capsys.readouterr().err == (
        "internal error: ZeroDivisionError: by zero; run again with --debug to see the traceback\n"
    )


@pytest.mark.parametrize("arguments", [["--debug", "fail"], ["fail", "--debug"]])
def test_debug_shows_the_traceback(capsys: Streams, arguments: list[str]) -> None:
    """`--debug` stands before or behind the command, and lasts for one run."""
    commands = [("fail", _raising(ZeroDivisionError("by zero"))), ("show", _show)]
    run(arguments, commands)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "internal error: ZeroDivisionError: by zero"
    assert lines[1].startswith("Traceback")
    run(["fail"], commands)
    assert "Traceback" not in capsys.readouterr().err


def test_the_machine_refuses(capsys: Streams) -> None:
    """A full disk or a missing permission is no defect of kvscope."""
    assert _fail(PermissionError(13, "Permission denied", "out.csv")) == ExitCode.FAILED
    assert capsys.readouterr().err == "error: out.csv: Permission denied\n"


def test_interrupted(capsys: Streams) -> None:
    """Ctrl-C is exit code 130 and one word."""
    assert _fail(KeyboardInterrupt()) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "error: interrupted\n"


def test_usage_errors(capsys: Streams) -> None:
    """What Typer refuses looks like kvscope's own errors and names the nearest command."""
    commands = [("show", _show), ("fail", _raising(ValueError()))]
    for arguments, line in [
        (["shwo"], "no such command 'shwo'; did you mean 'show'?"),
        (["--nope"], "no such option: --nope; see `kvscope --help`"),
        (["show", "a", "b"], "got unexpected extra argument(s) (b); see `kvscope show --help`"),
    ]:
        assert run(arguments, commands) == ExitCode.USAGE
        assert capsys.readouterr() == ("", f"error: {line}\n")


def test_refused_values_name_their_option(capsys: Streams) -> None:
    """A value that does not parse is shown with its option and what would be right."""
    for option, value, what in [
        ("--hbm", "16Gb", "'16Gb' is in bits; write 16GB if you mean bytes"),
        ("--kv-dtype", "fp7", "'fp7' is not one of 'fp32', 'fp16', 'bf16', 'fp8', 'int8'"),
    ]:
        assert run(["show", option, value], [("show", _show)]) == ExitCode.USAGE
        line = f"error: invalid value for '{option}': {what}; see `kvscope show --help`\n"
        assert capsys.readouterr() == ("", line)


def test_shared_options_arrive_parsed(capsys: Streams) -> None:
    """Commands get bytes and names, not texts to parse; nothing given is None."""
    words = ["show", "t.jsonl", "--db", ":memory:", "--hbm", "80GiB", "--model", "llama3-8b"]
    assert run([*words, "--kv-dtype", "fp8", "--json"], [("show", _show)]) == ExitCode.DONE
    assert run(["show"], [("show", _show)]) == ExitCode.DONE
    first, second = capsys.readouterr().out.splitlines()
    assert first == repr(("t.jsonl", ":memory:", 80 * 2**30, "llama3-8b", "fp8", True))
    assert second == repr((None, DEFAULT_DB, None, None, None, False))


def test_the_default_store_is_the_stores() -> None:
    """The command line repeats the store's default, which costs too much to import."""
    from kvscope.store.db import DEFAULT_PATH

    assert DEFAULT_DB == DEFAULT_PATH


def _traces(context: typer.Context) -> None:
    """List the stored traces."""
    if context.invoked_subcommand is None:
        output.emit("all of them")


def test_a_command_with_sub_commands(capsys: Streams) -> None:
    """A group runs alone and with its sub-commands, `--debug` included, as often as it is built."""
    group = typer.Typer(callback=_traces, invoke_without_command=True)
    group.command("remove")(_raising(errors.InputError("no such trace")))
    commands = [("traces", group)]
    assert run(["traces"], commands) == ExitCode.DONE
    assert capsys.readouterr() == ("all of them\n", "")
    assert run(["traces", "remove", "--debug"], commands) == ExitCode.INPUT
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["show", "-h"], ["show", "--help"]])
def test_help_is_data(capsys: Streams, words: list[str]) -> None:
    """Help that was asked for goes to stdout, by both names, for every command."""
    assert run(words, [("show", _show)]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert out.startswith("Usage: kvscope")
    assert "--debug" in out
    assert err == ""


def test_nothing_asked(capsys: Streams) -> None:
    """`kvscope` alone is a usage error that shows what there is, off stdout."""
    assert run([], [("show", _show)]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert "show  Show what arrived." in err


def test_version(capsys: Streams) -> None:
    """The version goes to stdout."""
    assert run(["--version"]) == ExitCode.DONE
    assert capsys.readouterr() == (f"kvscope {__version__}\n", "")


def test_help_imports_nothing_heavy() -> None:
    """`kvscope --help`, with all its commands registered, loads no heavy package."""
    done = _python(
        f"""
        import json, sys
        from kvscope.cli.app import run
        code = run(["--help"])
        loaded = [name for name in {HEAVY} if name in sys.modules]
        print(json.dumps([code, loaded]), file=sys.stderr)
        """
    )
    assert json.loads(done.stderr) == [0, []]
    assert done.stdout.startswith("Usage: kvscope")


def test_python_m_kvscope() -> None:
    """The module runs as the command does, exit code included."""
    done = _python(
        "import runpy, sys; sys.argv[1:] = ['nope'];"
        "runpy.run_module('kvscope', run_name='__main__', alter_sys=True)"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no such command 'nope'; see `kvscope --help`\n"


def test_a_reader_that_leaves() -> None:
    """`kvscope ... | head` ends without a word."""
    code = """
        from kvscope.cli.app import main
        def many() -> None:
            for number in range(100_000):
                print(number)
        main(["many"], [("many", many)])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == ExitCode.FAILED


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk() -> None:
    """Data that could not be written is an error, not a silent success."""
    code = "from kvscope.cli.app import main; main(['--version'])"
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"error: No space left on device\n")


def test_warnings_become_notes() -> None:
    """A warning of the numerical rooms is one note on stderr."""
    done = _python(
        """
        import warnings
        from kvscope.cli.app import main
        main(["warn"], [("warn", lambda: warnings.warn("the fit did not converge"))])
        """
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "note: the fit did not converge\n"


def test_the_guard_leaves_warnings_as_they_were() -> None:
    """Running a command changes nothing for the process around it."""
    before = warnings.showwarning
    run(["--version"])
    assert warnings.showwarning is before


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colour(
    capsys: Streams,
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    environment: dict[str, str],
    coloured: bool,
) -> None:
    """Colour only on a terminal, and never against NO_COLOR."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    diagnostics.note("inferred")
    assert ("\033[" in capsys.readouterr().err) is coloured


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


def test_no_progress_in_a_pipe(capsys: Streams) -> None:
    """A log stays free of bars."""
    with progress("reading", total=10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("total", [10, None])
def test_progress_on_a_terminal(
    capsys: Streams, monkeypatch: pytest.MonkeyPatch, total: int | None
) -> None:
    """The bar is on stderr, data printed meanwhile stays on stdout."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("reading [a].jsonl", total=total) as advance:
        advance(5)
        output.emit("data")
        diagnostics.note("halfway")
    out, err = capsys.readouterr()
    assert out == "data\n"
    assert "reading [a].jsonl" in err
    assert "halfway" in err
