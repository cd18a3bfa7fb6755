"""Compare the hits of SGLang's own prefix tree with the simulator's, on the same prompts.

Run it in an environment that has SGLang (0.5.21 or later) and kvscope. It drives SGLang's
`UnifiedRadixCache` and its pool of KV slots on a CPU, without a model, one request after the other.
A block is one token. Only those dependencies of SGLang that the tree needs have to work.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.table import Table
from kvscope.ingest.trie import Trie
from kvscope.policies.registry import by_name
from kvscope.replay.replay import replay
from kvscope.replay.traffic import Traffic, uncut

SEEDS, LONGEST = 6, 300
FOLLOW_UPS = 0.8  # share of requests that are a follow-up turn


class Chats(NamedTuple):
    """Traffic whose follow-up turns add 1 to `most` blocks to one of the `going` latest chats.

    All begin with the same `head` blocks. The longest prompt leaves `spare` blocks of the cache.
    """

    head: int
    most: int
    going: int = 12
    spare: int = 40
    requests: int = 700


CHATS = {
    "1 block a turn": Chats(0, 1),
    "1 block a turn, a head shared": Chats(5, 1),
    "1 to 6 blocks a turn, a head shared": Chats(5, 6),
    "the same, cache and traffic larger": Chats(5, 6, going=100, spare=400, requests=3000),
}
POLICIES: dict[str, tuple[dict[str, float], dict[str, int]]] = {
    "lru": ({}, {}),
    "tlru": (
        {"xi_tokens": 8, "next_prompt_tokens": 2},
        {"threshold": 8, "next_prompt_estimate": 2},
    ),
    "slru": ({"protected_uses": 3}, {"protected_threshold": 3}),
}


def main() -> None:
    """Run the command line."""
    rows = []
    for name, mix in CHATS.items():
        every = [chats(mix, seed) for seed in range(SEEDS)]
        capacities = [max(map(len, prompts)) + mix.spare for prompts in every]
        for policy in POLICIES:
            both = [
                (_sglang(prompts, capacity, policy), _simulated(prompts, capacity, policy))
                for prompts, capacity in zip(every, capacities, strict=True)
            ]
            theirs, ours = (np.concatenate(side) for side in zip(*both, strict=True))
            rows.append(
                [
                    f"{name}: {policy}",
                    f"{min(capacities)} to {max(capacities)}",
                    f"{len(ours):,}",
                    f"{(theirs == ours).mean():.1%}",
                    f"{ours.sum() / theirs.sum() - 1:+.1%}",
                ]
            )
    columns = ("prompts and policy", "blocks", "requests", "equal hits", "hits in the simulator")
    description = f"{SEEDS} seeds each; SGLang's prefix tree, one request after the other."
    print(Table("SGLang's tree and the simulator", description, columns, rows).markdown())


def chats(mix: Chats, seed: int) -> list[list[int]]:
    """Return prompts as lists of block numbers."""
    rng = np.random.default_rng(seed)
    going: list[list[int]] = []
    prompts, fresh = [], 1_000
    for _ in range(mix.requests):
        if going and rng.random() < FOLLOW_UPS:
            latest = going[-mix.going :]
            chat = latest[rng.integers(len(latest))]
        else:
            chat = list(range(1, mix.head + 1))
            going.append(chat)
        added = int(rng.integers(1, mix.most + 1))
        chat += range(fresh, fresh + added)
        fresh += added
        if len(chat) > LONGEST:
            going.remove(chat)
        prompts.append(list(chat))
    return prompts


def _simulated(prompts: Sequence[list[int]], capacity: int, policy: str) -> Any:
    trie, length = Trie(), np.array([len(prompt) for prompt in prompts], dtype=np.int32)
    starts = np.concatenate(([0], np.cumsum(length, dtype=np.int64)))
    leaf = trie.intern(starts, np.concatenate(prompts).astype(np.int64))
    nothing = np.zeros_like(length)
    traffic = Traffic(
        block_size=1,
        block_parent=trie.parent,
        leaf=leaf,
        length=length,
        look=length,
        anonymous=nothing,
        arrival_s=np.arange(len(length), dtype=np.float64),
        input_tokens=length,
        history_tokens=length.astype(np.int64),
        category=nothing,
        parent=nothing - 1,
        next_prompt_tokens=nothing.astype(np.int64) - 1,
        cuts=uncut(len(leaf)),
    )
    values, _ = POLICIES[policy]
    # SGLang evicts before it inserts.
    return replay(traffic, by_name(policy)(values), capacity, mandatory=True).hit_blocks


def _sglang(prompts: Sequence[list[int]], capacity: int, policy: str) -> Any:
    import torch
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    pool = TokenToKVPoolAllocator(capacity, torch.float32, "cpu", None, False)
    _, config = POLICIES[policy]
    cache = UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=pool,
            page_size=1,
            eviction_policy=policy,
            eviction_policy_config=config or None,
            tree_components=(ComponentType.FULL,),
            tree_core_backend="python",
        )
    )
    hits = []
    for prompt in prompts:
        key = RadixKey(array("q", prompt))
        matched = cache.match_prefix(MatchPrefixParams(key=key))
        hit, lock = matched.device_prefix_len, cache.lock(matched.last_device_node)
        lacking = len(prompt) - hit - pool.available_size()
        if lacking > 0:
            cache.evict(EvictParams(num_tokens=lacking))
        cached = cache.path_device_indices(matched.last_device_node)[:hit]
        slots = torch.cat([cached, pool.alloc(len(prompt) - hit)])
        cache.insert(InsertParams(key=key, value=slots, prev_prefix_len=hit))
        cache.unlock(lock)
        hits.append(hit)
    return np.array(hits)


if __name__ == "__main__":
    main()
