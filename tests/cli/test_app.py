"""The shell around every command: names, help, lists, `--debug`, lazy imports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from kvscope import __version__
from kvscope.cli import output
from kvscope.cli.app import COMMANDS, run
from kvscope.core import errors
from kvscope.core.errors import ExitCode
from kvscope.deployment.gpus import GPUS
from kvscope.deployment.models import preset_names
from kvscope.ingest.formats.registry import FORMATS
from kvscope.latency.profile import PRESETS
from kvscope.policies.registry import POLICIES
from kvscope.routers.registry import ROUTERS
from tests.cli.replayed import write_trace
from tests.cli.shell import Streams, python, raising, show, streams_of

HEAVY = ["numba", "duckdb", "polars", "plotly", "streamlit", "torch", "scipy", "numpy", "rich"]
UNNEEDED = [
    *("polars", "plotly", "scipy", "pandas", "pyarrow", "rich", "streamlit", "torch"),
    *("pydantic", "yaml"),  # Typer's and numba's own
]


@pytest.mark.parametrize("arguments", [["--debug", "fail"], ["fail", "--debug"]])
def test_debug_shows_the_traceback(capsys: Streams, arguments: list[str]) -> None:
    """`--debug` stands before or behind the command, and lasts for one run."""
    commands = [("fail", raising(ZeroDivisionError("by zero"))), ("show", show)]
    run(arguments, commands)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "internal error: ZeroDivisionError: by zero"
    assert lines[1].startswith("Traceback")
    run(["fail"], commands)
    assert "Traceback" not in capsys.readouterr().err


def _traces(context: typer.Context) -> None:
    """List the stored traces."""
    if context.invoked_subcommand is None:
        output.emit("all of them")


def test_a_command_with_sub_commands(capsys: Streams) -> None:
    """A group runs alone and with its sub-commands, `--debug` included, as often as it is built."""
    group = typer.Typer(callback=_traces, invoke_without_command=True)
    group.command("remove")(raising(errors.InputError("no such trace")))
    commands = [("traces", group)]
    assert run(["traces"], commands) == ExitCode.DONE
    assert capsys.readouterr() == ("all of them\n", "")
    assert run(["traces", "remove", "--debug"], commands) == ExitCode.INPUT
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["show", "-h"], ["show", "--help"]])
def test_help_is_data(capsys: Streams, words: list[str]) -> None:
    """Help that was asked for goes to stdout, by both names, for every command."""
    assert run(words, [("show", show)]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert out.startswith("Usage: kvscope")
    assert "--debug" in out
    assert err == ""


def test_help_begins_with_the_usual_options(capsys: Streams) -> None:
    """At most fifteen of them; all others are in sections with names."""
    assert run(["tune", "--help"]) == ExitCode.DONE
    first, _, others = capsys.readouterr().out.partition("Options:")[2].partition("Further options")
    usual = [line.split()[0] for line in first.splitlines() if line.startswith(("  --", "  -o"))]
    assert len(usual) <= 15
    assert {"--gpu", "--model", "--replicas", "--slo", "--compare-tiers", "--html", "--json"} <= {
        *usual
    }
    names = ("Deployment:", "Conditions:", "Output:", "Reading a new trace:")
    assert all(f"\n{name}\n" in others for name in names)


def test_nothing_asked(capsys: Streams) -> None:
    """`kvscope` alone is a usage error that shows what there is, off stdout."""
    assert run([], [("show", show)]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert "show  Show what arrived." in err


def test_version(capsys: Streams) -> None:
    """The version goes to stdout."""
    assert streams_of(capsys, "--version") == (f"kvscope {__version__}\n", "")


def test_help_imports_nothing_heavy() -> None:
    """`kvscope --help`, with all its commands registered, loads no heavy package."""
    done = python(
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


def test_analyze_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    """Frames, charts and linear algebra stay out of a plain analysis; scipy stays importable.

    The first process compiles kernels where there are none, and for that loads more.
    """
    trace = tmp_path / "trace.jsonl"
    asked = {"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}
    trace.write_text(json.dumps(asked) + "\n")
    analysis = f"""
        import json, sys
        from kvscope.cli.app import run
        code = run(["analyze", {str(trace)!r}, "--db", ":memory:", "--json"])
        loaded = [name for name in {UNNEEDED} if name in sys.modules]
        import scipy.linalg
        print(json.dumps([code, loaded]), file=sys.stderr)
        """
    python(analysis)
    assert json.loads(python(analysis).stderr.splitlines()[-1]) == [0, []]


def test_a_mistake_is_answered_before_anything_heavy_loads(tmp_path: Path) -> None:
    """A wrong name needs neither NumPy nor kernels, so it takes a fraction of a second."""
    db = str(tmp_path / "k.duckdb")
    assert run(["ingest", str(write_trace(tmp_path)), "--db", db]) == 0
    mistakes = {
        "simulate tinny": "tinny: neither a file nor a stored trace; did you mean 'tiny'?",
        "tune tinny --slo 1s": "did you mean 'tiny'?",
        "analyze tinny": "did you mean 'tiny'?",
        "fit tinny": "did you mean 'tiny'?",
        "analyze tiny --model llama3-8": "no model preset 'llama3-8'",
        "simulate tiny --latency a100": "no latency profile 'a100'",
    }
    done = python(
        f"""
        import sys
        from kvscope.cli.app import run
        for line in {[*mistakes]}:
            run([*line.split(), "--db", {db!r}])
        print([name for name in ("numpy", "numba", "polars", "scipy") if name in sys.modules])
        """
    )
    for error, said in zip(done.stderr.splitlines(), mistakes.values(), strict=True):
        assert said in error
    assert done.stdout == "[]\n"


def test_interrupted_while_it_loads() -> None:
    """Ctrl-C before the command line is there ends as any other."""
    done = python(
        """
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever a shell passed down
        class Interrupting:
            def find_spec(self, name, path=None, target=None):
                if name == "kvscope.cli.diagnostics":
                    signal.raise_signal(signal.SIGINT)
        sys.meta_path.insert(0, Interrupting())
        from kvscope.__main__ import main
        main()
        """
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "error: interrupted\n"


def test_python_m_kvscope() -> None:
    """The module runs as the command does, exit code included."""
    done = python(
        "import runpy, sys; sys.argv[1:] = ['nope'];"
        "runpy.run_module('kvscope', run_name='__main__', alter_sys=True)"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no such command 'nope'; see `kvscope --help`\n"


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


def test_summaries_of_commands_are_their_help(capsys: Streams) -> None:
    """`kvscope --help` lists every command in the order of the registry, without loading it."""
    listed = streams_of(capsys, "--help").out.partition("Commands:")[2].strip().splitlines()
    assert [line.split()[0] for line in listed] == [name for name, _ in COMMANDS]
    assert all(lazy.summary in line for (_, lazy), line in zip(COMMANDS, listed, strict=True))
