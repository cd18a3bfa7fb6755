"""A fit as the rows that the store keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kvscope.model.facts import Fit, Interval, ModelFit, NextTurnFit, WindowFit
from kvscope.store import fits
from kvscope.store.db import Store


def keep(store: Store, fit: Fit) -> int:
    """Store `fit`; its number there."""
    windows = fit.windows
    about = {
        "warmup": fit.warmup,
        "window_s": windows.length_s if windows else None,
        "start_s": fit.start_s,
        "end_s": fit.end_s,
        "conversations": _conversation(fit),
    }
    parts: Mapping[str, fits.Rows] = {
        "models": [_model(one) for one in fit.models],
        "windows": [_window(one) for one in windows.fits] if windows else [],
        "next_prompts": [
            {"category": one.category, "n": one.n, "mean": one.mean, "values": list(one.values)}
            for one in fit.next_prompts
        ],
        "next_turns": [_next_turn(one) for one in fit.next_turns],
    }
    return fits.add(store, fit.trace, about, parts)


def _conversation(fit: Fit) -> dict[str, Any] | None:
    if fit.conversation is None:
        return None
    row = asdict(fit.conversation)
    intervals = _intervals(row.pop("interval"))
    return row | {"intervals": {"key": list(intervals), "value": list(intervals.values())}}


def _model(one: ModelFit) -> dict[str, Any]:
    row = asdict(one)
    return row | {"intervals": _intervals(row.pop("interval"))}


def _window(one: WindowFit) -> dict[str, Any]:
    row = asdict(one)
    del row["observed"]
    return row


def _next_turn(one: NextTurnFit) -> dict[str, Any]:
    row = asdict(one)
    del row["interval"]
    return row


def _intervals(found: Mapping[str, Interval | None]) -> dict[str, dict[str, float] | None]:
    return {
        name: None if interval is None else {"low": interval[0], "high": interval[1]}
        for name, interval in found.items()
    }
