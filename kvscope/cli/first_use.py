"""Read the trace to replay while a second process compiles the kernels that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvscope.cli.diagnostics import note
from kvscope.cli.loading import load_trace
from kvscope.cli.options import Reading

if TYPE_CHECKING:
    from kvscope.core.trace import Trace
    from kvscope.policies.base import Policy
    from kvscope.store.db import Store


@contextmanager
def trace_and_kernels(
    store: Store, text: str | None, reading: Reading, policies: Sequence[type[Policy]]
) -> Iterator[Trace]:
    """Yield the trace that `text` names; while the block runs, what `policies` lack is compiled."""
    from kvscope.replay import precompile

    lacking = precompile.uncompiled(policies)
    if lacking:
        names = ", ".join(policy.name for policy in lacking)
        note(f"compiling kernels, once: {names}; this can take half a minute")
    with precompile.compiling_in_background(policies):
        yield load_trace(store, text, reading)
