"""The options of `kvscope tune` that no other command has."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from kvscope.cli.values import amount, parsed_by, positive, target
from kvscope.core import units
from kvscope.core.errors import UsageError
from kvscope.replay.policy_options import CONTENDERS


def _percentile(text: str) -> float:
    rank = units.parse_percentile(text)
    if rank >= 1:
        raise UsageError(f"{text!r} leaves no request out", remedy="write for example p95 or p99.9")
    return rank


def _violations(text: str) -> float:
    share = units.parse_share(text)
    if not 0 < share < 1:
        raise UsageError(f"{text!r} is not between 0% and 100%", remedy="write for example 5%")
    return share


def _size_range(text: str) -> tuple[int, int]:
    low, dots, high = text.partition("..")
    sizes = units.parse_size(low), units.parse_size(high) if dots else 0
    if sizes[0] >= sizes[1]:
        raise UsageError(f"{text!r} is no range", remedy="write for example 5GiB..80GiB")
    return sizes


Slo = Annotated[
    float,
    typer.Option(
        "--slo",
        metavar="TIME",
        parser=parsed_by(positive(units.parse_duration)),
        help="The TTFT to keep, for example 200ms.",
        show_default=False,
    ),
]
Percentile = Annotated[
    float | None,
    typer.Option(
        "--percentile",
        metavar="pN",
        parser=parsed_by(_percentile),
        help="Whose TTFT has to be within the SLO, and be as low as can be.",
        show_default="p95",
    ),
]
MaxViolations = Annotated[
    float | None,
    typer.Option(
        "--max-violations",
        metavar="SHARE",
        parser=parsed_by(_violations),
        help="Or: which share of the requests may be beyond the SLO, for example 5%.",
        show_default=False,
    ),
]
Capacity = Annotated[
    int | None,
    typer.Option(
        "--capacity",
        metavar="SIZE",
        parser=parsed_by(positive(units.parse_size)),
        help="The capacity you have, for example 20GiB.",
        show_default="where LRU gets half of the hits that there are",
    ),
]
CapacityBlocks = Annotated[
    int | None,
    typer.Option(
        "--capacity-blocks",
        metavar="N",
        parser=parsed_by(amount("blocks")),
        help="The same in blocks.",
        show_default=False,
    ),
]
CapacityRange = Annotated[
    Any,  # tuple[int, int] | None, which Typer takes for one value after the other
    typer.Option(
        "--capacity-range",
        metavar="LOW..HIGH",
        parser=parsed_by(_size_range),
        help="Where to look for the least capacity, for example 5GiB..80GiB.",
        show_default="all",
    ),
]
Policies = Annotated[
    str | None,
    typer.Option(
        "--policies",
        metavar="NAME,...",
        help="What may replace LRU.",
        show_default=CONTENDERS,
    ),
]
View = Annotated[
    Literal["unloaded", "queued"],
    typer.Option(
        "--view",
        help="TTFT on an idle engine, or behind the requests before it (one prefill at a time).",
    ),
]
Share = Annotated[
    float | None,
    typer.Option(
        "--warmup",
        metavar="SHARE",
        parser=parsed_by(units.parse_share),
        help="Share of the requests, the first ones, that only warm the cache.",
        show_default="20%",
    ),
]
Judged = Annotated[
    float | None,
    typer.Option(
        "--judge",
        metavar="SHARE",
        parser=parsed_by(units.parse_share),
        help="Share of the requests, the last ones, that judge what was chosen before them.",
        show_default="40%",
    ),
]
Explain = Annotated[
    bool,
    typer.Option("--explain", help="Also show what was tried, and why it was not taken."),
]
Output = Annotated[
    str,
    typer.Option(
        "--output",
        metavar="PATH",
        parser=parsed_by(target),
        help="Where the recommendation is written; - for nowhere.",
    ),
]
