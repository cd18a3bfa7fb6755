"""Use cases that compute once what several commands of a module show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from msgspec.structs import force_setattr

from kvscope.usecases.base import use_case


@contextmanager
def computed_once(*names: str) -> Iterator[None]:
    """Answer a question that these commands were asked before with what they computed then."""
    with ExitStack() as restored:
        for name in names:
            case = use_case(name)
            for step in ("run", "instead"):
                compute = getattr(case, step)
                restored.callback(force_setattr, case, step, compute)
                force_setattr(case, step, compute and _kept(compute))
        yield


def _kept(compute: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[tuple[str | None, str], Any] = {}

    @wraps(compute)  # whose types the schemas are made of
    def kept(opened: Any, request: Any, monitor: Any) -> Any:
        asked = opened.source, repr(request)
        if asked not in known:
            known[asked] = compute(opened, request, monitor)
        return known[asked]

    return kept
