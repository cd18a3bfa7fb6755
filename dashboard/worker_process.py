"""Run a function in a process of its own: work that holds Python's lock would delay the pages.

Not by `multiprocessing`, whose children import the parent's main module: here Streamlit's.
The child reads the pickled call from its standard input and writes each step and the answer, also
pickled, to its standard output.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")
_NICENESS = 10  # the pages go first


class _Answer(Struct, frozen=True):
    value: Any
    error: BaseException | None = None


def call(function: Callable[..., T], *arguments: Any, step: Callable[[str], None]) -> T:
    """Return what `function(*arguments, step=...)` returns, or raise what it raises.

    `step` is called here; what it raises ends the process. `function` and `arguments` must be
    picklable.
    """
    command = [sys.executable, "-c", "from dashboard.worker_process import main; main()"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None  # noqa: S101  (for mypy: it is a pipe)
        assert process.stdout is not None  # noqa: S101
        try:
            pickle.dump((function, arguments), process.stdin)
            process.stdin.close()
            while not isinstance(message := _next(process.stdout), _Answer):
                step(message)
        except BaseException:
            process.kill()
            raise
    if message.error is not None:
        raise message.error
    value: T = message.value
    return value


def _next(stream: Any) -> Any:
    try:
        return pickle.load(stream)  # noqa: S301  (from our own child)
    except EOFError:
        return _Answer(None, RuntimeError("the process ended early; it may lack memory"))


def main() -> None:
    """Answer the call on standard input."""
    os.nice(_NICENESS)
    function, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301  (from our own parent)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # for whatever the function prints

    def send(message: Any) -> None:
        pickle.dump(message, out)
        out.flush()

    try:
        send(_Answer(function(*arguments, step=send)))
    except BrokenPipeError:  # the parent has gone
        os._exit(1)
    except Exception as error:  # noqa: BLE001  (raised in the parent)
        send(_Answer(None, error))
