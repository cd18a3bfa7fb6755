"""Work for a fresh process: kvcache-simulator's command line some times over, in one process.

`python -m benchmarks.work_simulator PASSES run --trace TRACE ...` prints JSON: the seconds of each
pass, the imports left out. Its C++ part is a process of its own in each pass, as ever.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time

from kvcache_sim.cli import main as simulator


def main() -> None:
    """The command line of this file."""
    seconds = []
    for _ in range(int(sys.argv[1])):
        with contextlib.redirect_stdout(io.StringIO()):
            started = time.perf_counter()
            simulator(sys.argv[2:])
            seconds.append(time.perf_counter() - started)
    print(json.dumps({"passes_s": seconds}))


if __name__ == "__main__":
    main()
