"""Small plots made of characters, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

PLOT_WIDTH = 60  # characters

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"
_SHADES = " ░▒▓█"


def bar(share: float, width: int = 24) -> str:
    """Return a horizontal bar of `width` characters, filled for `share` (0–1) of it."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def sparkline(values: Sequence[float | None], top: float | None = None) -> str:
    """Return a character a value, its height the value's share of `top` (default: the largest)."""
    known = [value for value in values if value is not None]
    highest = top if top is not None else max(known, default=0.0)
    if highest <= 0:
        return "▁" * len(values)
    last = len(_LEVELS) - 1
    return "".join(
        " " if value is None else _LEVELS[min(last, max(0, round(value / highest * last)))]
        for value in values
    )


def heat_map(rows: Sequence[Sequence[float]], top: float | None = None) -> list[str]:
    """Return a line a row, two characters a cell, darker for larger shares of `top`."""
    highest = top if top is not None else max((max(row, default=0.0) for row in rows), default=0.0)
    last = len(_SHADES) - 1
    scale = highest if highest > 0 else 1.0
    return [
        "".join(2 * _SHADES[min(last, max(0, round(cell / scale * last)))] for cell in row)
        for row in rows
    ]


def thinned(values: Sequence[float | None], width: int) -> list[float | None]:
    """Return at most `width` values: the mean of each segment of equal length."""
    if len(values) <= width:
        return list(values)
    thin: list[float | None] = []
    for column in range(width):
        segment = values[column * len(values) // width : (column + 1) * len(values) // width]
        known = [value for value in segment if value is not None]
        thin.append(sum(known) / len(known) if known else None)
    return thin
