"""The most reused prefixes: the hottest part of the trie, unbranched runs of blocks merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from kvscope.core.trace import Trace
from kvscope.store.db import Store

MOST_BLOCKS = 20_000
MOST_PREFIXES = 400


class Prefix(Struct, frozen=True):
    """A run of blocks that the same prompts reuse.

    `number` is its first block, `parent` the `number` of the prefix before it (0: the root),
    `hash_id` that of its last block. `reuses` counts prompts, `branches` the reused prefixes below.
    """

    number: int
    parent: int
    hash_id: int
    depth_blocks: int
    blocks: int
    reuses: int
    branches: int

    @property
    def hits(self) -> int:
        """Block hits: prompts times blocks."""
        return self.blocks * self.reuses


def hot_prefixes(store: Store, trace: Trace) -> tuple[Prefix, ...]:
    """Return the prefixes with the most hits, each after its parent.

    Only the `MOST_BLOCKS` most reused blocks are searched.
    """
    rows = store.rows("characterize/hot_blocks", trace_id=trace.trace_id, most=MOST_BLOCKS)
    reuses = {row["block"]: row["reuses"] for row in rows}
    rows = [row for row in rows if row["parent"] == 0 or row["parent"] in reuses]
    children = Counter(row["parent"] for row in rows)
    first: dict[int, int] = {}  # block -> first block of its prefix
    by_first: dict[int, dict[str, int]] = {}
    for row in rows:
        block, parent = row["block"], row["parent"]
        if parent and children[parent] == 1 and reuses[parent] == row["reuses"]:
            first[block] = first[parent]
            by_first[first[block]]["blocks"] += 1
        else:
            first[block] = block
            above = first.get(parent, 0)
            depth = by_first[above]["depth_blocks"] + by_first[above]["blocks"] if above else 0
            by_first[block] = {"parent": above, "depth_blocks": depth, "blocks": 1}
        by_first[first[block]] |= {
            "reuses": row["reuses"],
            "hash_id": row["hash_id"],
            "last": block,
        }
    return hottest(
        [
            Prefix(number=number, branches=children[columns.pop("last")], **columns)
            for number, columns in by_first.items()
        ]
    )


def hottest(prefixes: Sequence[Prefix], most: int = MOST_PREFIXES) -> tuple[Prefix, ...]:
    """Return those with the most hits at and below them; the parent of each is among them."""
    hits = {prefix.number: prefix.hits for prefix in prefixes}
    for prefix in reversed(prefixes):
        if prefix.parent:
            hits[prefix.parent] += hits[prefix.number]
    ranked = sorted(prefixes, key=lambda prefix: -hits[prefix.number])[:most]
    numbers = {prefix.number for prefix in ranked}
    return tuple(prefix for prefix in prefixes if prefix.number in numbers)
