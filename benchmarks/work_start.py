"""Work for a fresh process: start, load the kernels of some policies, replay a few requests.

`python -m benchmarks.work_start POLICY...` prints an empty JSON document; the process is timed.
"""

from __future__ import annotations

import argparse

from kvscope.policies.registry import by_name
from kvscope.simulate.ahead import compile_for


def main() -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("policies", nargs="+")
    compile_for([by_name(name) for name in parser.parse_args().policies])
    print("{}")


if __name__ == "__main__":
    main()
