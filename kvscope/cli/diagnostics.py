"""Notes and errors on stderr, and exit codes.

Every error or interrupt that ends a command becomes one line on stderr and an exit code here.
"""

from __future__ import annotations

import difflib
import io
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

import typer

from kvscope.core.errors import ExitCode, KvscopeError, without_secrets
from kvscope.core.files import FULL
from kvscope.core.memory import out_of_memory

if TYPE_CHECKING:
    from kvscope.app.gates import Figures, Gate

_RED, _YELLOW = "1;31", "33"
_ALIKE = 0.75  # Typer's own suggestions begin at 0.6, where --version is like --json


class _Mode:
    """The state of this run: whether `--debug` is on, and whether Ctrl-C was pressed."""

    debug = False
    interrupted = False


def enable_debug() -> None:
    """Show the traceback behind every error of this run."""
    _Mode.debug = True


def note(text: str) -> None:
    """Write a note to stderr: an inference, an assumption or an omission."""
    _line("note", _YELLOW, text)


def error(text: str) -> None:
    """Write an error to stderr, in one line."""
    _line("error", _RED, text)


def say(text: str) -> None:
    """Write `text` and a line break to stderr, unescaped."""
    with suppress(OSError):  # stderr is closed: the exit code remains
        sys.stderr.write(f"{text}\n")


def show_log(lines: Sequence[str]) -> None:
    """Write lines of a server's log to stderr, each cut to 300 characters."""
    for line in lines:
        say(f"  | {line[:300]}")


def end_on(gates: Sequence[Gate], figures: Figures, baseline: Figures | None) -> None:
    """Write a line for every `--fail-on` condition that holds; if any does, exit with code 4.

    `baseline`: figures of the result that `--baseline` names; if None, conditions on regressions
    raise InputError.
    """
    from kvscope.app.gates import reasons

    if lines := reasons(gates, figures, baseline):
        for line in lines:
            say(one_line(line))
        raise typer.Exit(ExitCode.CHECK_FAILED)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Suppress the error in the `with` block if the reader of stdout ends (`... | head`)."""
    try:
        yield
    except BrokenPipeError:
        _discard_stdout()
    except SystemExit as stop:  # rich's answer to it
        if not isinstance(stop.__context__, BrokenPipeError):
            raise


def one_line(text: str) -> str:
    """Return `text` as one printable line: secrets masked, control characters escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in without_secrets(re.sub(r"\s*[\r\n]\s*", " ", text))
    )


def interactive() -> bool:
    """Return whether stderr is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def prepare_streams() -> None:
    """Prepare the standard streams of this process for closed files and narrow encodings.

    Output to a closed stream (`kvscope >&-`) is discarded instead of failing; a character that the
    encoding of stdout lacks is written as `?`.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115  (for good)
            setattr(sys, name, nowhere)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def guarded(command: Callable[[], object]) -> ExitCode:
    """Run `command` and return its exit code. Never raises.

    An integer that `command` returns is its exit code. Python's warnings become notes.
    """
    _Mode.debug = _Mode.interrupted = False
    with _interrupts_noticed():
        code = _ended(command)
    try:
        sys.stdout.flush()  # here, while a full disk or a reader that left can still be told apart
    except OSError as failure:
        _discard_stdout()
        return code if isinstance(failure, BrokenPipeError) else _failed(failure)
    return code


def _ended(command: Callable[[], object]) -> ExitCode:
    try:
        with _warnings_as_notes():
            code = _exit_code(command())
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # Typer's answer to it
            return ExitCode.DONE
        return _exit_code(stop.code)
    except BrokenPipeError:  # the reader has what it wanted (`kvscope ... | head`)
        return ExitCode.DONE
    except (KeyboardInterrupt, typer.Abort):  # Abort: the end of what was typed at a question
        code = ExitCode.INTERRUPTED
    except Exception as failure:  # noqa: BLE001  (the last line of defence)
        if not _Mode.interrupted:
            return _failed(failure)
        code = ExitCode.INTERRUPTED
    if code == ExitCode.INTERRUPTED:  # which Typer returns where it caught the interrupt
        error("interrupted")
    return code


def _failed(failure: Exception) -> ExitCode:
    if shortage := out_of_memory(failure):
        code = shortage.exit_code
        error(str(shortage))
    elif isinstance(failure, KvscopeError):
        code = failure.exit_code
        show_log(getattr(failure, "log", ()))  # of a server that died
        error(str(failure))
    elif isinstance(failure, typer.TyperException):
        code = _exit_code(failure.exit_code)
        error(_usage(failure))
    elif isinstance(failure, OSError) and failure.strerror:  # the machine's: disk, permissions
        code = ExitCode.FAILED
        place = f"{failure.filename}: " if failure.filename is not None else ""
        if not place and failure.errno in FULL:  # that of any other file names it
            place = "standard output: "
        error(f"{place}{failure.strerror}")
    else:
        code = ExitCode.FAILED
        what = f"{type(failure).__name__}: {failure}".removesuffix(": ")
        remedy = "" if _Mode.debug else "; run again with --debug to see the traceback"
        _line("internal error", _RED, f"{what}{remedy}")
    if _Mode.debug:
        traceback.print_exception(failure)
    return code


def _usage(failure: typer.TyperException) -> str:
    """Return Typer's usage error, worded as kvscope's own errors."""
    unknown = getattr(failure, "option_name", None)
    known = getattr(failure, "possibilities", None) or ()
    what = failure.message if known else failure.format_message()
    what = what.rstrip(".").replace(": Value error, ", ": ")
    what = what[:1].lower() + what[1:].replace(". Did you mean ", "; did you mean ")
    if unknown and (near := difflib.get_close_matches(unknown, known, n=1, cutoff=_ALIKE)):
        return f"{what}; did you mean {near[0]}?"
    context = getattr(failure, "ctx", None)
    if context is None or what.endswith("?"):
        return what
    return f"{what}; see `{context.command_path} --help`"


def _exit_code(code: object) -> ExitCode:
    """Return the exit code of a command's return value: success unless it is an integer."""
    if not isinstance(code, int):
        return ExitCode.DONE
    return ExitCode(code) if code in set(ExitCode) else ExitCode.FAILED


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that Python's flush at exit does not fail too."""
    with suppress(OSError, ValueError):  # ValueError: stdout is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _interrupts_noticed() -> Iterator[None]:
    """Record Ctrl-C in `_Mode`: a compiler callback may drop it, and another error follow."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def remember(number: int, frame: FrameType | None) -> None:
        _Mode.interrupted = True
        raise KeyboardInterrupt

    def unraisable(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            others(dropped)

    others, sys.unraisablehook = sys.unraisablehook, unraisable
    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = others


@contextmanager
def _warnings_as_notes() -> Iterator[None]:
    def show(  # Python's signature
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        place = f" ({category.__name__}, {filename}:{lineno})" if _Mode.debug else ""
        note(f"{message}{place}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _line(label: str, colour: str, text: str) -> None:
    """Write one line to stderr; escape characters that are not printable."""
    coloured = interactive() and not os.environ.get("NO_COLOR")
    prefix = f"\033[{colour}m{label}:\033[0m" if coloured else f"{label}:"
    say(f"{prefix} {one_line(text)}")
