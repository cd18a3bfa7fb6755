"""The options of `kvscope validate` that no other command has."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from kvscope.cli.values import amount, called, parsed_by, positive, whole
from kvscope.core import units
from kvscope.core.errors import UsageError


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = units.parse_duration(text) / 60
    if not 0 < value < float("inf"):
        raise UsageError(f"{text!r} is not above zero")
    return value


Policies = Annotated[
    Literal["both", "lru", "recommendation"],
    typer.Option("--policies", help="What to run: LRU, what is recommended, or both by turns."),
]
Recommended = Annotated[
    str | None,
    typer.Option(
        "--recommendation",
        metavar="PATH",
        parser=parsed_by(called),
        help="The file that `kvscope tune` or `kvscope fit --export` wrote.",
        show_default="recommendation.toml, if it lies here",
    ),
]
EngineBlocks = Annotated[
    int | None,
    typer.Option(
        "--blocks",
        metavar="N",
        parser=parsed_by(amount("blocks")),
        help="How many of its blocks the engine can use (vLLM's --num-gpu-blocks-override less 1).",
        show_default="the recommendation's capacity",
    ),
]
Sequential = Annotated[bool, typer.Option("--sequential", help="Send one request after the other.")]
InFlight = Annotated[
    int | None,
    typer.Option(
        "--in-flight",
        metavar="N",
        parser=parsed_by(whole(1)),
        help="Keep so many requests under way, instead of the recorded times.",
        show_default=False,
    ),
]
Share = Annotated[
    float,
    typer.Option(
        "--share",
        metavar="SHARE",
        parser=parsed_by(positive(units.parse_share)),
        help="Replay this share of the conversations, whole and at their own times: what one of"
        " several engines gets.",
        show_default="100%",
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        metavar="N",
        parser=parsed_by(_minutes),
        help="Replay the first minutes only.",
        show_default=False,
    ),
]
MaxRequests = Annotated[
    int | None,
    typer.Option(
        "--max-requests",
        metavar="N",
        parser=parsed_by(amount("requests")),
        help="Replay the first requests only.",
        show_default=False,
    ),
]
Warmup = Annotated[
    float,
    typer.Option(
        "--warmup",
        metavar="SHARE",
        parser=parsed_by(units.parse_share),
        help="Share of the requests, the first ones, that fill the cache and are not counted.",
        show_default="20%",
    ),
]
Repeats = Annotated[
    int,
    typer.Option(
        "--repeats",
        metavar="N",
        parser=parsed_by(whole(1)),
        help="How often to run each policy, by turns: drift then meets all alike.",
    ),
]
Outputs = Annotated[
    Literal["forced", "bounded"] | None,
    typer.Option(
        "--outputs",
        help="Make the engine say what the trace's next turns carry, or let it say what it will:"
        " then those blocks are no hits.",
        show_default="forced, and bounded with --url",
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(
        "--tolerance",
        metavar="SHARE",
        parser=parsed_by(positive(units.parse_share)),
        help="How far TTFT may be from the prediction.",
        show_default="10%",
    ),
]
