"""Time kvcache-simulator's command line, several passes in one process.

Arguments: PASSES, then its own (run --trace TRACE ...). Prints the seconds of each pass, without
the imports. Its C++ part is a process of its own in each pass.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time

from kvcache_sim.cli import main as simulator


def main() -> None:
    """Run the command line."""
    seconds = []
    for _ in range(int(sys.argv[1])):
        with contextlib.redirect_stdout(io.StringIO()):
            started = time.perf_counter()
            simulator(sys.argv[2:])
            seconds.append(time.perf_counter() - started)
    print(json.dumps({"passes_s": seconds}))


if __name__ == "__main__":
    main()
