"""The command `kvscope`, which is also `python -m kvscope`."""

import atexit
import gc
import os
import sys
import threading

_OBJECTS_BETWEEN_COLLECTIONS = 500_000


def prepare_collector() -> None:
    """Collect garbage rarely in this process, which ends soon.

    Its start alone makes a hundred thousand objects that stay; Python's own thresholds would scan
    them some two hundred times, for a tenth of the time of a small analysis.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


def main() -> None:
    """Run the command line and end the process with its exit code.

    An interrupt prints one line, even while modules are still loading.
    """
    prepare_collector()
    try:
        from kvscope.cli.app import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)
    except SystemExit as stop:
        if isinstance(stop.code, int):
            _end_quickly(stop.code)
        raise


def _end_quickly(code: int) -> None:
    """End the process without freeing its objects one by one, for which Python takes up to 0.1 s.

    Return if another thread is not a daemon, and so still runs. Nothing is lost: files are closed
    by their owners, the command line has flushed stdout, and `atexit` functions run.
    """
    others = set(threading.enumerate()) - {threading.current_thread()}
    if all(thread.daemon for thread in others):
        atexit._run_exitfuncs()  # noqa: SLF001  (what Python itself calls at its end)
        os._exit(code)


if __name__ == "__main__":
    main()
