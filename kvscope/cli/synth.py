"""`kvscope synth`: a seeded, hashed trace made from a profile of traffic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvscope.cli.diagnostics import note
from kvscope.cli.progress import Advance, progress
from kvscope.cli.values import STANDARD_STREAM, amount, parsed_by, target, whole
from kvscope.core.errors import UsageError

if TYPE_CHECKING:
    from kvscope.synth.base import Record

ProfileName = Annotated[
    str,
    typer.Argument(
        metavar="PROFILE",
        help="to-c, to-b, agent, birth-death or regime-change.",
        show_default=False,
    ),
]
Requests = Annotated[
    int,
    typer.Option(
        "--requests", "-n", metavar="N", parser=parsed_by(amount("requests")), help="How many."
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", parser=parsed_by(whole(0)), help="Same seed, same trace."),
]
Target = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        parser=parsed_by(target),
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
    output: Target = STANDARD_STREAM,
    param: Parameters = None,
) -> None:
    """Generate a trace of hashed requests from a profile; no real user data is involved."""
    from kvscope.synth.profiles import by_name, write_jsonl

    chosen = _changed(by_name(profile), param or [])
    with progress(f"making {profile}", requests, unit="steps") as advance:
        records = _counted(chosen.generate(requests=requests, seed=seed), advance)
        count = write_jsonl(records, output)
    if output != STANDARD_STREAM:
        note(f"{output}: {count:,} requests of the profile {profile}, seed {seed}")


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
