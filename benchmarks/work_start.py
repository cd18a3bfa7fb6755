"""Work for a fresh process: start, load the kernels of some policies, replay a few requests.

`python -m benchmarks.work_start POLICY...` prints an empty JSON document; the process is timed.
"""

from __future__ import annotations

import argparse

import numpy as np

from kvscope.policies.registry import by_name
from kvscope.simulate.estimates import tables_for
from kvscope.simulate.replay import history, replay
from kvscope.simulate.traffic import Traffic


def few_requests() -> Traffic:
    """Two requests that share a block."""
    counts = np.array([2, 2], dtype=np.int32)
    none = np.zeros(2, dtype=np.int32)
    tokens = np.array([40, 40], dtype=np.int64)
    return Traffic(
        block_size=16,
        block_parent=np.array([0, 0, 1, 1], dtype=np.int32),
        leaf=np.array([2, 3], dtype=np.int32),
        length=counts,
        look=counts,
        anonymous=none,
        arrival_s=np.array([0.0, 1.0]),
        input_tokens=tokens.astype(np.int32),
        history_tokens=tokens,
        category=none,
        parent=none - 1,
        next_prompt_tokens=none.astype(np.int64) - 1,
    )


def main() -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("policies", nargs="+")
    work = few_requests()
    past = history(work)
    for name in parser.parse_args().policies:
        policy = by_name(name)
        replay(work, policy(), 1, past=past, tables=tables_for(work, policy))
    print("{}")


if __name__ == "__main__":
    main()
