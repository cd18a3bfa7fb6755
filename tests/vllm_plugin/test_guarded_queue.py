"""After any failure of the policy's queue, vLLM's own holds every free block, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.learning.lanes import LaneHeap
from kvscope.learning.prefixes import Prefixes
from kvscope.policies.tlru import TLru
from kvscope.vllm_plugin.eviction_controller import EvictionController
from kvscope.vllm_plugin.free_blocks import FreeBlocks
from kvscope.vllm_plugin.guarded_queue import GuardedQueue
from tests.vllm_plugin.fakes import FakeBlock, LruQueue

TOTAL, SIZE = 8, 16
INSIDE = [
    (kind, name)
    for kind in (FreeBlocks, LaneHeap, Prefixes)
    for name, value in vars(kind).items()
    if callable(value) and not name.startswith("__")
]


class Pool:
    """A queue of the plugin's under T-LRU, its blocks, and those in use."""

    def __init__(self, total: int = TOTAL) -> None:
        self.controller = EvictionController(TLru(), SIZE, clock=lambda: 0.0)
        self.blocks = [FakeBlock(number) for number in range(total)]
        self.queue: GuardedQueue = self.controller.attach(
            self.blocks, self.blocks, self.forget, lambda _: [], LruQueue
        )
        self.used: list[FakeBlock] = []

    def forget(self, block: FakeBlock) -> None:
        """Take a block's content out of the cache."""
        key, block.block_hash = block.block_hash, None
        if key is not None:
            self.controller.tell("uncached", [key])

    def take(self, count: int) -> None:
        """Take and fill blocks that are free."""
        for block in self.queue.popleft_n(min(count, self.queue.num_free_blocks)):
            self.forget(block)
            self.used.append(block)

    def give(self, count: int, name: str) -> None:
        """Free blocks in use, with content if they have a name."""
        freed, self.used = self.used[:count], self.used[count:]
        if not name:
            self.queue.prepend_n(freed)
            return
        for block in freed:
            block.hold(f"{name} {block.block_id}", block.block_id)
        self.controller.tell("cached", freed, 0, len(freed))
        self.controller.free.plan = ((TOTAL // 2, 0), (0, 1))
        self.queue.append_n(freed)
        self.controller.free.plan = None

    def hit(self, count: int) -> None:
        """Take out the last free blocks, wherever they are."""
        for block in self.queue.get_all_free_blocks()[::-1][:count]:
            self.queue.remove(block)
            self.used.append(block)

    def check(self) -> None:
        """Every block is free or in use, once."""
        seen = [*self.queue.get_all_free_blocks(), *self.used]
        assert sorted(block.block_id for block in seen) == list(range(len(self.blocks)))
        assert self.queue.num_free_blocks == len(self.blocks) - len(self.used)

    def step(self, kind: str, count: int, name: str) -> None:
        """Do one thing."""
        if kind == "take":
            self.take(count)
        elif kind == "give":
            self.give(count, name)
        elif kind == "hit":
            self.hit(count)
        else:
            self.controller.tell("stepping")


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "give", "hit", "step"]), st.integers(0, 5)), max_size=30
)


@pytest.mark.parametrize(("kind", "name"), INSIDE, ids=lambda value: getattr(value, "__name__", ""))
@settings(deadline=None, max_examples=40)
@given(steps=STEPS, calls=st.integers(0, 8), after=st.booleans())
def test_a_failure_inside_loses_and_doubles_no_block(
    kind: type, name: str, steps: list[tuple[str, int]], calls: int, *, after: bool
) -> None:
    """Whatever method fails at whatever call, before or after what it does."""
    own, left = getattr(kind, name), calls

    def failing(*of: object, **more: object) -> object:
        nonlocal left
        left -= 1
        if left >= 0:
            return own(*of, **more)
        if after:
            own(*of, **more)
        raise FloatingPointError("of all things")

    pool = Pool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, name, failing)
        for number, (what, count) in enumerate(steps):
            pool.step(what, count, str(number) if number % 3 else "")
            if number % 5 == 0:
                pool.check()
        pool.check()
    pool.take(TOTAL)
    pool.check()


def wrong(taken: list[FakeBlock]) -> list[FakeBlock]:
    """Return blocks one of which is there twice."""
    return [taken[0], taken[0], *taken[2:]]


@pytest.mark.parametrize("change", [wrong, lambda taken: taken[1:], lambda taken: [*taken, None]])
def test_blocks_that_were_not_to_be_had_end_the_order(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[list[FakeBlock]], list[FakeBlock]]
) -> None:
    """Too few, too many, or one of them twice: vLLM gets those of its own queue."""
    pool = Pool()
    own = FreeBlocks.popleft_n
    monkeypatch.setattr(FreeBlocks, "popleft_n", lambda self, count: change(own(self, count)))
    assert [block.block_id for block in pool.queue.popleft_n(3)] == [0, 1, 2]
    assert pool.controller.broken
    assert pool.queue.num_free_blocks == TOTAL - 3


def test_after_a_failure_the_order_is_that_of_lru(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks without content first, the last one freed in front; then the others by age."""
    pool = Pool()
    pool.take(7)
    pool.give(2, "first")
    pool.give(1, "")
    pool.give(2, "second")
    pool.give(1, "")
    monkeypatch.setattr(FreeBlocks, "popleft_n", None)
    assert [pool.queue.popleft().block_id for _ in range(7)] == [5, 2, 7, 0, 1, 3, 4]
    assert pool.controller.broken


def test_what_vllm_gets_wrong_is_told_by_its_own_queue() -> None:
    """More blocks than there are, and a block that is not free."""
    pool = Pool()
    pool.take(1)
    with pytest.raises(ValueError, match="not in list"):
        pool.queue.remove(pool.used[0])
    with pytest.raises(AssertionError):
        pool.queue.popleft_n(TOTAL)
