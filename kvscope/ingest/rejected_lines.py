"""What an ingest says of the lines that it could not use, for terminal and dashboard."""

from __future__ import annotations

from kvscope.ingest.formats.base import Rejects

_SHOWN = 5


def bad_lines_in_words(rejects: Rejects) -> list[str]:
    """The first bad lines one by one, then how many there are of each kind; nothing if none is."""
    told = [f"{rejects.path}:{line}: {reason}" for line, reason in rejects.lines[:_SHOWN]]
    if not rejects.count:
        return told
    lines = rejects.accepted + rejects.count
    told.append(f"{rejects.path}: {rejects.count:,} of {lines:,} lines cannot be used:")
    by_count = sorted(rejects.reasons.items(), key=lambda item: -item[1])
    return told + [f"{count:,} × {reason}" for reason, count in by_count]
