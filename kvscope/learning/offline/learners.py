"""From a policy to the offline half of its learner, which fits its table to a whole trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module

import numpy as np

from kvscope.learning.learners import FittedTable
from kvscope.policies.base import REFIT, REFIT_S, Policy
from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.replay.traffic import Traffic


class OfflineLearner(ABC):
    """Fits one policy's table to a trace: its folder's `offline` module names one as LEARNER."""

    @abstractmethod
    def tables(self, traffic: Traffic, refit_s: float) -> Tables:
        """Return the tables of a replay in which each refit sees the past alone."""

    def fit(
        self, traffic: Traffic, policy: Policy, capacity_blocks: int | None
    ) -> FittedTable | None:
        """Return what a policy file takes along, fitted to the trace's end; None for nothing.

        Choices that depend on the cache are made for `capacity_blocks`, if given.
        """
        return None

    def plugin_tables(self, traffic: Traffic, policy: Policy, fitted: FittedTable | None) -> Tables:
        """Return the tables that kvscope's plugin goes by in an engine, with this fit."""
        return self.tables(traffic, policy.values.get(REFIT.name, REFIT_S))


def offline_learner(policy: type[Policy]) -> OfflineLearner | None:
    """Return what fits a policy's table to a trace; None for a policy without one."""
    if policy.learner is None:
        return None
    learner: OfflineLearner = import_module(f"kvscope.learning.{policy.learner}.offline").LEARNER
    return learner


def tables_for(traffic: Traffic, policy: type[Policy], refit_s: float | None = None) -> Tables:
    """Return a policy's tables, refitted every `refit_s` (default: the policy's own)."""
    learner = offline_learner(policy)
    if learner is None:
        return NO_TABLES
    if refit_s is None:
        refit_s = policy().values.get(REFIT.name, REFIT_S)
    return learner.tables(traffic, refit_s)


def fit_for(
    traffic: Traffic, policy: Policy, capacity_blocks: int | None = None
) -> FittedTable | None:
    """Return what an engine needs beside a policy, by the trace's end; None for nothing."""
    learner = offline_learner(type(policy))
    return None if learner is None else learner.fit(traffic, policy, capacity_blocks)


def plugin_tables(traffic: Traffic, policy: Policy, fitted: FittedTable | None) -> Tables:
    """Return the tables that kvscope's plugin goes by in an engine, with what a file has fitted."""
    learner = offline_learner(type(policy))
    return NO_TABLES if learner is None else learner.plugin_tables(traffic, policy, fitted)


def end_of(traffic: Traffic) -> float:
    """Return the time right behind the last request, in seconds."""
    return float(np.nextafter(traffic.arrival_s[-1], np.inf)) if len(traffic.leaf) else 0.0
