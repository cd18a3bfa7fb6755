"""Actual and possible hits of a growing recording, as `kvscope watch` replays its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from kvscope.app.watch import Watch, WindowHits
from kvscope.core import units
from kvscope.report import style
from kvscope.report.section import Section, Tile
from kvscope.report.words import count, counted, share


def section(watch: Watch) -> Section:
    """Return the latest window in tiles and sentences, and all replayed windows as a chart."""
    hits, title = watch.hits, "Latest requests"
    failed = f"The window could not be replayed: {watch.failure}." if watch.failure else None
    if hits is None:
        waits = f"{counted(watch.requests, 'request')} read; the first replay is on its way."
        return Section.of(title, failed or waits)
    size = f"{count(hits.capacity_blocks)} blocks"
    tiles = [
        Tile("LRU", share(hits.lru[1]), f"The hit rate of an LRU cache of {size}."),
        Tile("LRU, twice as large", share(hits.lru[2]), "What twice the capacity would hit."),
        Tile("Infinite cache", share(hits.ideal), "No cache hits more."),
    ]
    if hits.observed is not None:
        tiles.insert(0, Tile("Hit rate now", share(hits.observed), "As the engine reports it."))
    if hits.recommended is not None:
        about = "What the recommendation would hit."
        tiles.append(Tile("Recommended", share(hits.recommended), about, not hits.tune_again))
    ago = units.duration_in_words(round(max(time.time() - hits.computed_at_s, 0.0)))
    return Section.of(
        title,
        *tiles,
        f"{counted(watch.requests, 'request')} read; the latest {count(hits.requests)} span"
        f" {units.duration_in_words(round(hits.span_s))}, their later half was replayed {ago} ago.",
        _drift(hits),
        f"{counted(watch.bad_lines, 'line')} are no requests." if watch.bad_lines else None,
        failed,
        partial(chart, tuple(watch.past)) if len(watch.past) > 1 else None,
    )


def _drift(hits: WindowHits) -> str | None:
    """Return the drift of the recommendation's hit rate, and whether to tune; None if unknown."""
    if hits.drift is None:
        return None
    moved = f"The recommendation's hit rate is {hits.drift:+.0%} from what it was chosen for"
    return f"{moved}: run `kvscope tune` again." if hits.tune_again else f"{moved}."


def chart(past: Sequence[WindowHits]) -> style.Figure:
    """Draw the hit rates of all replayed windows over minutes since the first replay."""
    minutes = [(each.computed_at_s - past[0].computed_at_s) / 60 for each in past]
    rates: dict[str, list[float | None]] = {
        "engine": [each.observed for each in past],
        "LRU": [each.lru[1] for each in past],
        "LRU, twice as large": [each.lru[2] for each in past],
        "infinite cache": [each.ideal for each in past],
        "recommended": [each.recommended for each in past],
    }
    known = {
        name: values for name, values in rates.items() if any(each is not None for each in values)
    }
    series = style.curves(minutes, known, mode="lines+markers")
    title = "Hit rate of the latest requests"
    return style.lines(title, "minutes", "hit rate by token", series, log="")
