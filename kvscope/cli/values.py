"""Values of options: from what was typed to what commands work with; what is wrong is refused.

    Hbm = Annotated[int | None, typer.Option("--hbm", parser=parsed_by(positive(parse_size)))]

A parser raises UsageError; `parsed_by` makes it a refusal that names the option.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import typer

from kvscope.core import units
from kvscope.core.errors import UsageError

T = TypeVar("T")
Number = TypeVar("Number", int, float)

STANDARD_STREAM = "-"
_POISSON = "poisson:"


def parsed_by(parse: Callable[[str], T]) -> Callable[[Any], T]:
    """`parse` for `typer.Option(parser=...)`: its refusal then names the option.

    A default that is a value already, not a text, passes as it is.
    """

    def parser(value: Any) -> T:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        try:
            return parse(value)
        except UsageError as error:
            raise typer.BadParameter(str(error)) from error

    return parser


def whole(least: int) -> Callable[[str], int]:
    """Whole numbers from `least` on."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise UsageError(f"{text!r} is not a whole number from {least} on")
        return int(text)

    return parse


def amount(of: str) -> Callable[[str], int]:
    """How many of what `of` names: more than none, with `k` and `M` for thousands and millions."""

    def parse(text: str) -> int:
        try:
            return positive(units.parse_tokens)(text)
        except UsageError as error:
            raise UsageError(
                f"{text!r} is not a number of {of}", remedy="write for example 2000, 8k or 1M"
            ) from error

    return parse


def positive(parse: Callable[[str], Number]) -> Callable[[str], Number]:
    """What `parse` reads, but not zero."""

    def parse_positive(text: str) -> Number:
        value = parse(text)
        if value <= 0:
            raise UsageError(f"{text!r} is not above zero")
        return value

    return parse_positive


def listed(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """What `parse` reads, several times with commas between."""
    return lambda text: tuple(parse(part.strip()) for part in text.split(","))


def session_arrivals(text: str) -> float:
    """Sessions per second in `poisson:0.5/s` or `poisson:30/min`."""
    if not text.startswith(_POISSON):
        raise UsageError(
            f"{text!r} is no way for sessions to arrive",
            remedy="write for example poisson:0.5/s or poisson:30/min",
        )
    return units.parse_rate(text.removeprefix(_POISSON))


def called(text: str) -> str:
    """A name or a path, which has to have letters."""
    if not text.strip():
        raise UsageError("it is empty")
    return text


def target(text: str) -> str:
    """A file that can be written, or `-`: told before the work begins, not after it."""
    path = Path(called(text))
    if text == STANDARD_STREAM:
        return text
    if path.is_dir():
        raise UsageError(f"{text!r} is a folder", remedy="name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {str(path.parent)!r}", remedy="make it first")
    return text
