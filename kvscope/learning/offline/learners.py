"""From a policy to the offline half of its learner, which fits its table to a whole trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module

import numpy as np
from msgspec.structs import replace

from kvscope.core.arrays import Bools
from kvscope.learning.learners import FittedTable
from kvscope.policies.base import Policy
from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.replay.traffic import Traffic, next_prompts


class OfflineLearner(ABC):
    """Fits one policy's table to a trace; its folder's `offline` module has one as LEARNER."""

    @abstractmethod
    def tables(self, traffic: Traffic, every: float) -> Tables:
        """Return the tables for a replay; each refit sees only the past.

        `every` is the interval between refits, in the unit of the policy's parameter `refit`.
        """

    def fit(
        self, traffic: Traffic, policy: Policy, capacity_blocks: int | None
    ) -> FittedTable | None:
        """Return the fit at the trace's end for a policy file; None where the policy needs none.

        Choices that depend on the cache are made for `capacity_blocks`, if given.
        """
        return None

    def plugin_tables(self, traffic: Traffic, policy: Policy, fitted: FittedTable | None) -> Tables:
        """Return the tables that kvscope's plugin uses in an engine that starts with this fit."""
        return self.tables(traffic, policy.refit_every)


def offline_learner(policy: type[Policy]) -> OfflineLearner | None:
    """Return the learner that fits a policy's table to a trace; None for a policy without one."""
    if policy.learner is None:
        return None
    learner: OfflineLearner = import_module(f"kvscope.learning.{policy.learner}.offline").LEARNER
    return learner


def tables_for(traffic: Traffic, policy: type[Policy], every: float | None = None) -> Tables:
    """Return a policy's tables, refitted at the interval `every` (default: the policy's own)."""
    learner = offline_learner(policy)
    if learner is None:
        return NO_TABLES
    return learner.tables(traffic, policy().refit_every if every is None else every)


def fit_for(
    traffic: Traffic, policy: Policy, capacity_blocks: int | None = None
) -> FittedTable | None:
    """Return the fit at the trace's end that an engine needs beside a policy, None if none."""
    learner = offline_learner(type(policy))
    return None if learner is None else learner.fit(traffic, policy, capacity_blocks)


def plugin_tables(traffic: Traffic, policy: Policy, fitted: FittedTable | None) -> Tables:
    """Return the tables that kvscope's plugin uses in an engine that starts with a file's fit."""
    learner = offline_learner(type(policy))
    return NO_TABLES if learner is None else learner.plugin_tables(traffic, policy, fitted)


def tables_of_served(traffic: Traffic, served: Bools, fit: Callable[[Traffic], Tables]) -> Tables:
    """Return the tables that `fit` learns from the `served` requests, for a replay of all requests.

    An engine rejects a too long request (`served`, R entries, is False) before its scheduler, and
    so kvscope's plugin, sees it. Such a request teaches nothing and is in class 0.
    Source: vLLM 0.32.0, vllm/v1/engine/input_processor.py (InputProcessor.process_inputs).
    """
    if served.all() or not served.any():
        return fit(traffic)
    some = served_traffic(traffic, served)
    return _for_all(fit(some), some, served)


def served_traffic(traffic: Traffic, served: Bools) -> Traffic:
    """Return the `served` requests alone; a turn continues the latest served one before it."""
    parent = traffic.parent.copy()
    while (skipped := (parent >= 0) & ~served[parent]).any():
        parent[skipped] = traffic.parent[parent[skipped]]
    number = (np.cumsum(served) - 1).astype(np.int32)
    some = traffic.of_requests(served)
    before = np.where(parent >= 0, number[parent], -1)[served].astype(np.int32)
    following = next_prompts(before, some.input_tokens, some.history_tokens)
    return some._replace(parent=before, next_prompt_tokens=following)


def _for_all(tables: Tables, some: Traffic, served: Bools) -> Tables:
    """Return the tables of `some` requests, renumbered for all requests."""
    since = np.flatnonzero(served)[tables.since]
    since[:1] = 0
    classes = np.zeros(len(served), dtype=np.int32)
    classes[served] = tables.category(some)
    cuts = np.zeros((len(served), 0 if tables.cuts is None else tables.cuts.shape[1]), np.int32)
    if tables.cuts is not None:
        cuts[served] = tables.cuts
    choose = tables.choose
    if choose is None:
        return replace(tables, since=since, classes=classes, cuts=cuts)

    def chosen(policy: Policy, capacity_blocks: int) -> Tables:
        return _for_all(choose(policy, capacity_blocks), some, served)

    return replace(tables, since=since, classes=classes, cuts=cuts, choose=chosen)


def end_of(traffic: Traffic) -> float:
    """Return the time right after the last request, in seconds."""
    return float(np.nextafter(traffic.arrival_s[-1], np.inf)) if len(traffic.leaf) else 0.0
