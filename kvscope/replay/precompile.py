"""Compile kernels of replays in a second process: `python -m kvscope.replay.precompile POLICY...`.

Numba compiles one kernel at a time in a process. Commands that find none compiled therefore have
half of it done by a second process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from kvscope.core.executor import cores
from kvscope.core.jit import is_compiled
from kvscope.learning.offline.learners import tables_for
from kvscope.policies.base import KeyPolicy, Policy
from kvscope.policies.registry import by_name
from kvscope.replay.replay import kernel_of, replay, touch_history
from kvscope.replay.traffic import Traffic, uncut


def uncompiled(policies: Iterable[type[Policy]]) -> list[type[Policy]]:
    """Return policies whose kernel is not in the cache folder, one of those that share a kernel."""
    kernels = {kernel_of(policy): policy for policy in policies}
    return [policy for kernel, policy in kernels.items() if not is_compiled(kernel)]


@contextmanager
def compiling_in_background(policies: Sequence[type[Policy]]) -> Iterator[None]:
    """Compile the missing kernels of these policies in a second process while the block runs.

    It begins where the block will come to last: with the policies that have keys, which take
    longest, and from the end. The block compiles a kernel itself that is not there yet; the process
    ends with the block.
    """
    last_first = uncompiled(policies)[::-1]
    if cores() == 1 or len(last_first) < 2:
        yield
        return
    last_first.sort(key=lambda policy: not issubclass(policy, KeyPolicy))
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, *(policy.name for policy in last_first)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def compile_for(policies: Sequence[type[Policy]]) -> None:
    """Compile the kernels of these policies into the cache folder, unless they are there."""
    few = tiny_traffic()
    past = touch_history(few)
    for policy in policies:
        replay(few, policy(), 1, history=past, tables=tables_for(few, policy))


def tiny_traffic() -> Traffic:
    """Return two requests that share a block: any traffic needs what is compiled for them."""
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
        cuts=uncut(2),
    )


if __name__ == "__main__":
    compile_for([by_name(name) for name in sys.argv[1:]])
