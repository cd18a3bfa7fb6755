"""A policy from outside the package needs a file, a registry line and an oracle's line: all shapes.

docs/extend.md has a lane policy, which tests/docs follows; here are the other two shapes, run
uncompiled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pytest

import kvscope.replay.replay as replaying
from kvscope.core.block_queues import BEFORE, push, remove
from kvscope.policies import registry
from kvscope.policies.base import Block, Floats, Ints, KeyPolicy, Policy, QueuePolicy, Turn
from tests.oracles import keys, queues
from tests.oracles.replay import replay
from tests.policies import drawn
from tests.policies.traffics import long_traffic


class DeepFirst(KeyPolicy):
    """The deepest blocks leave first."""

    name = "deep-first"
    summary = "the deepest first"
    source = "made up"
    leaves = "leaf"

    @staticmethod
    def key(
        turn: Turn, block: Block, now_s: float, block_size: int, p: Floats, table: Floats
    ) -> float:
        """Return a lower key for a deeper block."""
        return -float(block.depth)


class LastOut(QueuePolicy):
    """What came last leaves first."""

    name = "last-out"
    summary = "last in, first out"
    source = "made up"

    @staticmethod
    def hit(block: int, links: Ints, numbers: Floats, capacity: int, p: Floats) -> None:
        """Change nothing."""

    @staticmethod
    def insert(block: int, links: Ints, numbers: Floats, capacity: int, p: Floats) -> None:
        """On top of the pile."""
        push(links, 0, block)

    @staticmethod
    def evict(links: Ints, numbers: Floats, capacity: int, p: Floats) -> int:
        """From the top of the pile."""
        block = int(links[-1, BEFORE])
        remove(links, block)
        return block


class _LastOut(queues.Fifo):
    """The oracle's."""

    def __init__(self, capacity: int, values: Mapping[str, float]) -> None:
        super().__init__(capacity, values)

    def victim(self) -> Hashable:
        return self.queue.pop()


@pytest.mark.parametrize("policy", [DeepFirst, LastOut], ids=drawn.case_name)
@pytest.mark.parametrize("mandatory", [False, True])
def test_a_toy_is_replayed(
    policy: type[Policy], mandatory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by its name and replayed as its oracle says, from no room to room for all."""
    monkeypatch.setattr(registry, "POLICIES", (*registry.POLICIES, policy))
    monkeypatch.setitem(keys.KEYS, "deep-first", lambda _, __, one: (-float(one.depth),))
    monkeypatch.setitem(queues.QUEUES, "last-out", _LastOut)
    for name in ("keys_kernel", "queues_kernel"):
        monkeypatch.setattr(replaying, name, _uncompiled(getattr(replaying, name)))
    toy = registry.by_name(policy.name)()
    of = long_traffic(120, seed=5)
    for capacity in (0, 1, 7, 30, drawn.INFINITE):
        given = drawn.setting(toy, capacity, mandatory=mandatory)
        done, expected = drawn.replayed(of, toy, given), replay(of, given)
        assert done.hit_blocks.tolist() == expected.hit_blocks
        assert done.evictions == expected.evictions
        assert drawn.left(done) == expected.left


def _uncompiled(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *of: make(*of).py_func
