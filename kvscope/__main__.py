"""The command `kvscope`, which is also `python -m kvscope`."""

import sys


def main() -> None:
    """Run the command line; an interrupt ends it in one line even while it still loads."""
    try:
        from kvscope.cli.app import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
