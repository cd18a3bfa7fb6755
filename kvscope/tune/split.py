"""A trace cut by time: what warms the cache, what parameters are chosen on, what judges them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kvscope.characterize.windows import Windows
from kvscope.errors import InputError, UsageError
from kvscope.facts import Lineage, RunSetting
from kvscope.simulate.workload import Workload
from kvscope.store.prompts import Prompts
from kvscope.tune.past import first_requests
from kvscope.units import format_percentile

FEWEST = 100
BEYOND = 5
"""Requests that each part must have, at least, and beyond the percentile that is asked for."""


@dataclass(frozen=True, slots=True)
class Split:
    """How many requests, in order of arrival, each part has.

    Both parts are replayed from the trace's first request on, so that the cache is warm and nothing
    that is chosen has seen a judged request.
    """

    warmup_requests: int
    chosen_on_requests: int
    judged_requests: int
    judged_from_s: float


def split(prompts: Prompts, warmup: float, judged: float, percentile: float) -> Split:
    """The first share `warmup` of the requests, the last share `judged`, and what lies between.

    Raises UsageError for shares that leave nothing between or at the end, InputError where too few
    requests are left to choose on or to judge by.
    """
    if not (judged > 0 and 0 <= warmup < 1 - judged):
        raise UsageError(
            f"{warmup:.3g} and {judged:.3g} of the requests leave none to choose on or judge by",
            where="--warmup, --judge",
            remedy="take for example 20% and 40%",
        )
    requests = len(prompts.leaf)
    first, judge = int(requests * warmup), int(requests * (1 - judged))
    found = Split(
        warmup_requests=first,
        chosen_on_requests=judge - first,
        judged_requests=requests - judge,
        judged_from_s=float(prompts.arrival_s[judge]) if judge < requests else float("nan"),
    )
    fewest = max(FEWEST, math.ceil(BEYOND / (1 - percentile) - 1e-9))
    if min(found.chosen_on_requests, found.judged_requests) < fewest:
        raise InputError(
            f"{requests:,} requests are too few to choose on some and judge on others",
            remedy=f"take a longer trace: for {format_percentile(percentile)} each part needs"
            f" {fewest:,} requests",
        )
    return found


def parts(
    prompts: Prompts, parted: Split, setting: RunSetting, windows: Windows, lineage: Lineage
) -> tuple[Workload, Workload]:
    """The workload to choose on, which ends where judging begins, and the one to judge by."""
    seen = parted.warmup_requests + parted.chosen_on_requests
    early = first_requests(prompts, seen, lineage)
    return (
        Workload(early, _counted_from(setting, parted.warmup_requests, seen), windows),
        Workload(prompts, _counted_from(setting, seen, len(prompts.leaf)), windows),
    )


def _counted_from(setting: RunSetting, first: int, requests: int) -> RunSetting:
    # Half a request more, so that the share gives the very number back.
    share = min((first + 0.5) / requests, 1.0)
    return replace(setting, definition=replace(setting.definition, warmup=share))
