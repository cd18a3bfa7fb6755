"""Which prefixes are reused most: the hottest part of the trie, its unbranched stretches as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.core.trace import Trace
from kvscope.store.db import Store

MOST_BLOCKS = 20_000
MOST_PREFIXES = 400


@dataclass(frozen=True, slots=True)
class Prefix:
    """A stretch of blocks that the same prompts found written.

    `number` is its first block's, `parent` that of the stretch before it (0: the root). `hash_id`
    is its last block's. `reuses` counts prompts; `branches` are the reused stretches that follow.
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
        """Blocks that prompts found here."""
        return self.blocks * self.reuses


def hot_prefixes(store: Store, trace: Trace) -> tuple[Prefix, ...]:
    """The stretches with the most hits, each after the one that it goes on from.

    Looked for among the `MOST_BLOCKS` blocks that are reused most.
    """
    rows = store.rows("characterize/hot_blocks", trace_id=trace.trace_id, most=MOST_BLOCKS)
    reuses = {row["block"]: row["reuses"] for row in rows}
    rows = [row for row in rows if row["parent"] == 0 or row["parent"] in reuses]
    children = Counter(row["parent"] for row in rows)
    first: dict[int, int] = {}  # of each block, the first one of its stretch
    found: dict[int, dict[str, int]] = {}
    for row in rows:
        block, parent = row["block"], row["parent"]
        if parent and children[parent] == 1 and reuses[parent] == row["reuses"]:
            first[block] = first[parent]
            found[first[block]]["blocks"] += 1
        else:
            first[block] = block
            before = first.get(parent, 0)
            depth = found[before]["depth_blocks"] + found[before]["blocks"] if before else 0
            found[block] = {"parent": before, "depth_blocks": depth, "blocks": 1}
        found[first[block]] |= {"reuses": row["reuses"], "hash_id": row["hash_id"], "last": block}
    made = [
        Prefix(number=number, branches=children[one.pop("last")], **one)
        for number, one in found.items()
    ]
    return hottest(made)


def hottest(made: Sequence[Prefix], most: int = MOST_PREFIXES) -> tuple[Prefix, ...]:
    """Those with most hits at and below them: a stretch is never without the one before it."""
    below = {one.number: one.hits for one in made}
    for one in reversed(made):
        if one.parent:
            below[one.parent] += below[one.number]
    ranked = sorted(made, key=lambda one: -below[one.number])[:most]
    kept = {one.number for one in ranked}
    return tuple(one for one in made if one.number in kept)
