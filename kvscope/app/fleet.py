"""The routers that a trace can be replayed with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvscope.app.monitor import Monitor
from kvscope.core.errors import UsageError
from kvscope.core.trace import Prompts, Trace
from kvscope.routers.base import Router


def routers_for(
    trace: Trace, prompts: Prompts, routers: Sequence[Router], monitor: Monitor, *, named: bool
) -> list[Router]:
    """Return the routers that the trace can be replayed with.

    Raises UsageError for `named` routers that need sessions which the trace lacks.
    """
    by_session = [router for router in routers if router.needs == "keys"]
    if not by_session:
        return list(routers)
    if len(np.unique(prompts.conversation)) < trace.requests:
        if trace.lineage == "inferred":
            monitor.note("sessions are inferred from prompts: a real router's keys may differ")
        return list(routers)
    if named:
        raise UsageError(
            f"{by_session[0].name} needs sessions, and no two requests of {trace.name!r} share one",
            where="--router",
            remedy="leave it out, or take a trace with sessions or parents",
        )
    names = ", ".join(router.name for router in by_session)
    monitor.note(f"left out: {names}, since no two requests share a session")
    return [router for router in routers if router not in by_session]
