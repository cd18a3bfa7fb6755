"""`--policy` and `--param`: policies with parameters, from text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from kvscope.core import units
from kvscope.core.errors import UsageError, did_you_mean, placed

if TYPE_CHECKING:
    from kvscope.core.parameters import Parameter
    from kvscope.policies.base import Leaves, Policy
    from kvscope.routers.base import Router

T = TypeVar("T")

ALL = "all"
FORESEEING = "*"  # behind the name of a policy that knows the future
REPLAYED = "lru,gittins,tlru,wa,belady,tail-belady"  # by default
LRU_RETENTION = "lru-retention"
HYBRID = f"lru,{LRU_RETENTION}"  # for models whose layers are in groups
VLLM, SGLANG = "vllm", "sglang"
_CONTENDERS = {VLLM: "gittins,tlru,threshold-lru,wa", SGLANG: "tlru,slru,lfu"}
_LEAVES = "leaves"
_FORM = "write for example tlru.xi_tokens=2000, or several values as in tlru.xi_tokens=1k,2k"

Values = dict[type["Policy"], dict[str, list[float | str]]]


class Variant(Struct, frozen=True):
    """A policy with the options that were chosen for it.

    `given` maps parameter names to values; other parameters are estimated or have their defaults.
    `leaves` names the blocks that may be evicted: "leaf" those without a cached child, "any" all;
    None is the policy's default.
    """

    policy: type[Policy]
    given: Mapping[str, float] = field(default_factory=dict)
    leaves: Leaves | None = None


def contenders(engine: str = VLLM, *, hybrid: bool = False) -> str:
    """Return the policies that compete with LRU by default (as for `--policy`).

    For `hybrid` models vLLM's retention interval alone; else in vLLM policies with a guard, by
    kvscope's plugin, in SGLang policies that it has flags for.
    """
    return LRU_RETENTION if hybrid else _CONTENDERS[engine]


def parse_policies(text: str, where: str = "--policy") -> list[type[Policy]]:
    """Return the policies in a text such as `lru,tlru,wa`, each once; `all` is every policy."""
    from kvscope.policies.registry import POLICIES

    if text == ALL:
        return list(POLICIES)
    return list(dict.fromkeys(_policy(name.strip(), where) for name in text.split(",")))


def parse_variants(policies: Sequence[type[Policy]], assignments: Sequence[str]) -> list[Variant]:
    """Return every policy with every combination of its values in `POLICY.NAME=VALUE,...` texts.

    Raises UsageError for a text in another form, for a policy that is not replayed, and for a
    parameter or a value that it does not take.
    """
    values: Values = {policy: {} for policy in policies}
    for assignment in assignments:
        _assign(values, assignment)
    return [variant for policy in policies for variant in _combined(policy, values[policy])]


def guarded(variant: Variant) -> Variant:
    """Return the variant with a guard, if its policy takes one and no chosen value excludes it."""
    from kvscope.policies.base import GUARD

    takes_one = GUARD in variant.policy.parameters and not variant.given.get("xi_percentile")
    if not takes_one or GUARD.name in variant.given:
        return variant
    return replace(variant, given={GUARD.name: 1.0, **variant.given})


def parse_value(parameter: Parameter, text: str) -> float:
    """Return a parameter's value in the unit of its name; `inf` only without an upper bound."""
    if text == "inf" and math.isinf(parameter.high):
        return math.inf
    return _unit_of(parameter.name)[0](text)


def format_value(name: str, value: float) -> str:
    """Return a parameter's value as text in the unit of its name, as `parse_value` reads it."""
    return _unit_of(name)[1](value)


def parameter_values(
    owner: type[Policy | Router], name: str, text: str, where: str, *others: str
) -> list[float]:
    """Return the values of a policy's or router's parameter from a list such as `2k,4k`.

    Raises UsageError for a value in another form, and for an unknown parameter; the remedy names
    the known parameters and `others`.
    """
    known = {parameter.name: parameter for parameter in owner.parameters}
    if name not in known:
        names = [*known, *others]
        has = "it has " + ", ".join(names) if names else "it has none"
        raise UsageError(
            f"{owner.name} has no parameter {name!r}",
            where=where,
            remedy=did_you_mean(name, names, has),
        )
    with placed(where):
        return [parse_value(known[name], part) for part in text.split(",")]


def combinations(values: Mapping[str, Iterable[T]]) -> Iterator[dict[str, T]]:
    """Yield every combination of the values of several parameters, each once."""
    for chosen in product(*(dict.fromkeys(choices) for choices in values.values())):
        yield dict(zip(values, chosen, strict=True))


def _unit_of(name: str) -> tuple[Callable[[str], float], Callable[[float], str]]:
    """Return the parser and the formatter for the unit in which a parameter's name ends."""
    return next((parse, write) for end, parse, write in _UNITS if name.endswith(end))


def _parse_percentile(text: str) -> float:
    return 0.0 if text in {"0", "off"} else units.parse_percentile(text)


def _format_percentile(value: float) -> str:
    return units.format_percentile(value) if value else "off"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a number", remedy="write for example 2 or 0.5") from None


_UNITS: tuple[tuple[str, Callable[[str], float], Callable[[float], str]], ...] = (
    ("_per_s", units.parse_rate, units.format_rate),
    ("_percentile", _parse_percentile, _format_percentile),
    ("_share", units.parse_share, units.format_share),
    ("_tokens", lambda text: float(units.parse_tokens(text)), units.format_count),
    ("_s", units.parse_duration, units.format_duration),
    ("", _number, "{:g}".format),
)


def _assign(values: Values, assignment: str) -> None:
    """Add to `values` (lists by policy and name) those of a `--param` text. Raises UsageError."""
    place, equals, text = assignment.partition("=")
    owner, dot, name = place.partition(".")
    if not (equals and dot and owner and name and text):
        raise UsageError(f"{assignment!r} is no parameter", where="--param", remedy=_FORM)
    where = f"--param {place}"
    policy = _policy(owner, where)
    if policy not in values:
        raise UsageError(
            f"{policy.name} is not replayed", where=where, remedy=f"add {policy.name} to --policy"
        )
    of_name = values[policy].setdefault(name, [])
    if name == _LEAVES:
        of_name += text.split(",")
    else:
        of_name += parameter_values(policy, name, text, where, _LEAVES)


def _policy(name: str, where: str) -> type[Policy]:
    from kvscope.policies.registry import by_name

    with placed(where):
        return by_name(name)


def _combined(policy: type[Policy], values: dict[str, list[float | str]]) -> list[Variant]:
    variants = []
    for given in combinations(values):
        leaves = given.pop(_LEAVES, None)
        variant = Variant(policy, given, leaves)  # type: ignore[arg-type]
        policy(variant.given, variant.leaves)  # refuses here what it does not take
        variants.append(variant)
    return variants
