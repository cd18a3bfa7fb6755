"""The document of `kvscope diff`."""

from __future__ import annotations

from typing import Literal

from kvscope.app.diff import Comparison, Difference, Kind, Quantity, Topic
from kvscope.app.documents.base import Document, Facts, TraceFacts


class DifferenceFacts(Facts):
    """One figure of both sides, null where a side has none.

    `quantity` is its unit: a share, seconds, per_second, or a number of what it names; `words` for
    text. `change` is right - left for a share, right / left - 1 for another number, else null.
    """

    topic: Topic
    name: str
    quantity: Quantity
    left: float | str | None
    right: float | str | None
    change: float | None


class CategoryDifferences(Facts):
    """The figure `name` by category, of those that both sides have."""

    name: str
    categories: tuple[DifferenceFacts, ...]


class DiffDocument(Document):
    """What `kvscope diff` finds: `differences`, what matters most first, and what is the `same`.

    `traces` are those of traces and runs, empty for recommendations.
    """

    command: Literal["diff"] = "diff"
    kind: Kind
    left: str
    right: str
    traces: tuple[TraceFacts, ...]
    differences: tuple[DifferenceFacts, ...]
    same: tuple[DifferenceFacts, ...]
    by_category: tuple[CategoryDifferences, ...]


def diff_document(compared: Comparison) -> DiffDocument:
    """Return the document of `kvscope diff`."""
    return DiffDocument(
        kind=compared.kind,
        left=compared.names[0],
        right=compared.names[1],
        traces=tuple(map(TraceFacts.build, compared.traces or ())),
        differences=tuple(map(_facts, compared.ranked)),
        same=tuple(_facts(fact) for fact in compared.facts if fact.is_none),
        by_category=tuple(
            CategoryDifferences(name=name, categories=tuple(map(_facts, facts)))
            for name, facts in compared.by_category.items()
        ),
    )


def _facts(fact: Difference) -> DifferenceFacts:
    return DifferenceFacts.build(fact)
