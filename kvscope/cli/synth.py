"""`kvscope synth`: a seeded, hashed trace made from a profile of traffic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvscope.app import values
from kvscope.app.monitor import Advance
from kvscope.app.options import Option
from kvscope.cli.diagnostics import note
from kvscope.cli.terminal import Terminal
from kvscope.core.errors import UsageError

if TYPE_CHECKING:
    from kvscope.synth.base import Record

ProfileName = Annotated[
    str,
    typer.Argument(
        metavar="PROFILE",
        help="to-c, to-b or agent.",
        show_default=False,
    ),
]
Requests = Annotated[
    int,
    Option("Number of requests.", "N", values.amount("requests"), flags=("--requests", "-n")),
]
Seed = Annotated[
    int, Option("Seed; equal seeds give equal traces.", "N", values.whole(0, 2**63 - 1))
]
Target = Annotated[
    str,
    Option(
        "File to write; .gz and .zst compress, - is standard output.",
        "FILE",
        values.target,
        flags=("--output", "-o"),
    ),
]
Parameters = Annotated[
    list[str] | None,
    Option(
        "Set a parameter of the profile, for example new_user_share=0.5. Repeatable.",
        "NAME=VALUE",
    ),
]


def synth(
    profile: ProfileName,
    requests: Requests = 2000,
    seed: Seed = 0,
    output: Target = values.STANDARD_STREAM,
    param: Parameters = None,
) -> None:
    """Generate a trace of hashed requests from a profile; no real user data is involved."""
    from kvscope.synth.profiles import by_name, write_jsonl

    chosen = _changed(by_name(profile), param or [])
    with Terminal().steps(f"making {profile}", requests) as advance:
        records = _counted(chosen.generate(requests=requests, seed=seed), advance)
        count = write_jsonl(records, output)
    if output != values.STANDARD_STREAM:
        note(f"{output}: {count:,} requests of the profile {profile}, seed {seed}")


def _counted(records: Iterable[Record], advance: Advance) -> Iterator[Record]:
    for record in records:
        advance(1)
        yield record


def _changed(profile: Any, assignments: list[str]) -> Any:
    """Return `profile` with the parameters that `--param` assigns."""
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
