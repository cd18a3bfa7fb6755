"""The timeline of one more replay, as `simulate` and `fleet` write it with `--perfetto`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvscope.core.files import STANDARD_STREAM

if TYPE_CHECKING:
    from kvscope.app.monitor import Monitor
    from kvscope.core.hits import HitDefinition
    from kvscope.core.trace import Prompts
    from kvscope.fleet.replay import FleetReplay


def write_timeline(
    path: str,
    what: str,
    replayed: Callable[[], tuple[FleetReplay, Prompts]],
    definition: HitDefinition,
    monitor: Monitor,
) -> None:
    """Replay once more, and write how each counted request was served; `what` names it in a note.

    Raises UsageError for a file that cannot be written.
    """
    from kvscope.replay.curve import first_counted
    from kvscope.report.perfetto import write_perfetto

    with monitor.steps("writing the timeline"):
        done, prompts = replayed()
        write_perfetto(path, prompts, done, first_counted(prompts, definition))
    if path != STANDARD_STREAM:
        monitor.note(f"timeline of {what} written to {path}")
