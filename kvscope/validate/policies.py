"""Which policies an engine is to run, and what it is started with for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvscope.core.errors import EngineError, UsageError
from kvscope.learning.learners import FittedTable, check_fit
from kvscope.learning.observer import NOTHING, UNFIT
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.policies.registry import plugin_policies
from kvscope.tuning.file import PolicyFile
from kvscope.tuning.flags import flags

RECOMMENDATION = "KVSCOPE_RECOMMENDATION"
CLOCK, BY_REQUESTS = "KVSCOPE_CLOCK", "requests"
_PLUGIN = "kvscope.vllm_plugin"


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """A policy, the flags and the environment by which vLLM runs it, and what was fitted for it."""

    policy: Policy
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    fitted: FittedTable | None = None


def lru() -> PolicyRun:
    """What vLLM does by itself."""
    return PolicyRun(Lru())


def recommended(
    found: PolicyFile, path: Path, *, overlapped: bool, told_time: bool = False
) -> PolicyRun:
    """What `kvscope tune` wrote to `path`; `overlapped` as in `EngineSettings.async_scheduling`.

    `told_time`: the policy's clock is that of the trace, as requests tell it (`sequential`). Raises
    UsageError for a policy that vLLM cannot run, or not without what the file lacks.
    """
    if flags(found.policy, 0).vllm is None:
        raise UsageError(
            f"vLLM cannot run {found.policy.name}, and kvscope's plugin neither",
            where=str(path),
            remedy=f"tune with --policies {plugin_policies()}",
        )
    check_fit(found.policy, found.fitted, str(path))
    if found.policy.name == Lru.name:
        return lru()
    scheduler = "KvscopeAsyncScheduler" if overlapped else "KvscopeScheduler"
    return PolicyRun(
        found.policy,
        ("--scheduler-cls", f"{_PLUGIN}.{scheduler}"),
        {RECOMMENDATION: str(path.resolve())} | ({CLOCK: BY_REQUESTS} if told_time else {}),
        found.fitted,
    )


def check_steered(run: PolicyRun, log: str) -> None:
    """Raise EngineError where the log of an engine says that it does not run the policy."""
    for line in log.splitlines() if run.environment else ():
        for mark in (NOTHING, UNFIT):
            if mark in line:
                raise EngineError(
                    line[line.index(mark) :], where="vLLM", remedy="see docs/run-it.md"
                )


def interleaved(runs: list[PolicyRun], repeats: int) -> list[tuple[int, PolicyRun]]:
    """Each policy so many times, as A B B A A B ...: what drifts meets all of them alike."""
    order = []
    for repeat in range(repeats):
        order += [(repeat, one) for one in (runs if repeat % 2 == 0 else runs[::-1])]
    return order
