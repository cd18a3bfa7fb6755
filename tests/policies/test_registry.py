"""The registry and what every policy in it declares."""

from __future__ import annotations

import pytest

from kvscope.core.errors import UsageError
from kvscope.policies.base import KeyPolicy, LanePolicy, NextUsePolicy, Policy, QueuePolicy
from kvscope.policies.registry import POLICIES, REMOVED, by_name, check_required, plugin_policies
from tests.oracles.keys import KEYS
from tests.oracles.queues import QUEUES

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
            check_required(policy, {}, "--policies")
    check_required(by_name("ttl"), {"ttl_s": 60.0}, "--policies")
    with pytest.raises(UsageError, match=r"--policies: ttl needs ttl_s: .*add --param ttl.ttl_s="):
        check_required(by_name("ttl"), {}, "--policies")


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
