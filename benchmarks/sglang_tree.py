"""SGLang's own prefix tree beside the simulator: what each hits of the same prompts.

`python -m benchmarks.sglang_tree`, in an environment that has SGLang (0.5.21 or later) and kvscope:
its `UnifiedRadixCache` and its pool of KV slots, on a CPU, without a model, one request after the
other. A block is one token. Prints a table. Of SGLang's dependencies only those have to work that
the tree needs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.table import Table
from kvscope.ingest.trie import Trie
from kvscope.policies.registry import by_name
from kvscope.simulate.replay import replay
from kvscope.simulate.traffic import Traffic

SEEDS, REQUESTS, OPEN_CHATS, LONGEST, SPARE = 6, 700, 12, 150, 40
GOES_ON = 0.8  # the share of requests that are a next turn
HEAD = 5
CHATS = {
    "1 block a turn, nothing shared": (0, 1),
    f"1 block a turn, a head of {HEAD} shared": (HEAD, 1),
    f"1 to 6 blocks a turn, a head of {HEAD} shared": (HEAD, 6),
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
    """The command line of this file."""
    rows = []
    for name, (head, most) in CHATS.items():
        every = [chats(seed, head, most) for seed in range(SEEDS)]
        for policy in POLICIES:
            both = [(_sglang(of, policy), _simulated(of, policy)) for of in every]
            theirs, ours = (np.concatenate(side) for side in zip(*both, strict=True))
            rows.append(
                [
                    f"{name}: {policy}",
                    f"{(theirs == ours).mean():.1%}",
                    f"{theirs.sum():,}",
                    f"{ours.sum():,}",
                    f"{ours.sum() / theirs.sum() - 1:+.1%}",
                ]
            )
    columns = ("prompts and policy", "requests alike", "SGLang's hits", "kvscope's", "more")
    done = f"{SEEDS} times {REQUESTS} requests, {SPARE} blocks more than the longest prompt has."
    print(Table("SGLang's tree and the simulator", done, columns, rows).markdown())


def chats(seed: int, head: int, most: int) -> list[list[int]]:
    """Prompts of chats that go on, each turn by 1 to `most` blocks."""
    rng = np.random.default_rng(seed)
    going: list[list[int]] = []
    prompts, fresh = [], 1_000
    for _ in range(REQUESTS):
        if going and rng.random() < GOES_ON:
            latest = going[-OPEN_CHATS:]
            chat = latest[rng.integers(len(latest))]
        else:
            chat = list(range(1, head + 1))
            going.append(chat)
        added = int(rng.integers(1, most + 1))
        chat += range(fresh, fresh + added)
        fresh += added
        if len(chat) > LONGEST:
            going.remove(chat)
        prompts.append(list(chat))
    return prompts


def _capacity(prompts: Sequence[list[int]]) -> int:
    return max(map(len, prompts)) + SPARE


def _simulated(prompts: Sequence[list[int]], policy: str) -> Any:
    trie, length = Trie(), np.array([len(one) for one in prompts], dtype=np.int32)
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
    )
    values, _ = POLICIES[policy]
    # SGLang makes room before it inserts.
    return replay(traffic, by_name(policy)(values), _capacity(prompts), mandatory=True).hit_blocks


def _sglang(prompts: Sequence[list[int]], policy: str) -> Any:
    import torch
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    pool = TokenToKVPoolAllocator(_capacity(prompts), torch.float32, "cpu", None, False)
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
        found, lock = matched.device_prefix_len, cache.lock(matched.last_device_node)
        lacking = len(prompt) - found - pool.available_size()
        if lacking > 0:
            cache.evict(EvictParams(num_tokens=lacking))
        held = cache.path_device_indices(matched.last_device_node)[:found]
        slots = torch.cat([held, pool.alloc(len(prompt) - found)])
        cache.insert(InsertParams(key=key, value=slots, prev_prefix_len=found))
        cache.unlock(lock)
        hits.append(found)
    return np.array(hits)


if __name__ == "__main__":
    main()
