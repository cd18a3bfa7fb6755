"""How commands end: exit codes, errors of one line, closed pipes, colour."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import typer

from kvscope.cli import diagnostics
from kvscope.cli.app import run
from kvscope.core import errors
from kvscope.core.errors import ExitCode
from tests.cli.shell import Streams, python, raising, show


def _fail(failure: BaseException, *arguments: str) -> ExitCode:
    return run(["fail", *arguments], [("fail", raising(failure)), ("show", show)])


@pytest.mark.parametrize(
    ("failure", "code", "written"),
    [
        (errors.KvscopeError("x"), ExitCode.FAILED, "error: x"),
        (errors.UsageError("x"), ExitCode.USAGE, "error: x"),
        (  # whatever the trace holds
            errors.InputError("bad\nid \x1b[31m", where="t.jsonl:7", remedy="mend it"),
            ExitCode.INPUT,
            "error: t.jsonl:7: bad id \\x1b[31m; mend it",
        ),
        (errors.EngineError("x"), ExitCode.ENGINE, "error: x"),
        (errors.StoreBusyError("x"), ExitCode.FAILED, "error: x"),
        (typer.BadParameter("x"), ExitCode.USAGE, "error: "),
        (  # a defect, whose traceback is shown on request
            ZeroDivisionError("by zero"),
            ExitCode.FAILED,
            "internal error: ZeroDivisionError: by zero; run again with --debug to see the",
        ),
        (  # no defect of kvscope
            PermissionError(13, "Permission denied", "out.csv"),
            ExitCode.FAILED,
            "error: out.csv: Permission denied",
        ),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "error: interrupted"),
        (typer.Exit(4), ExitCode.CHECK_FAILED, None),
        (SystemExit(3), ExitCode.INPUT, None),
    ],
)
def test_failures_are_an_exit_code_and_one_line(
    capsys: Streams, failure: BaseException, code: ExitCode, written: str | None
) -> None:
    """Place, value and remedy on stderr, nothing on stdout; some say nothing."""
    assert _fail(failure) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == (written is not None)
    assert err.startswith(written or "")


def test_interrupted_where_python_cannot_tell(capsys: Streams) -> None:
    """An interrupt that a callback drops, so that something else fails: still an interrupt."""

    class Dropping:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def fail() -> None:
        """Fail."""
        Dropping()
        raise ZeroDivisionError

    before = signal.getsignal(signal.SIGINT), sys.unraisablehook
    assert run(["fail"], [("fail", fail), ("show", show)]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "error: interrupted\n"
    assert (signal.getsignal(signal.SIGINT), sys.unraisablehook) == before
    assert _fail(ZeroDivisionError()) == ExitCode.FAILED


def test_usage_errors(capsys: Streams) -> None:
    """What Typer refuses looks like kvscope's own errors and names the nearest command."""
    commands = [("show", show), ("fail", raising(ValueError()))]
    for arguments, line in [
        (["shwo"], "no such command 'shwo'; did you mean 'show'?"),
        (["--nope"], "no such option: --nope; see `kvscope --help`"),
        (["show", "--jsn"], "no such option: --jsn; did you mean --json?"),
        (["show", "--version"], "no such option: --version; see `kvscope show --help`"),
        (["fail", "a"], "got unexpected extra argument(s) (a); see `kvscope fail --help`"),
    ]:
        assert run(arguments, commands) == ExitCode.USAGE
        assert capsys.readouterr() == ("", f"error: {line}\n")


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
        assert process.wait() == ExitCode.DONE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk() -> None:
    """Data that could not be written is an error, not a silent success."""
    code = "from kvscope.cli.app import main; main(['--version'])"
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        b"error: standard output: No space left on device\n",
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams(closed: str) -> None:
    """A stream that its caller closed is no failure, whatever would have gone there."""
    code = "from kvscope.cli.app import main; main(['-h'])"
    done = subprocess.run(
        ["/bin/sh", "-c", f"'{sys.executable}' -c \"{code}\" {closed}"],
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0
    assert done.stdout.startswith(b"" if ">&-" in closed.split() else b"Usage")
    assert b"Traceback" not in done.stderr


def test_an_encoding_without_the_characters() -> None:
    """What stdout cannot encode is replaced, not a failure."""
    code = """
        from kvscope.cli.app import main
        main(["bars"], [("bars", lambda: print("50% █ [b]", chr(0xDCFF)))])
    """
    done = python(code, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "50% ? [b] ?\n", "")


def test_warnings_become_notes() -> None:
    """A warning of the numerical rooms is one note on stderr."""
    done = python(
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
