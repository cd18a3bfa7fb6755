"""Fields of a model's config.json, read and checked one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from kvscope.core.errors import InputError

_MOST = 2**31  # of anything that a model has a number of
_LONGEST = 60  # characters of a value that an error repeats


class ConfigFields(Struct, frozen=True):
    """A config.json with its text part on top, read field by field."""

    where: str
    fields: Mapping[str, Any]

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first of `names` that the config states, `default` if none."""
        return next((self.fields[name] for name in names if self.has(name)), default)

    def has(self, name: str) -> bool:
        """Return whether the config states `name`; null does not count."""
        return self.fields.get(name) is not None

    def count(self, *names: str) -> int:
        """Return the first of `names` that the config states, a positive whole number."""
        name = next(filter(self.has, names), None)
        if name is None:
            remedy = "is this a language model's config.json? A preset may do instead"
            raise InputError(f"{names[0]} is missing", where=self.where, remedy=remedy)
        value = self.fields[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
            shown = repr(value)[:_LONGEST]
            raise InputError(f"{name} is {shown}, not a number from 1 to 2^31", where=self.where)
        return value

    def count_or(self, default: int, *names: str) -> int:
        """Return the count that the config states under one of `names`, or else `default`."""
        stated = self.get(*names)
        return self.count(*names) if stated else default

    def factor(self, default: float, name: str) -> float:
        """Return the number above 0 that the config states as `name`, or else `default`."""
        value = self.get(name, default=default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _MOST:
            shown = repr(value)[:_LONGEST]
            raise InputError(f"{name} is {shown}, not a number above 0", where=self.where)
        return value

    @property
    def family(self) -> str:
        """The model's type, that of its text part without the ending."""
        return str(self.get("model_type", default="")).removesuffix("_text")
