"""`--recommendation`: what `kvscope tune` wrote, in the place of the options that it settles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kvscope.core.errors import UsageError

if TYPE_CHECKING:
    from kvscope.replay.variants import Variant
    from kvscope.tune.file import Recommendation


def recommendation(path: str | None, options: Mapping[str, object]) -> Recommendation | None:
    """The recommendation in the file at `path`, if there is one.

    Raises UsageError for one of the `options` that says what the file says.
    """
    if path is None:
        return None
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UsageError(
            "says what the recommendation says",
            where=", ".join(given),
            remedy=f"leave it out, or edit {path}",
        )
    from kvscope.tune.file import read_recommendation

    return read_recommendation(Path(path))


def beside_lru(found: Recommendation) -> list[Variant]:
    """LRU and what is recommended, if that is something else."""
    from kvscope.policies.lru import Lru
    from kvscope.replay.variants import Variant

    best = Variant(type(found.policy), found.policy.values, found.policy.evicts)
    return [best] if found.policy.name == Lru.name else [Variant(Lru), best]
