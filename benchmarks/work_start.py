"""Work for a fresh process: start, load the kernels of some policies, replay a few requests.

`python -m benchmarks.work_start POLICY...` prints an empty JSON document; the process is timed.
"""

from __future__ import annotations

import argparse
import importlib

from kvscope.__main__ import prepare_collector


def main() -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("policies", nargs="+")
    prepare_collector()
    registry = importlib.import_module("kvscope.policies.registry")
    ahead = importlib.import_module("kvscope.replay.precompile")
    ahead.compile_for([registry.by_name(name) for name in parser.parse_args().policies])
    print("{}")


if __name__ == "__main__":
    main()
