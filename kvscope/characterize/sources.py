"""Sources of reuse (same conversation, same user, others), skew, and most reused prefixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from kvscope.characterize.distributions import totals
from kvscope.characterize.history import History
from kvscope.characterize.traffic import share
from kvscope.core.disk_columns import stretches
from kvscope.core.trace import Trace
from kvscope.store.db import Store


class HeatCell(Struct, frozen=True):
    """The number of `blocks` that one user reuses after a touch by another one or the same.

    `reuser_user` reuses blocks that `source_user` touched last; ranks are by reused blocks, from 1.
    Source user and rank are None for users without a rank and requests without a user.
    """

    source_rank: int | None
    reuser_rank: int
    source_user: int | None
    reuser_user: int
    blocks: int


class Sources(Struct, frozen=True):
    """Reuse by the source of the previous touch: shares of the reused blocks, which add up to 1.

    `same_user_share` is that of the same user in another conversation. `other_share` is the rest:
    cross-user reuse if users are known. A share is None if the trace lacks that information.
    """

    reused_blocks: int
    same_conversation_share: float | None
    same_user_share: float | None
    other_share: float
    heat_map: tuple[HeatCell, ...]


class TopShare(Struct, frozen=True):
    """The top `top_share` of blocks or users has `share` of the reuse or hits."""

    top_share: float
    share: float


class UserSkew(Struct, frozen=True):
    """How unevenly ideal hits and requests are spread over users."""

    users: int
    hits: tuple[TopShare, ...]
    share_making_90_percent_of_hits: float | None
    share_making_90_percent_of_requests: float


class Skew(Struct, frozen=True):
    """How unevenly reuse is spread over cacheable blocks, and hits over users (None if unknown)."""

    cacheable_blocks: int
    reused_block_share: float
    reuse: tuple[TopShare, ...]
    reuse_from_top_10_percent: float | None
    users: UserSkew | None


TOP_USERS = 30
TOP_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)


def sources(store: Store, trace: Trace, history: History) -> Sources | None:
    """Return the shares of reuse by last toucher: same conversation, same user, others.

    Only the last touch counts: a system prompt that two users touch in turn is cross-user reuse,
    although both have used it before. Weighted by blocks; None without hashes or reuse.
    Source: KVCache Cache in the Wild (ATC'25), section 3 (intra- and inter-user reuse).
    """
    if not trace.has_hashes:
        return None
    by_relation = _by_relation(store, trace, history)
    reused = sum(by_relation)
    if not reused:
        return None
    of_conversation, of_user, of_others = by_relation
    top = {"trace_id": trace.trace_id, "top": TOP_USERS}
    cells = store.rows("characterize/user_heat_map", **top) if trace.has_users else []
    return Sources(
        reused_blocks=reused,
        same_conversation_share=None if trace.lineage == "none" else of_conversation / reused,
        same_user_share=of_user / reused if trace.has_users else None,
        other_share=of_others / reused,
        heat_map=tuple(HeatCell(**cell) for cell in cells),
    )


def _by_relation(store: Store, trace: Trace, history: History) -> tuple[int, int, int]:
    """Return reused blocks by last toucher: same conversation, else same user, else others."""
    of_request = store.columns("characterize/participants", trace_id=trace.trace_id)
    blocks = np.zeros(3, dtype=np.int64)
    for part in stretches(len(history.request)):
        request, prev = history.request[part], history.prev[part]
        same_user = of_request["has_user"][request] & of_request["has_user"][prev]
        same_user &= of_request["user_id"][request] == of_request["user_id"][prev]
        relation = np.where(same_user, 1, 2)
        relation[of_request["conversation"][request] == of_request["conversation"][prev]] = 0
        blocks += totals(history.gap.weight[part], relation, 3)
    of_conversation, of_user, of_others = blocks.tolist()
    return of_conversation, of_user, of_others


def skew(store: Store, trace: Trace) -> Skew | None:
    """Return the share of reuse on the most reused blocks, and of ideal hits on the top users.

    Blocks are all cacheable ones (full in some prompt), including those never reused; reuse counts
    every prompt that hits the block. Users without hits count, too. None without hashes.
    Source: KVCache Cache in the Wild (ATC'25), section 3 (skew).
    """
    if not trace.has_hashes:
        return None
    key = {"trace_id": trace.trace_id, "top_shares": list(TOP_SHARES)}
    rows = store.rows("characterize/block_skew", **key)
    if not rows:
        return None
    reuse = _top_shares(rows, "reuse_share")
    users = store.rows("characterize/user_skew", **key) if trace.has_users else []
    return Skew(
        cacheable_blocks=rows[0]["blocks"],
        reused_block_share=rows[0]["reused_blocks"] / rows[0]["blocks"],
        reuse=reuse,
        reuse_from_top_10_percent=next((at.share for at in reuse if at.top_share == 0.1), None),
        users=_user_skew(users) if users else None,
    )


def _user_skew(rows: Sequence[dict[str, Any]]) -> UserSkew:
    users = rows[0]["users"]
    of_hits = rows[0]["users_of_90_percent_hits"]
    return UserSkew(
        users=users,
        hits=_top_shares(rows, "hit_share"),
        share_making_90_percent_of_hits=None if of_hits is None else share(of_hits, users),
        share_making_90_percent_of_requests=rows[0]["users_of_90_percent_requests"] / users,
    )


def _top_shares(rows: Sequence[dict[str, Any]], name: str) -> tuple[TopShare, ...]:
    return tuple(TopShare(row["top_share"], row[name]) for row in rows if row[name] is not None)


MOST_BLOCKS = 20_000
MOST_PREFIXES = 400


class Prefix(Struct, frozen=True):
    """A run of blocks that the same prompts reuse.

    `number` is its first block, `depth_blocks` the number of blocks before it, `parent` the
    `number` of the run before (0: root), `hash_id` that of its last block. `reuses` counts prompts
    that hit it, `branches` the reused runs that follow.
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
    """Return the runs of blocks with the most hits, each after its parent.

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
    """Return the `most` prefixes with most hits, counted with those of the runs that follow.

    So all parents of a prefix are returned with it. Order is that of `prefixes`.
    """
    hits = {prefix.number: prefix.hits for prefix in prefixes}
    for prefix in reversed(prefixes):
        if prefix.parent:
            hits[prefix.parent] += hits[prefix.number]
    ranked = sorted(prefixes, key=lambda prefix: -hits[prefix.number])[:most]
    numbers = {prefix.number for prefix in ranked}
    return tuple(prefix for prefix in prefixes if prefix.number in numbers)
