"""Parsers of values as users write them.

Sizes become bytes, durations seconds, shares fractions. Each parser raises UsageError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from kvscope.core import units
from kvscope.core.errors import UsageError
from kvscope.core.files import check_writable
from kvscope.deployment.quantization import WEIGHT_DTYPES, WeightDtype
from kvscope.fleet.options import READY_S, Scaling
from kvscope.store.folder import store_path

if TYPE_CHECKING:
    from kvscope.replay.tier_spec import SharedPool

T = TypeVar("T")
Number = TypeVar("Number", int, float)

STANDARD_STREAM = "-"
_POISSON = "poisson:"
_TIER_SIZE = re.compile(
    r"(?:dram:)?(?P<memory>[^:+]+)"
    r"(?:\+(?:ssd:(?P<files>[^:+]+)|shared:(?P<shared>[^:+]+)(?P<options>(?::[^+]*)?)))?",
    re.IGNORECASE,
)

_AUTOSCALING = re.compile(r"(?P<replicas>\d+\.\.\d+)@(?P<rate>[^:]+)(?::ready=(?P<ready>.+))?")


def whole(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        if not text.isdecimal():
            raise UsageError(f"{text!r} is not a whole number from {least} on")
        digits = text.lstrip("0") or "0"
        if len(digits) > len(str(most)) or int(digits) > most:  # very long ones int() refuses
            raise UsageError(f"{text!r} is too large", remedy=f"write at most {most}")
        if int(digits) < least:
            raise UsageError(f"{text!r} is not a whole number from {least} on")
        return int(digits)

    return parse


def auto_or(parser: Callable[[str], T]) -> Callable[[str], T | None]:
    """Return `parser`, extended by the word `auto`, which means None (the default)."""
    return lambda text: None if text == "auto" else parser(text)


def amount(of: str) -> Callable[[str], int]:
    """Return a parser of positive counts, with `k` and `M` as suffixes; errors call them `of`."""

    def parse(text: str) -> int:
        try:
            return positive(units.parse_tokens)(text)
        except UsageError as error:
            raise UsageError(
                f"{text!r} is not a number of {of}", remedy="write for example 2000, 8k or 1M"
            ) from error

    return parse


def choice(words: Sequence[str]) -> Callable[[str], str]:
    """Return a parser that accepts one of `words` in any case; any text if `words` is empty."""
    by_name = {word.casefold(): word for word in words}

    def parse(text: str) -> str:
        if by_name and text.casefold() not in by_name:
            raise UsageError(f"{text!r} is not one of {', '.join(words)}")
        return by_name.get(text.casefold(), text)

    return parse


def positive(parse: Callable[[str], Number]) -> Callable[[str], Number]:
    """Return `parse`, extended to reject zero."""

    def parse_positive(text: str) -> Number:
        value = parse(text)
        if value <= 0:
            raise UsageError(f"{text!r} is not above zero")
        return value

    return parse_positive


def listed(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Return a parser of several values with commas between them."""
    return lambda text: tuple(parse(part.strip()) for part in text.split(","))


def counts(text: str) -> tuple[int, ...]:
    """Return the whole numbers above 0 in `1..16`, `8` or `2,4,8`, ascending and each once."""
    number = whole(1)
    low, dots, high = text.partition("..")
    if not dots:
        return tuple(sorted(set(listed(number)(text))))
    ends = number(low), number(high)
    if ends[0] > ends[1]:
        raise UsageError(f"{text!r} is no range", remedy="write for example 1..16")
    return tuple(range(ends[0], ends[1] + 1))


size = positive(units.parse_size)
duration = positive(units.parse_duration)
share = positive(units.parse_share)


def _positive(what: str) -> Callable[[str], float]:
    """Return a parser of positive numbers; errors call them `what`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise UsageError(f"{text!r} is not {what} above 0", remedy="write for example 2.5")
        return value

    return parse


price, drive_writes = _positive("a price"), _positive("a number of drive writes")


class OtherMachine(NamedTuple):
    """GPUs to compare a deployment with: `tp` GPUs a replica, at `gpu_hour` for each GPU.

    `weight_dtype` is None for the deployment's precision.
    """

    gpu: str
    tp: int = 1
    weight_dtype: WeightDtype | None = None
    gpu_hour: float | None = None


def other_machine(text: str) -> OtherMachine:
    """Return the machine in `2xl40s:fp8@0.8`: GPUs, weight precision, price of a GPU-hour."""
    name, at, hour = text.partition("@")
    name, colon, dtype = name.partition(":")
    head, times, gpu = name.partition("x")
    tp, gpu = (whole(1)(head), gpu) if times and head.isdigit() else (1, name)
    weights = cast("WeightDtype", choice(WEIGHT_DTYPES)(dtype)) if colon else None
    return OtherMachine(gpu, tp, weights, price(hour) if at else None)


def memory_price(text: str) -> float:
    """Return a price per GiB and hour; 0 is allowed, for memory that is paid for."""
    return 0.0 if text in {"0", "0.0"} else price(text)


def autoscaling(text: str) -> Scaling:
    """Return the scaling in `2..8@0.5:ready=2min`: replicas, requests/s of each, time to start."""
    scaling = _AUTOSCALING.fullmatch(text)
    if scaling is None:
        remedy = "write for example 2..8@0.5 or 2..8@0.5:ready=2min"
        raise UsageError(f"{text!r} is no range of replicas with a rate for each", remedy=remedy)
    between, ready_s = counts(scaling["replicas"]), READY_S
    if len(between) < 2:
        raise UsageError(f"{text!r} is one number of replicas", remedy="leave it out")
    if scaling["ready"]:
        ready_s = units.parse_duration(scaling["ready"])
    return Scaling(between[0], between[-1], _positive("a rate")(scaling["rate"]), ready_s)


class TierSize(NamedTuple):
    """Bytes of CPU memory and of files below (0: none): on an SSD, or a `pool` of all replicas."""

    size_bytes: int
    files_bytes: int = 0
    pool: SharedPool | None = None


def tier_size(text: str) -> TierSize:
    """Return a tier of CPU memory (`64GiB`), or one with an SSD below (`dram:64GiB+ssd:1TiB`).

    A pool that replicas share takes the SSD's place in `dram:64GiB+shared:8TiB`; its options
    (`SharedPool.parse`) follow after colons.
    """
    sizes = _TIER_SIZE.fullmatch(text)
    if sizes is None:
        remedy = "write for example 64GiB, or dram:64GiB+ssd:1TiB"
        raise UsageError(f"{text!r} is no CPU memory, with an SSD below or without", remedy=remedy)
    memory, files = size(sizes["memory"]), sizes["files"] or sizes["shared"]
    pool = None
    if sizes["shared"]:
        from kvscope.replay.tier_spec import SharedPool  # late: loads NumPy

        pool = SharedPool.parse(sizes["options"].split(":")[1:], "shared")
    return TierSize(memory, size(files) if files else 0, pool)


def percentile(text: str) -> float:
    """Return a percentile such as `p99.9` as a share, 0.999. Rejects p100: no request is beyond."""
    rank = units.parse_percentile(text)
    if rank >= 1:
        raise UsageError(f"{text!r} leaves no request out", remedy="write for example p95 or p99.9")
    return rank


def inner_share(text: str) -> float:
    """Return a share above 0% and below 100%."""
    value = units.parse_share(text)
    if not 0 < value < 1:
        raise UsageError(f"{text!r} is not between 0% and 100%", remedy="write for example 5%")
    return value


def size_range(text: str) -> tuple[int, int]:
    """Return the two sizes, in bytes, in `5GiB..80GiB`."""
    low, dots, high = text.partition("..")
    sizes = units.parse_size(low), units.parse_size(high) if dots else 0
    if sizes[0] >= sizes[1]:
        raise UsageError(f"{text!r} is no range", remedy="write for example 5GiB..80GiB")
    return sizes


def session_arrivals(text: str) -> float:
    """Return the sessions per second in `poisson:0.5/s` or `poisson:30/min`."""
    if not text.startswith(_POISSON):
        raise UsageError(
            f"{text!r} is not an arrival process",
            remedy="write for example poisson:0.5/s or poisson:30/min",
        )
    return units.parse_rate(text.removeprefix(_POISSON))


def cluster(text: str) -> str:
    """Return a Ray cluster: HOST:PORT, ray://HOST:PORT or `ray` (RAY_ADDRESS, else one here)."""
    host, _, port = text.removeprefix("ray://").rpartition(":")
    if text != "ray" and not (host and port.isdecimal()):
        raise UsageError(
            f"{text!r} is no Ray cluster", remedy="write ray, HOST:PORT or ray://HOST:PORT"
        )
    return text


def called(text: str) -> str:
    """Return a name or a path; reject a blank one."""
    if not text.strip():
        raise UsageError("it is empty")
    return text


def store(text: str) -> str:
    """Return the path of a store; for a dataset's folder, the path of its store."""
    return store_path(called(text))


def target(text: str) -> str:
    """Return an output path or `-`; reject a path that cannot be written, before any work.

    Raises UsageError for a blank text, a folder, a file in a folder that is missing or in which
    this process may not create files, and a device or pipe that it may not write.
    """
    path = Path(called(text))
    if text == STANDARD_STREAM:
        return text
    if path.is_dir():
        raise UsageError(f"{text!r} is a folder", remedy="name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {str(path.parent)!r}", remedy="make it first")
    try:
        check_writable(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"{text!r} cannot be written ({reason})", remedy="name another") from error
    return text


def appended(text: str) -> str:
    """Return the path of a file to append lines to; UsageError if it cannot be written."""
    return target(text)


def new_target(text: str) -> str:
    """Return the path of a new output file; UsageError if it exists or cannot be written."""
    if Path(text).exists():
        raise UsageError(f"{text!r} exists already", remedy="name a new file")
    return target(text)


def existing_or_target(text: str) -> str:
    """Return the path of a file to read, or to create; UsageError if neither can be done."""
    return text if Path(text).is_file() else target(text)
