"""The options of `kvscope simulate` that no other command has."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from kvscope.cli.values import amount, listed, parsed_by, positive, whole
from kvscope.core import units
from kvscope.replay.policy_options import REPLAYED

DEFAULT_POINTS = 5

Policies = Annotated[
    str | None,
    typer.Option(
        "--policies",
        metavar="NAME,...",
        help="Which policies to replay; all takes every one that the capacity model can run.",
        show_default=REPLAYED,
    ),
]
Capacity = Annotated[
    Any,  # tuple[int, ...] | None, which Typer takes for one value after the other
    typer.Option(
        "--capacity",
        metavar="SIZE,...",
        parser=parsed_by(listed(positive(units.parse_size))),
        help="Capacities to replay at, for example 10GiB,20GiB; needs --model.",
        show_default=False,
    ),
]
CapacityBlocks = Annotated[
    Any,  # as above
    typer.Option(
        "--capacity-blocks",
        metavar="N,...",
        parser=parsed_by(listed(amount("blocks"))),
        help="The same in blocks.",
        show_default=False,
    ),
]
Points = Annotated[
    int | None,
    typer.Option(
        "--points",
        metavar="N",
        parser=parsed_by(whole(1)),
        help="So many capacities, from a hundredth of the one with which LRU loses nothing up to"
        f" that; {DEFAULT_POINTS} where no capacity is named.",
        show_default=False,
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="POLICY.NAME=VALUE,...",
        help="A parameter of a policy, for example tlru.xi_tokens=2000 or tlru.leaves=any;"
        " several values are replayed each. Repeatable.",
        show_default=False,
    ),
]
Latency = Annotated[
    str | None,
    typer.Option(
        "--latency",
        metavar="PROFILE",
        help="How long prefill takes: a preset such as llama2-7b-a100, or the path of a profile.",
        show_default="llama2-7b-a100",
    ),
]
Slo = Annotated[
    float | None,
    typer.Option(
        "--slo",
        metavar="TIME",
        parser=parsed_by(positive(units.parse_duration)),
        help="The TTFT that no request should exceed, for example 200ms: for TEL, violations, and"
        " the xi of policies that have one.",
        show_default=False,
    ),
]
Recommended = Annotated[
    str | None,
    typer.Option(
        "--recommendation",
        metavar="PATH",
        help="Replay what `kvscope tune` wrote beside LRU: its policy, capacity, latency and SLO.",
        show_default=False,
    ),
]
Refit = Annotated[
    float | None,
    typer.Option(
        "--refit",
        metavar="TIME",
        parser=parsed_by(positive(units.parse_duration)),
        help="How often wa and etlru fit their models anew, each time to six times as long before.",
        show_default="10m",
    ),
]
RateScale = Annotated[
    float,
    typer.Option(
        "--rate-scale", metavar="TIMES", help="Let requests arrive so many times as fast."
    ),
]
Isolate = Annotated[
    Literal["user", "conversation"] | None,
    typer.Option(
        "--isolate", help="Let nobody hit another one's blocks (cache salts).", show_default=False
    ),
]
Sample = Annotated[
    float,
    typer.Option(
        "--sample",
        metavar="SHARE",
        parser=parsed_by(positive(units.parse_share)),
        help="Replay only this share of the trace, for example 10%, and estimate; with the error.",
        show_default="100%",
    ),
]
Coarsen = Annotated[
    int,
    typer.Option(
        "--coarsen",
        metavar="N",
        parser=parsed_by(whole(1)),
        help="Take N blocks of a prompt as one, and estimate; with the error. All requests stay.",
        show_default="1",
    ),
]
Capacities = Annotated[
    Literal["cache", "engine"],
    typer.Option(
        "--capacity-model",
        help="What capacity bounds: what is kept between requests, or vLLM's block pool, of which"
        " running requests take theirs too.",
    ),
]
MaxNumSeqs = Annotated[
    int | None,
    typer.Option(
        "--max-num-seqs",
        metavar="N",
        parser=parsed_by(whole(1)),
        help="So many requests run at once in the engine (vLLM's option).",
        show_default="128",
    ),
]
MaxNumBatchedTokens = Annotated[
    int | None,
    typer.Option(
        "--max-num-batched-tokens",
        metavar="N",
        parser=parsed_by(amount("tokens")),
        help="So many tokens are computed in one step of the engine (vLLM's option).",
        show_default="2048",
    ),
]
Tiers = Annotated[
    str | None,
    typer.Option(
        "--tiers",
        metavar="NAME=SIZE,...",
        help="A cache in tiers, the fastest first, for example hbm=40GiB,dram=128GiB:ttl=10m, in"
        " the place of --capacity. A tier takes ttl, policy, read (a bandwidth) and latency.",
        show_default=False,
    ),
]
Mode = Annotated[
    Literal["exclusive", "write-through"] | None,
    typer.Option(
        "--tier-mode",
        help="What leaves a tier moves down to the next, or every tier is written to at once.",
        show_default="exclusive",
    ),
]
