"""The command `kvscope`, which is also `python -m kvscope`."""

import gc
import sys

_OBJECTS_BETWEEN_COLLECTIONS = 100_000


def prepare_collector() -> None:
    """Let Python look for dead cycles of objects rarely in this process, which ends soon.

    Its start alone makes a hundred thousand objects that stay; at Python's own pace they would be
    looked through some two hundred times, for a tenth of the time of a small analysis.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


def main() -> None:
    """Run the command line; an interrupt ends it in one line even while it still loads."""
    prepare_collector()
    try:
        from kvscope.cli.app import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
