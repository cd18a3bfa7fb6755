"""Each policy's key, lowest first, as section 6 of the design writes it; (owner, -depth) follow."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.policies.base import ENDS
from kvscope.replay.traffic import Traffic

ADAPTIVE = ("tlru", "tlru-end")
EVERY, RECENT = 256, 1024  # requests: how often an adaptive xi moves, and what it looks at


class Owned(NamedTuple):
    """A cached block: who touched it last, where it stands, how often since it was inserted.

    `clock` and `xi_tokens` are what they were when it was touched.
    """

    owner: int
    depth: int
    parent: Hashable | None
    uses: int
    clock: float
    xi_tokens: float


@dataclass
class Asked:
    """All that a key may depend on."""

    traffic: Traffic
    values: dict[str, float]
    blocks: list[list[Hashable]]
    now_s: float = 0.0
    clock: float = 0.0
    table: NDArray[np.float64] = field(default_factory=lambda: np.zeros((1, 1)))
    hit_blocks: list[int] = field(default_factory=list)
    touched_by: dict[Hashable, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        """Who touches each block, in order."""
        self.touched_by = {}
        for at, blocks in enumerate(self.blocks):
            for block in blocks:
                self.touched_by.setdefault(block, []).append(at)

    def silence_s(self, one: Owned) -> float:
        """Time since the block was touched."""
        return self.now_s - float(self.traffic.arrival_s[one.owner])

    def next_hit(self, block: Hashable, one: Owned) -> float:
        """Return the request that will hit the block if it stays, infinity if none does.

        Whoever touches it next brings it back anyway; one that may not look that deep hits nothing.
        """
        at = bisect_right(self.touched_by[block], one.owner)
        later = self.touched_by[block][at:]
        hits = later and one.depth < int(self.traffic.look[later[0]])
        return float(later[0]) if hits else math.inf


Key = Callable[[Asked, Hashable, Owned], tuple[float, ...]]


def admitted(policy: str, asked: Asked, at: int) -> bool:
    """Whether the request may bring new blocks in."""
    if policy != "threshold-lru":
        return True
    return bool(asked.traffic.history_tokens[at] >= asked.values["threshold_tokens"])


def moved_xi(asked: Asked, at: int) -> None:
    """Set an adaptive xi to the nearest-rank percentile of recently computed tokens."""
    share = asked.values.get("xi_percentile", 0.0)
    if share == 0.0 or (at + 1) % EVERY:
        return
    size = asked.traffic.block_size
    recent = range(max(0, at + 1 - RECENT), at + 1)
    computed = sorted(
        max(int(asked.traffic.input_tokens[r]) - asked.hit_blocks[r] * size, 0) for r in recent
    )
    asked.values["xi_tokens"] = computed[max(math.ceil(share * len(computed)), 1) - 1]


def _lru(asked: Asked, block: Hashable, one: Owned) -> tuple[float, ...]:
    return (0.0,)


def _lfu(asked: Asked, block: Hashable, one: Owned) -> tuple[float, ...]:
    return (float(one.uses),)


def _slru(asked: Asked, block: Hashable, one: Owned) -> tuple[float, ...]:
    return (0.0 if one.uses < asked.values["protected_uses"] else 1.0,)


def _gdfs(asked: Asked, block: Hashable, one: Owned) -> tuple[float, ...]:
    """Cost over size: mean over the block's tokens of what each takes after those before it."""
    size = asked.traffic.block_size
    middle = (one.depth * size + (one.depth + 1) * size) / 2
    cost = asked.values["per_token_s"] + asked.values["per_token_pair_s"] * middle
    return (one.clock + one.uses * cost,)


def _safe(asked: Asked, one: Owned, next_prompt_tokens: float) -> bool:
    history = int(asked.traffic.history_tokens[one.owner])
    start = one.depth * asked.traffic.block_size
    return start >= history + next_prompt_tokens - one.xi_tokens


def _tlru(asked: Asked, block: Hashable, one: Owned) -> tuple[float, ...]:
    return (0.0 if _safe(asked, one, asked.values["next_prompt_tokens"]) else 1.0,)


def _tlru_end(asked: Asked, block: Hashable, one: Owned) -> tuple[float, ...]:
    ended = asked.traffic.next_prompt_tokens[one.owner] == ENDS
    return (0.0,) if ended else _tlru(asked, block, one)


def _tlru_length(asked: Asked, block: Hashable, one: Owned) -> tuple[float, ...]:
    truth = int(asked.traffic.next_prompt_tokens[one.owner])
    return (0.0 if truth == ENDS or _safe(asked, one, truth) else 1.0,)


def _etlru(asked: Asked, block: Hashable, one: Owned) -> tuple[float, ...]:
    """Turn rate after the silence times the tokens that the next turn would miss in time."""
    size = asked.traffic.block_size
    history = int(asked.traffic.history_tokens[one.owner])
    prompts = asked.table[int(asked.traffic.category[one.owner])]
    missed = 0.0  # the block's tokens x with Q > xi - (L - x), that is x < L + Q - xi
    for prompt in prompts.tolist():
        bound = history + prompt - asked.values["xi_tokens"] - one.depth * size
        missed += min(max(bound, 0.0), float(size))
    turns, deaths = asked.values["turn_rate_per_s"], asked.values["death_rate_per_s"]
    both = turns + deaths
    if deaths == 0.0:
        return (missed,)
    gone = math.exp(-both * asked.silence_s(one))
    alive = gone / (gone + deaths / both * (1.0 - gone))
    return (alive * missed,)


def _wa(asked: Asked, block: Hashable, one: Owned) -> tuple[float, ...]:
    reused, rate, life, _ = asked.table[int(asked.traffic.category[one.owner])].tolist()
    silent = asked.silence_s(one)
    chance = reused * math.exp(-rate * silent) * -math.expm1(-rate * life)
    if asked.values["given_silence"]:
        chance /= 1.0 - reused * -math.expm1(-rate * silent)
    return (chance,)


def _trtllm_priority(asked: Asked, block: Hashable, one: Owned) -> tuple[float, ...]:
    """Return the level, then when the block joined its queue: by a touch, or by its expiry."""
    ttl_s, level = asked.table[int(asked.traffic.category[one.owner])]
    touched_s = float(asked.traffic.arrival_s[one.owner])
    if level > 35 and asked.silence_s(one) > ttl_s:
        return 35.0, touched_s + ttl_s
    return level, touched_s


def _gittins(asked: Asked, block: Hashable, one: Owned) -> tuple[float, ...]:
    """Index of the class at this age, times the need where only a long next turn needs the block.

    Lanes end where the tail of a Lomax of shape 2 with that mean falls below 0.5 and 0.1. Ages
    begin at 0 and at 1/8 s, and so on by a third of an octave; the last one has no end.
    """
    xi, mean = asked.values["xi_tokens"], asked.values["next_prompt_tokens"]
    history = int(asked.traffic.history_tokens[one.owner])
    beyond = one.depth * asked.traffic.block_size - (history - xi)
    level = sum(beyond >= mean * longer for longer in (0.0, 2.0**0.5 - 1.0, 10.0**0.5 - 1.0))
    row = asked.table[4 * int(asked.traffic.category[one.owner]) + level]
    begins = [0.125 * 2.0 ** (third / 3) for third in range(len(row) - 1)]
    index = float(row[bisect_right(begins, asked.silence_s(one))])
    if level == 0 or xi == 0:
        return (index,)
    return (index * max((mean / (mean + xi)) ** 2, (0.5, 0.1, 0.01)[level - 1]),)


def _belady(asked: Asked, block: Hashable, one: Owned) -> tuple[float, ...]:
    return (-asked.next_hit(block, one),)


def _tail_belady(asked: Asked, block: Hashable, one: Owned) -> tuple[float, ...]:
    """Whether the next hit saves tokens beyond xi: the block starts before those of the prompt."""
    hit = asked.next_hit(block, one)
    if hit == math.inf:
        return (0.0, -hit)
    start = one.depth * asked.traffic.block_size
    needed = start < int(asked.traffic.input_tokens[int(hit)]) - asked.values["xi_tokens"]
    return (float(needed), -hit)


KEYS: dict[str, Key] = {
    "lru": _lru,
    "threshold-lru": _lru,
    "ttl": _lru,
    "lru-retention": _lru,
    "lfu": _lfu,
    "slru": _slru,
    "gdfs": _gdfs,
    "tlru": _tlru,
    "tlru-end": _tlru_end,
    "tlru-length": _tlru_length,
    "etlru": _etlru,
    "wa": _wa,
    "trtllm-priority": _trtllm_priority,
    "gittins": _gittins,
    "belady": _belady,
    "tail-belady": _tail_belady,
}
