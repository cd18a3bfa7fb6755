"""Work in a process of its own: what holds Python for long would hold up the pages too.

That process runs `main`. It reads what to do from its standard input, and writes each
step and at last the answer to its standard output, all pickled by its own parent.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Step = Callable[[str], None]
_POLITE = 10  # the pages go first


@dataclass(frozen=True, slots=True)
class _Answer:
    value: Any
    error: BaseException | None = None


def apart(work: Callable[..., T], *given: Any, step: Step) -> T:
    """What `work(*given, step=...)` returns, or raises. `step` is told of each step here.

    What `step` raises ends that process. `work` and what it is given must be picklable.
    """
    command = [sys.executable, "-c", "from dashboard.worker_process import main; main()"]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=paths
    ) as process:
        assert process.stdin is not None  # noqa: S101  (for mypy: it is a pipe)
        assert process.stdout is not None  # noqa: S101
        try:
            pickle.dump((work, given), process.stdin)
            process.stdin.close()
            while not isinstance(told := _next(process.stdout), _Answer):
                step(told)
        except BaseException:
            process.kill()
            raise
    if told.error is not None:
        raise told.error
    found: T = told.value
    return found


def _next(stream: Any) -> Any:
    try:
        return pickle.load(stream)  # noqa: S301  (from our own child)
    except EOFError:
        return _Answer(None, RuntimeError("the process ended early; it may lack memory"))


def main() -> None:
    """What that process does."""
    os.nice(_POLITE)
    work, given = pickle.load(sys.stdin.buffer)  # noqa: S301  (from our own parent)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed

    def tell(what: Any) -> None:
        pickle.dump(what, out)
        out.flush()

    try:
        tell(_Answer(work(*given, step=tell)))
    except BrokenPipeError:  # nobody waits for it any more
        os._exit(1)
    except Exception as error:  # noqa: BLE001  (raised where it is waited for)
        tell(_Answer(None, error))
