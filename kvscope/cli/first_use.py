"""What the first commands after an installation do beside their work: kernels are compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvscope.cli.diagnostics import note

if TYPE_CHECKING:
    from kvscope.policies.base import Policy


@contextmanager
def compiled_beside(policies: Sequence[type[Policy]]) -> Iterator[None]:
    """`kvscope.replay.precompile.compiled_beside`, said on stderr."""
    from kvscope.replay import precompile as ahead

    lacking = ahead.not_compiled(policies)
    if lacking:
        names = ", ".join(one.name for one in lacking)
        note(f"compiling kernels, once: {names}; this can take half a minute")
    with ahead.compiled_beside(policies):
        yield
