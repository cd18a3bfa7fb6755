"""`kvscope synth`: a seeded, hashed trace made from a profile of traffic."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvscope import units
from kvscope.cli.diagnostics import note
from kvscope.cli.options import parsed_by
from kvscope.cli.progress import Advance, progress
from kvscope.errors import UsageError

if TYPE_CHECKING:
    from kvscope.synth.base import Record

ProfileName = Annotated[
    str,
    typer.Argument(metavar="PROFILE", help="to-c, to-b, agent or birth-death.", show_default=False),
]
Requests = Annotated[
    int,
    typer.Option(
        "--requests", "-n", metavar="N", parser=parsed_by(units.parse_tokens), help="How many."
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Same seed, same trace.")]
Target = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where to write; .gz and .zst compress, - is standard output.",
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="Change a parameter of the profile, for example death_rate_per_s=0.01.",
        show_default=False,
    ),
]


def synth(
    profile: ProfileName,
    requests: Requests = 2000,
    seed: Seed = 0,
    target: Target = "-",
    param: Parameters = None,
) -> None:
    """Generate a trace of hashed requests from a profile; no real user data is involved."""
    from kvscope.synth.registry import by_name
    from kvscope.synth.write import write_jsonl, write_stream

    if requests < 1:
        raise UsageError(f"not a number of requests: {requests}", where="--requests")
    chosen = _changed(by_name(profile), param or [])
    with progress(f"making {profile}", requests, unit="steps") as advance:
        records = _counted(chosen.generate(requests=requests, seed=seed), advance)
        if target == "-":
            write_stream(records, sys.stdout.buffer)
            return
        count = write_jsonl(records, Path(target))
    note(f"{target}: {count:,} requests of the profile {profile}, seed {seed}")


def _counted(records: Iterable[Record], advance: Advance) -> Iterator[Record]:
    for record in records:
        advance(1)
        yield record


def _changed(profile: Any, assignments: list[str]) -> Any:
    """`profile` with the parameters of `--param` in place of its own."""
    from dataclasses import fields, replace

    known = {field.name: getattr(profile, field.name) for field in fields(profile)}
    numbers = {name: value for name, value in known.items() if isinstance(value, int | float)}
    changes: dict[str, int | float] = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        if name not in numbers:
            raise UsageError(
                f"no such parameter: {name!r}",
                where="--param",
                remedy="this profile has " + ", ".join(numbers),
            )
        try:
            changes[name] = type(numbers[name])(text)
        except ValueError as error:
            raise UsageError(f"not a number: {assignment!r}", where="--param") from error
    try:
        return replace(profile, **changes)
    except ValueError as error:
        raise UsageError(str(error), where="--param") from error
