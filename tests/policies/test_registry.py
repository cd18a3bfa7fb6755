"""The registry of policies, its recipe, and golden counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pytest

import kvscope.replay.replay as replaying
from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.block_queues import BEFORE, push, remove
from kvscope.core.errors import UsageError
from kvscope.policies import registry
from kvscope.policies.base import (
    Block,
    KeyPolicy,
    LanePolicy,
    NextUsePolicy,
    Policy,
    QueuePolicy,
    Turn,
)
from kvscope.policies.registry import POLICIES, REMOVED, by_name, check_required, plugin_policies
from tests.golden import policies
from tests.golden.samples import SAMPLES, capacities, sample
from tests.long import long
from tests.oracles import keys, queues
from tests.oracles.keys import KEYS
from tests.oracles.queues import QUEUES
from tests.oracles.replay import replay
from tests.policies import drawn
from tests.policies.traffics import long_traffic

EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)


def test_no_two_share_a_name() -> None:
    """Names and aliases are one policy's alone."""
    names = [name for policy in POLICIES for name in (policy.name, *policy.aliases)]
    assert len(names) == len(set(names))


def test_a_policy_is_found_by_its_name_and_its_alias() -> None:
    """libCacheSim's spelling finds gdfs too."""
    assert all(by_name(policy.name) is policy for policy in POLICIES)
    assert by_name("gdsf") is by_name("gdfs")
    assert by_name("LRU") is by_name("Lru") is by_name("lru")
    assert by_name("Return-Index") is by_name("gittins")


def test_an_unknown_name_gets_the_nearest() -> None:
    """A slip of the pen is answered with the name that was meant."""
    with pytest.raises(UsageError, match=r"unknown policy 'tlruu'.*did you mean tlru"):
        by_name("tlruu")


def test_a_removed_policy_names_its_successor() -> None:
    """An old command says what to take instead, in either case of letters."""
    for name, successor in REMOVED.items():
        assert name not in {policy.name for policy in POLICIES}
        assert by_name(successor).name == successor
        with pytest.raises(UsageError, match=f"{name} was removed; take {successor} instead"):
            by_name(name.upper())


def test_a_policy_that_needs_a_value_is_refused_without_it() -> None:
    """`ttl` without a time to live would be LRU; the others take their defaults."""
    for policy in POLICIES:
        if policy.name != "ttl":
            check_required(policy, {}, "--policy")
    check_required(by_name("ttl"), {"ttl_s": 60.0}, "--policy")
    with pytest.raises(UsageError, match=r"--policy: ttl needs ttl_s: .*add --param ttl.ttl_s="):
        check_required(by_name("ttl"), {}, "--policy")


def test_the_plugins_policies() -> None:
    """Lanes that do not know the future."""
    assert plugin_policies() == "lru,threshold-lru,tlru,wa,gittins,ttl"


def test_hindsight_is_marked() -> None:
    """Exactly the ceilings know the future."""
    marked = {policy.name for policy in POLICIES if policy.hindsight}
    assert marked == {"tlru-end", "tlru-length", "belady", "tail-belady"}


@EVERY_POLICY
def test_has_a_shape_and_an_oracle(policy: type[Policy]) -> None:
    """It is a lane, next-use, key or queue policy, and the slow replay knows it too."""
    shapes = (LanePolicy, NextUsePolicy, KeyPolicy, QueuePolicy)
    assert sum(issubclass(policy, shape) for shape in shapes) == 1
    assert policy.name in (QUEUES if issubclass(policy, QueuePolicy) else KEYS)


@EVERY_POLICY
def test_declares_itself(policy: type[Policy]) -> None:
    """Its words are there, and it does not offer what it does anyway."""
    assert policy.summary
    assert policy.source
    assert policy.leaves not in policy.offers


@EVERY_POLICY
def test_parameters_are_sound(policy: type[Policy]) -> None:
    """Defaults and search values lie inside the limits, names are unique, settings keep order."""
    names = [one.name for one in policy.parameters]
    assert len(names) == len(set(names))
    for one in policy.parameters:
        assert all(one.low <= value <= one.high for value in (one.default, *one.search))
    assert policy().settings().tolist() == [one.default for one in policy.parameters]


@EVERY_POLICY
def test_refuses_what_it_does_not_know(policy: type[Policy]) -> None:
    """An unknown parameter is named with the policy, and so is a value outside the limits."""
    with pytest.raises(UsageError, match=f"{policy.name} has no parameter 'colour'"):
        policy({"colour": 1.0})
    for one in policy.parameters:
        with pytest.raises(UsageError, match="outside"):
            policy({one.name: one.low - 1.0})


@EVERY_POLICY
def test_evicts_only_as_offered(policy: type[Policy]) -> None:
    """The other way of evicting is refused where the policy does not offer it."""
    assert policy().evicts == policy.leaves
    for leaves in ("leaf", "any"):
        if leaves in (policy.leaves, *policy.offers):
            assert policy(leaves=leaves).evicts == leaves
        else:
            with pytest.raises(UsageError, match="cannot evict"):
                policy(leaves=leaves)


class DeepFirst(KeyPolicy):
    """The deepest blocks leave first."""

    name = "deep-first"
    summary = "the deepest first"
    source = "made up"
    leaves = "leaf"

    @staticmethod
    def key(
        turn: Turn, block: Block, now_s: float, block_size: int, p: Float64s, table: Float64s
    ) -> float:
        """Return a lower key for a deeper block."""
        return -float(block.depth)


class LastOut(QueuePolicy):
    """What came last leaves first."""

    name = "last-out"
    summary = "last in, first out"
    source = "made up"

    @staticmethod
    def hit(block: int, links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> None:
        """Change nothing."""

    @staticmethod
    def insert(block: int, links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> None:
        """On top of the pile."""
        push(links, 0, block)

    @staticmethod
    def evict(links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> int:
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
        assert drawn.left(of, done) == expected.left


def _uncompiled(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *of: make(*of).py_func


GOLDEN = json.loads(policies.FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [long(name) if name == "to-c" else name for name in SAMPLES])
def test_counts(name: str) -> None:
    """Hit blocks and evictions at eight capacities; tests.golden.policies writes them."""
    expected = dict(GOLDEN[name])
    assert expected.pop("capacity_blocks") == capacities(sample(name))
    found = policies.counted(name)
    different = [each for each in found if found[each] != expected.get(each)]
    assert not different, f"{name}: other counts than before for {', '.join(different)}"
    assert set(expected) == {policy.name for policy in POLICIES}


@pytest.mark.parametrize("name", SAMPLES)
def test_belady_is_the_ceiling(name: str) -> None:
    """In the golden file too no policy hits more blocks than belady, at any capacity."""
    best = [hits for hits, _ in GOLDEN[name]["belady"]]
    for policy in POLICIES:
        assert all(
            hits <= ceiling
            for (hits, _), ceiling in zip(GOLDEN[name][policy.name], best, strict=True)
        )
